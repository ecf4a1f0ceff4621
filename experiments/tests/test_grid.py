"""Grids: no run twice, no run lost, and failures do not affect other runs."""

import os
import stat
import subprocess
import sys
import time
import tomllib
from threading import Thread

import pytest

import fake_simulation
from fedcopl.errors import ConfigError, RunFolderError
from fedcopl.run.folder import RunFolder
from fedcopl_experiments import grid_runner, grid_workers
from fedcopl_experiments import run_key as keys
from fedcopl_experiments.grid_runner import run_grid
from fedcopl_experiments.run_folders import FINAL_FILES
from fedcopl_experiments.run_key import run_key
from grid_tools import RecordingWatcher, config_of, executions, store_of


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    """Use workers without torch, and a fixed version of the code."""
    monkeypatch.setattr(grid_workers, "START", fake_simulation.START)
    for module in (keys, grid_runner):
        monkeypatch.setattr(module, "code_version", lambda: fake_simulation.CODE)
    monkeypatch.setattr(grid_runner, "RETRY", 0.05)
    monkeypatch.setitem(sys.modules, "fedcopl.report.run_page", fake_simulation)


def execute(folder, *configs, jobs=1):
    watcher = RecordingWatcher()
    return run_grid(configs, folder, jobs=jobs, watcher=watcher), watcher


def test_each_run_is_executed_once_and_reported(tmp_path):
    one, two = config_of(1), config_of(2)
    same = config_of(1, name="the-same-under-another-name")
    outcome, watcher = execute(tmp_path, one, two, same)
    assert outcome.done == (run_key(one), run_key(two))
    assert (outcome.skipped, outcome.failed) == ((), {})
    assert [key for key, *_ in executions(tmp_path)] == [run_key(one), run_key(two)]
    assert watcher.plan == (2, 0)
    assert watcher.of(run_key(one)) == ["started", "0 of 2", "1 of 2", "finished"]


def test_run_may_fork_while_waiting_for_the_next_task(tmp_path):
    assert execute(tmp_path, config_of(act="fork"))[0].failed == {}


def test_files_and_record_of_a_run(tmp_path):
    execute(tmp_path, config_of(5))
    [run] = store_of(tmp_path).runs()
    assert run.status == "done"
    assert run.settings["seed"] == 5
    assert run.outcome.final.macro == 0.75
    assert run.code == fake_simulation.CODE
    assert run.started <= run.finished
    folder = tmp_path / run.folder
    assert folder == tmp_path / "runs" / run.key
    names = {path.name for path in folder.iterdir() if path.name != ".lock"}
    assert names == {"settings.toml", "results.json", "prompts", "examples.json", "report.html"}  # and no checkpoint


def test_only_new_runs_are_executed_the_second_time(tmp_path):
    execute(tmp_path, config_of(1))
    outcome, watcher = execute(tmp_path, config_of(1, name="renamed", model={"threads": 3}), config_of(2))
    assert outcome.skipped == (run_key(config_of(1)),)
    assert outcome.done == (run_key(config_of(2)),)
    assert watcher.plan == (2, 1)
    assert len(executions(tmp_path)) == 2


def test_finished_grid_starts_no_process(tmp_path, monkeypatch):
    execute(tmp_path, config_of(1))
    monkeypatch.setattr(grid_runner, "Worker", None)
    outcome, _ = execute(tmp_path, config_of(1))
    assert outcome.skipped == (run_key(config_of(1)),)
    assert execute(tmp_path)[0] == grid_runner.GridOutcome((), (), {})


FAILURES = {
    "lack images": "photos: there is no such folder",
    "crash": "ZeroDivisionError: in the middle",
    "be killed": "its process was killed (SIGKILL): perhaps there was not enough memory; try fewer --jobs",
    "abort": "its process ended with signal 6 (SIGABRT): terminate called: no room",
    "leave": "its process ended with exit code 3",
}


def test_failure_is_recorded_and_does_not_stop_others(tmp_path):
    bad = {act: config_of(act=act) for act in FAILURES}
    good = [config_of(seed) for seed in (1, 2)]
    outcome, watcher = execute(tmp_path, good[0], *bad.values(), good[1])
    assert outcome.done == tuple(run_key(config) for config in good)
    for act, config in bad.items():
        assert outcome.failed[run_key(config)] == FAILURES[act]
        assert watcher.of(run_key(config))[-1] == f"failed: {FAILURES[act]}"
        run = store_of(tmp_path).find(run_key(config))
        assert (run.status, run.outcome) == ("failed", None)
        assert run.error.splitlines()[0] == FAILURES[act]
    assert "fake_simulation.py" in store_of(tmp_path).find(run_key(bad["crash"])).error  # the traceback


def test_unexpected_error_ends_the_process(tmp_path):
    order = [config_of(1), config_of(2, "lack images"), config_of(3), config_of(4, "crash"), config_of(5)]
    execute(tmp_path, *order)
    processes = [process for _, process, *_ in executions(tmp_path)]
    assert len(set(processes[:4])) == 1
    assert processes[4] != processes[3]


def test_failed_run_is_retried_the_next_time(tmp_path):
    fixed = tmp_path / "fixed"
    config = config_of(options={"act": "crash", "until": str(fixed)})
    assert execute(tmp_path, config)[0].done == ()
    fixed.touch()
    outcome, watcher = execute(tmp_path, config)
    assert outcome.done == (run_key(config),)
    assert watcher.plan == (1, 0)
    assert store_of(tmp_path).find(run_key(config)).status == "done"


def test_finished_unrecorded_run_is_recorded(tmp_path):
    execute(tmp_path, config_of(1), config_of(2))
    before = {run.key: run.outcome for run in store_of(tmp_path).runs()}
    (tmp_path / "results.sqlite").unlink()
    outcome, watcher = execute(tmp_path, config_of(1), config_of(2))
    assert len(outcome.done) == 2
    assert len(executions(tmp_path)) == 2  # as before
    assert {run.key: run.outcome for run in store_of(tmp_path).runs()} == before
    assert watcher.of(run_key(config_of(1))) == ["finished"]


def test_finished_run_without_report_gets_one(tmp_path):
    config = config_of(options={"act": "be killed at the end", "until": str(tmp_path / "fixed")})
    assert "its process was killed" in execute(tmp_path, config)[0].failed[run_key(config)]
    report = tmp_path / "runs" / run_key(config) / "report.html"
    assert not report.exists()
    outcome, _ = execute(tmp_path, config)
    assert outcome.done == (run_key(config),)
    assert len(executions(tmp_path)) == 1
    assert report.read_text() == "page"


def damage(file, change):
    file.write_text(change(file.read_text()))


DAMAGES = [
    *(lambda folder, name=name: (folder / name).unlink() for name in FINAL_FILES),
    lambda folder: damage(folder / "results.json", lambda text: text[:100]),
    lambda folder: damage(folder / "results.json", lambda text: "{}"),
    lambda folder: damage(folder / "results.json", lambda text: text.replace("dirichlet", "iid")),  # of another run
]


def test_nearly_finished_run_is_resumed(tmp_path):
    configs = [config_of(seed) for seed in range(len(DAMAGES))]
    execute(tmp_path, *configs)
    (tmp_path / "results.sqlite").unlink()
    for config, spoil in zip(configs, DAMAGES, strict=True):
        spoil(tmp_path / "runs" / run_key(config))
    execute(tmp_path, *configs)
    assert len(executions(tmp_path)) == 2 * len(DAMAGES)
    assert {run.outcome.settings["data"]["partition"] for run in store_of(tmp_path).runs()} == {"dirichlet"}


def test_process_that_cannot_start_is_a_failed_run(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(grid_runner, "Worker", refuse)
    outcome, _ = execute(tmp_path, config_of())
    assert list(outcome.failed.values()) == ["its process cannot be started: Cannot allocate memory"]


def settings_of(folder, config):
    return tomllib.loads((folder / "runs" / run_key(config) / "settings.toml").read_text())


def test_run_resumes_with_its_first_threads_and_name(tmp_path):
    config = config_of(name="first", model={"threads": 2, "memory": 1.0})
    with RunFolder(tmp_path / "runs" / run_key(config)) as folder:
        folder.begin(config)
    outcome, _ = execute(tmp_path, config_of(name="second"), jobs=2)
    assert outcome.done == (run_key(config),)
    settings = settings_of(tmp_path, config)
    assert (settings["name"], settings["model"]["threads"], settings["model"]["memory"]) == ("first", 2, 1.0)


def test_a_folder_of_another_run_is_not_used(tmp_path):
    with RunFolder(tmp_path / "runs" / run_key(config_of(1))) as folder:
        folder.begin(config_of(2))
    outcome, _ = execute(tmp_path, config_of(1))
    [message] = outcome.failed.values()
    assert "was started with other settings: seed is 2, not 1" in message


def test_default_threads_and_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCOPL_WORKERS", "auto")
    execute(tmp_path / "one", config_of())
    execute(tmp_path / "two", config_of(), config_of(2, model={"threads": 3}), jobs=2)
    alone, shared, given = (
        settings_of(tmp_path / folder, config_of(seed))["model"]["threads"]
        for folder, seed in (("one", 1), ("two", 1), ("two", 2))
    )
    assert (alone, shared, given) == (0, 1, 3)
    assert [workers for *_, workers in executions(tmp_path / "one")] == ["auto"]
    assert [workers for *_, workers in executions(tmp_path / "two")] == ["1", "1"]


@pytest.mark.slow
def test_jobs_run_in_as_many_processes(tmp_path):
    outcome, _ = execute(tmp_path, *(config_of(seed, "meet 3") for seed in range(6)), jobs=3)
    assert len(outcome.done) == 6
    assert len({process for _, process, *_ in executions(tmp_path)}) == 3


def test_no_more_processes_than_runs(tmp_path):
    execute(tmp_path, config_of(1), jobs=8)
    assert len(executions(tmp_path)) == 1


def test_no_jobs_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"jobs: should be 1 or more \(given: 0\)"):
        execute(tmp_path, config_of(), jobs=0)


@pytest.mark.slow
def test_two_grids_in_one_folder_share_the_work(tmp_path):
    configs = [config_of(seed, "meet 3") for seed in range(6)]  # one grid has only two processes
    outcomes = []
    grids = [Thread(target=lambda: outcomes.append(execute(tmp_path, *configs, jobs=2)[0])) for _ in range(2)]
    for thread in grids:
        thread.start()
    for thread in grids:
        thread.join()
    keys = {run_key(config) for config in configs}
    assert sorted(key for key, *_ in executions(tmp_path)) == sorted(keys)  # each once
    for outcome in outcomes:
        assert outcome.failed == {}
        assert {*outcome.done, *outcome.skipped} == keys


def test_a_run_that_another_grid_finishes_before_its_start_is_no_failure(tmp_path):
    outcome, _ = execute(tmp_path, config_of(act="find it finished"))
    assert (outcome.done, outcome.failed) == ((run_key(config_of(act="find it finished")),), {})


def test_a_run_that_another_process_locks_is_executed_later(tmp_path):
    config = config_of()
    folder = tmp_path / "runs" / run_key(config)
    hold = "import sys, time; from pathlib import Path; from fedcopl.run.folder import RunFolder\n"
    hold += "with RunFolder(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", hold, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    outcomes = []
    thread = Thread(target=lambda: outcomes.append(execute(tmp_path, config, config_of(2))[0]))
    thread.start()
    while run_key(config_of(2)) not in store_of(tmp_path).done():  # the other run is executed meanwhile
        time.sleep(0.01)
    assert executions(tmp_path)[0][0] == run_key(config_of(2))
    holder.kill()
    holder.communicate()
    thread.join()
    assert outcomes[0].done == (run_key(config_of(2)), run_key(config))


def test_changed_source_files_are_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(grid_runner, "code_version", lambda: "0.1.0+before")
    outcome, _ = execute(tmp_path, config_of())
    [message] = outcome.failed.values()
    assert message == "the source files changed after the grid was started: start it again"


def test_damaged_store_is_reported_before_any_run(tmp_path):
    (tmp_path / "results.sqlite").write_text("no database " * 100)
    with pytest.raises(RunFolderError, match="damaged"):
        execute(tmp_path, config_of())
    assert not (tmp_path / "runs").exists()


def test_file_in_the_working_folder_is_not_imported(tmp_path, monkeypatch):
    for name in ("json.py", "fedcopl.py", "signal.py"):
        (tmp_path / name).write_text("raise SystemExit('taken')")
    monkeypatch.chdir(tmp_path)
    assert execute(tmp_path, config_of())[0].failed == {}


# GPUs -----------------------------------------------------------------------------------------------------------------


def test_each_process_has_its_own_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    execute(tmp_path, *(config_of(seed, "meet 2") for seed in range(5)), jobs=2)
    assert sorted({process: gpu for _, process, gpu, _ in executions(tmp_path)}.values()) == ["3", "5"]


def listed_gpus(tmp_path, monkeypatch, script):
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text(f"#!/bin/sh\n{script}\n")
    nvidia_smi.chmod(nvidia_smi.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return grid_workers.devices()


def test_gpus_are_listed_without_torch(tmp_path, monkeypatch):
    assert listed_gpus(tmp_path, monkeypatch, "echo 0; echo 1") == ["0", "1"]
    assert listed_gpus(tmp_path, monkeypatch, "echo no driver; exit 9") == []
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert grid_workers.devices() == []


def test_hidden_gpus_are_not_used(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert grid_workers.devices() == []

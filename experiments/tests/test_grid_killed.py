"""Grids that are killed or interrupted, with real processes and signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedcopl.config import RunConfig
from fedcopl.run.folder import read_finished
from fedcopl_experiments.run_key import run_key
from grid_tools import RecordingWatcher, executions, store_of
from waiting import until

pytestmark = pytest.mark.slow
TESTS = (str(Path(__file__).parent), str(Path(__file__).parents[2] / "tests"))
SCRIPT = """
import sys
from pathlib import Path
sys.path += sys.argv[2:]
import fake_simulation
from grid_tools import RecordingWatcher, config_of
from fedcopl.errors import FedCoPLError
from fedcopl_experiments import grid_runner, grid_workers, run_key
from fedcopl_experiments.grid_runner import run_grid
grid_workers.START = fake_simulation.START
run_key.code_version = grid_runner.code_version = lambda: fake_simulation.CODE
runs = [config_of(1), config_of(2, "compute forever"), config_of(3, "compute forever")]
try:
    run_grid(runs, Path(sys.argv[1]), jobs=2, watcher=RecordingWatcher())
except FedCoPLError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def is_running(process):
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def busy_grid(tmp_path):
    """Start a grid in its own process group, with one run finished and two workers that compute forever."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), *TESTS]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while len(executions(tmp_path)) < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    yield process, {int(worker) for _, worker, *_ in executions(tmp_path)}
    process.kill()
    process.wait()
    process.stderr.close()


def wait_until_gone(workers):
    until(lambda: not any(is_running(worker) for worker in workers), lambda: "a worker still runs after its grid ended")


def test_workers_die_with_a_grid_that_is_killed(busy_grid):
    process, workers = busy_grid
    assert len(workers) == 2
    assert all(is_running(worker) for worker in workers)
    os.kill(process.pid, signal.SIGKILL)
    wait_until_gone(workers)


def test_ctrl_c_stops_cleanly_and_prints_how_to_continue(busy_grid, tmp_path):
    process, workers = busy_grid
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, which also signals the workers
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr == "stopped with 1 of 3 runs done; the same command continues\n"
    assert not any(is_running(worker) for worker in workers)
    assert [run.status for run in store_of(tmp_path).runs()] == ["done"]  # interrupted runs are not recorded as failed


# Real runs ----------------------------------------------------------------------------------------------------------

REAL = """
import sys
from pathlib import Path
sys.path += sys.argv[2:]
from test_grid_killed import PrintingWatcher, real_config
from fedcopl_experiments.grid_runner import run_grid
print(run_grid([real_config()], Path(sys.argv[1]), watcher=PrintingWatcher()), flush=True)
"""


class PrintingWatcher(RecordingWatcher):
    def progressed(self, key, round, rounds):
        print("round", round, flush=True)


def real_config():
    priors = {"logit_bias": False, "prototypes": False}  # estimated before the first round
    settings = {"rounds": 5, "data": {"clients": 2}, "train": {"epochs": 1}, "model": {"threads": 1}, "priors": priors}
    return RunConfig.from_mapping(settings, "test")


def accuracies(folder):
    """Return all measurements of every round except times."""
    outcome = read_finished(folder)
    kinds = ("macro", "weighted", "everywhere", "clients", "loss", "recall")
    return [outcome.zero_shot, *([getattr(record, kind) for kind in kinds] for record in outcome.rounds)]


def start(folder):
    return subprocess.Popen([sys.executable, "-c", REAL, str(folder), *TESTS], stdout=subprocess.PIPE, text=True)


def wait_for_round(process, number):
    """Wait until this number of rounds is finished; the next one has then begun."""
    for line in process.stdout:
        if line == f"round {number}\n":
            return
    raise AssertionError("the grid ended before it could be stopped")


def children(process):
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_kill_9_at_any_moment_changes_no_result(tmp_path):
    from fedcopl.simulation.simulate import simulate

    folder, key = tmp_path / "disturbed", run_key(real_config())
    grid = start(folder)
    wait_for_round(grid, 1)
    workers = children(grid.pid)
    grid.kill()
    grid.communicate()
    wait_until_gone(workers)
    assert store_of(folder).runs() == []

    second = start(folder)
    wait_for_round(second, 2)
    [worker] = children(second.pid)
    os.kill(worker, signal.SIGKILL)
    assert "its process was killed" in second.communicate()[0]
    assert store_of(folder).find(key).status == "failed"

    third = start(folder)
    printed = third.communicate()[0]
    assert "round 0\n" not in printed  # the run was resumed
    assert "failed={}" in printed

    simulate(real_config(), tmp_path / "undisturbed")
    assert accuracies(folder / "runs" / key) == accuracies(tmp_path / "undisturbed")
    assert store_of(folder).find(key).outcome == read_finished(folder / "runs" / key)
    assert (folder / "runs" / key / "report.html").exists()

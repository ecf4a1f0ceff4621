"""`fedcopl run`, as a user types it, in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from preloaded_processes import PreloadedProcess, run_preloaded
from small_digits import ONLY_LABEL_SHIFT

QUICK = ["rounds=2", "clients=3", "epochs=1", *ONLY_LABEL_SHIFT]


def from_nothing(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "fedcopl", *words], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    return from_nothing("run", *QUICK, cwd=folder), folder


def test_the_table_is_on_stdout_and_progress_on_stderr(told):
    process, folder = told
    assert process.returncode == 0, process.stderr
    assert "zero-shot CLIP" in process.stdout
    assert "last round (2)" in process.stdout
    assert "pseudo-label accuracy" in process.stdout
    assert "round 1/2" in process.stderr
    assert "round 1/2" not in process.stdout
    [run] = (folder / "runs").iterdir()
    assert run.name.endswith("-demo")
    assert str(run.relative_to(folder) / "report.html") in process.stdout


def test_the_table_shows_the_numbers_of_the_results(told):
    process, folder = told
    [run] = (folder / "runs").iterdir()
    results = json.loads((run / "results.json").read_text())
    for key in ("zero_shot", "final"):
        assert f"{100 * results[key]['macro']:.1f}" in process.stdout


def test_the_title_of_a_baseline_names_its_priors(tmp_path):
    words = ["rounds=1", "clients=2", "epochs=1", "method=promptfl", "labeler=fpl", "--out", "run"]
    process = run_preloaded("run", *words, *ONLY_LABEL_SHIFT, cwd=tmp_path)
    title = "PromptFL + FPL + priors (label shift)"
    notes = [
        line for line in process.stderr.splitlines() if line.startswith(f"note: this is {title}; PromptFL without")
    ]
    assert len(notes) == 1, process.stderr
    assert title in " ".join(process.stdout.split())
    assert json.loads((tmp_path / "run" / "results.json").read_text())["method"] == title
    assert f">{title}<" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_the_settings_of_a_run_can_be_run_and_json_is_one_object_and_equals_the_file(told, tmp_path):
    _, folder = told
    [run] = (folder / "runs").iterdir()
    words = [str(run / "settings.toml"), "rounds=1", "--json", "--out", str(tmp_path / "again"), "--seed", "3"]
    results = json.loads(run_preloaded("run", *words).stdout)
    assert results["settings"]["data"]["clients"] == 3
    assert results == json.loads((tmp_path / "again" / "results.json").read_text())
    assert results["seed"] == results["settings"]["seed"] == 3
    wanted = {
        "zero_shot",
        "final",
        "best",
        "pseudo_label_accuracy",
        "rounds",
        "clients",
        "seconds",
        "settings",
        "versions",
    }
    assert wanted <= set(results)


def test_a_dry_run_prints_an_estimate_and_writes_nothing(tmp_path):
    process = run_preloaded("run", "--dry-run", *QUICK, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    wall_time, computes = process.stdout.splitlines()
    assert wall_time.startswith("wall time") and "GB of memory, for 2 rounds of 1 epoch" in wall_time
    assert re.fullmatch(r"compute +[\d,]+ image encodings, [\d,]+ training steps", computes)
    assert list(tmp_path.iterdir()) == []


def test_resume_without_a_name_takes_the_newest(told):
    process, folder = told
    again = run_preloaded("run", "--resume", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[1:5] == process.stdout.splitlines()[1:5]


MISTAKES = {
    "a wrong setting": (["run", "round=3"], 2, "fedcopl: round: unknown setting; did you mean rounds?"),
    "a wrong value": (["run", "rounds=many"], 2, "fedcopl: command line: rounds: "),
    "no such file": (["run", "nothing.toml"], 2, "fedcopl: nothing.toml: there is no such settings file"),
    "a folder": (["run", "."], 2, "is a folder; for the images in it use data.source=folder"),
    "no such data": (["run", "source=digit"], 2, "data.source: unknown data set 'digit' (known: digits"),
    "no such model": (["run", "backbone=glyph"], 4, "glyph"),
    "nothing to resume": (["run", "--resume"], 7, "fedcopl: runs: has no run to resume"),
    "no such run": (["run", "--resume", "--out", "nope"], 7, "fedcopl: nope: has no run to resume"),
    "no workers": (
        ["run", "--workers", "0"],
        2,
        "fedcopl: --workers: should be auto or at least 1, not '0'",
    ),
    "Flower's own": (
        ["run", "--engine", "flower", "--workers", "2"],
        2,
        "--workers: cannot be set with --engine flower",
    ),
    "no earlier run": (["run", "--from", "."], 7, "has no run to continue: there is no settings.toml in it"),
    "no such option": (["run", "--outt", "x"], 2, "--outt"),
    "no such command": (["rum"], 2, "rum"),
}


@pytest.mark.parametrize(("words", "code", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_user_error_is_one_line_and_an_exit_code(tmp_path, words, code, message):
    process = run_preloaded(*words, cwd=tmp_path)
    assert process.returncode == code, process.stderr
    assert message in process.stderr
    assert "Traceback" not in process.stderr
    assert process.stdout == ""
    assert not list(tmp_path.glob("runs/*"))  # a mistake leaves no folder behind


def test_ctrl_c_prints_how_to_continue(tmp_path):
    words = ["rounds=500", "clients=2", "epochs=1", *ONLY_LABEL_SHIFT, "--out", "run"]
    process = PreloadedProcess(["run", *words], tmp_path)
    while not (tmp_path / "run" / "rounds.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    messages = process.stdout.read().decode()
    assert process.wait() == 130
    assert "fedcopl: stopped; continue with: fedcopl run --out run --resume" in messages
    assert "Traceback" not in messages


def test_help_and_version():
    shown = run_preloaded("run", "--help").stdout
    assert "CONFIG.toml" in shown
    assert "settings that override it" in " ".join(shown.split())  # the help of an argument
    assert from_nothing("--version").stdout.startswith("fedcopl 0.")

"""The command `fedcopl reproduce` from its arguments to its output."""

import csv
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console
from rich.progress import Progress

from fedcopl import cli
from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError
from fedcopl.run.record import Outcome, RoundRecord
from fedcopl_experiments.commands.grid_display import GridBarWatcher, GridLineWatcher, GridProgress, duration, watch
from fedcopl_experiments.commands.reproduce import read_seeds
from waiting import WAIT_LIMIT

COMMAND = [sys.executable, "-m", "fedcopl", "reproduce"]


@pytest.fixture
def typed(monkeypatch, capsys, tmp_path):
    """Run a command in an empty folder; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fedcopl", "reproduce", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return run


def test_without_a_name_all_experiments_are_listed(typed):
    code, out, err = typed()
    assert (code, err) == (0, "next: fedcopl reproduce table1 --dry-run\n")
    for name in ("table1", "table11", "fig-drift", "sweep-tau", "all"):
        assert any(line.startswith(f"{name} ") for line in out.splitlines())


USER_ERRORS = {
    "a name": (["tabel1"], "tabel1: there is no such table or figure"),
    "a scale": (
        ["table1", "--scale", "large"],
        "--scale: there is no scale 'large' (known: smoke, short, demo, paper)",
    ),
    "seeds": (
        ["table1", "--seeds", "many"],
        "--seeds: should be a number of seeds, as 5, or a list, as 1,2,3 (given: 'many')",
    ),
    "a data set": (["table1", "--dataset", "birds"], "--dataset: there is no data set 'birds'"),
    "a data set of another table": (
        ["table4", "--scale", "paper", "--dataset", "cifar10"],
        "--dataset: table4 has no cells with cifar10",
    ),
    "a page": (["grid", "--update", "nowhere.md"], "--update: nowhere.md: cannot be read"),
}


@pytest.mark.parametrize(("words", "message"), USER_ERRORS.values(), ids=USER_ERRORS)
def test_user_error_is_one_line_before_any_run(typed, tmp_path, words, message):
    code, out, err = typed(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"fedcopl: {message}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (1, 2, 3)), ("4,2", (4, 2)), ("7,", (7,)), ("0,1", (0, 1)), ("1, 1", (1,))]
)
def test_seeds(text, seeds):
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "a,1", ",", "²"])
def test_no_seeds(text):
    with pytest.raises(ConfigError):
        read_seeds(text)


def test_dry_run_lists_runs_cost_and_missing_parts(typed, tmp_path):
    code, out, _ = typed("table5", "--scale", "paper", "--dataset", "dtd", "--dry-run")
    assert code == 0
    assert "fedcopl-copl-dtd-no-entropy-filter, dirichlet 0.1, ViT-B/32" in out
    assert "0 of 3" in out
    assert "15 runs, 0 done, 15 to run\n" in out
    assert "times: 0 from stored runs, 0 measured here, 15 unknown" in out
    assert "missing: data: data/dtd: there is no such folder" in out
    assert list(tmp_path.iterdir()) == []


def test_draw_only_runs_nothing(typed, tmp_path):
    code, out, _ = typed("table6", "fig-clients", "--draw-only", "--scale", "paper", "--dataset", "dtd")
    assert code == 0
    assert "47.34†" in out  # the paper's number, marked as doubtful
    assert "fig-clients" in out  # with the paper's points only
    assert (tmp_path / "results/paper/table6.tex").exists()
    assert not (tmp_path / "results/runs").exists()


def test_figure_without_numbers_is_reported(typed, tmp_path):
    _, out, _ = typed("fig-clients", "--draw-only")
    assert "fig-clients: nothing to draw yet" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_failed_runs_are_listed_and_the_rest_is_drawn(typed, tmp_path):
    code, out, err = typed("table6", "--scale", "paper", "--dataset", "dtd", "--seeds", "1", "--data", "nowhere")
    assert code == 1
    assert "4 of 4 runs failed; the same command repeats them:" in err
    assert "and 3 more: nowhere/dtd: there is no such folder" in err
    assert "Traceback" not in err
    assert "–: 4 of 4 numbers have no run yet." in out
    assert "47.34†" in (tmp_path / "results/paper/table6.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [[], ["--jobs", "2"]], ids=["one run with two workers", "two runs at once"])
def test_table_from_runs_to_files_and_no_run_twice(typed, tmp_path, jobs, monkeypatch):
    monkeypatch.setenv("FEDCOPL_WORKERS", "2")
    words = ["table6", "fig-drift", "--scale", "smoke", *jobs]
    first = subprocess.run(
        [*COMMAND, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=WAIT_LIMIT
    )
    assert first.returncode == 0, first.stderr
    assert "4 runs, 0 of them finished before" in first.stderr
    assert "4/4" in first.stderr
    with (tmp_path / "results/smoke/table6.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["seeds"] for row in rows] == ["1"] * 4
    assert all(f"{float(row['mean']):.1f}" in first.stdout for row in rows)
    assert (tmp_path / "results/smoke/fig-drift.pdf").exists()
    code, again, err = typed(*words)
    assert "4 runs, 4 of them finished before" in err
    assert (code, again) == (0, first.stdout)


def test_ctrl_c_prints_how_to_continue(tmp_path):
    process = subprocess.Popen([*COMMAND, "table2"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert "27 runs, 0 of them finished before" in process.stderr.readline()
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "fedcopl: stopped with 0 of 27 runs done; the same command continues" in err
    assert "Traceback" not in err


def outcome(macro=0.5):
    return Outcome(rounds=(RoundRecord(round=0, macro=macro),), seconds=100.0)


def test_one_line_for_every_run():
    console = Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115
    lines = GridLineWatcher(console)
    lines.planned(3, 1)
    lines.started("a", RunConfig(name="one", seed=4))
    lines.progressed("a", 5, 10)
    lines.finished("a", outcome())
    lines.started("b", RunConfig(name="two"))
    lines.failed("b", "[red]no[/red]")
    err = console.export_text().splitlines()
    assert err[0] == "3 runs, 1 of them finished before"
    assert err[1].startswith("2/3 one, dirichlet 0.1, glyph-clip, seed 4: accuracy 50.0 %, 2 min; about")
    assert err[2].startswith("3/3 two, dirichlet 0.1, glyph-clip, seed 1: failed: [red]no[/red]; about 0 s left")


def test_progress_bars_advance_and_disappear():
    console = Console(file=open(os.devnull, "w"), width=120, force_terminal=True)  # noqa: SIM115
    with Progress(console=console) as progress:
        bars = GridBarWatcher(progress)
        bars.planned(2, 0)
        bars.started("a", RunConfig(name="one", rounds=10))
        bars.progressed("a", 5, 10)
        assert progress.tasks[0].completed == 0.5
        assert progress.tasks[1].completed == 5
        bars.finished("a", outcome(None))
        assert [task.completed for task in progress.tasks] == [1]
        bars.finished("by another grid", outcome())
        assert progress.tasks[0].completed == 2


def test_no_progress_bars_without_a_terminal(capsys):
    with watch() as watcher:
        assert isinstance(watcher, GridLineWatcher)


def test_time_left_counts_runs_of_this_call_only(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("fedcopl_experiments.commands.grid_display.time.monotonic", lambda: now[0])
    progress = GridProgress()
    progress.plan(total=10, done_before=4)
    assert progress.time_left == "time left unknown"
    progress.start("a", RunConfig())
    progress.progress("a", 0.5)
    now[0] += 30  # half a run in half a minute: 5.5 runs are left
    assert progress.time_left == "about 6 min left"


@pytest.mark.parametrize(
    ("seconds", "text"), [(89, "89 s"), (91, "2 min"), (5399, "90 min"), (5400, "1.5 h"), (200_000, "2 days")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text

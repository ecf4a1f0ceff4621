"""`fedcopl report` as a person types it."""

import json
import shutil
import subprocess
import sys
import webbrowser

import pytest

from fedcopl.cli import main
from fedcopl.config import RunConfig, override
from fedcopl.report.run_page import write_report
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.simulation.simulate import simulate
from report.sample_results import sample_results, so_far, write_run
from small_digits import small_digits

QUICK = ["rounds=2", "clients=2", "refresh_every=1", "epochs=1", "threads=1", "method=promptfl"]


@pytest.fixture
def fedcopl(monkeypatch, capsys, tmp_path):
    """Run the command in this process: (exit code, what it printed, what it complained about)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fedcopl", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, *capsys.readouterr()

    return run


CONFIG = RunConfig.from_mapping(override({}, QUICK), "test")


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A whole run as the simulation leaves it."""
    folder = tmp_path_factory.mktemp("runs") / "quick"
    simulate(CONFIG, folder, dataset=small_digits())
    write_report(folder)
    return folder


def test_the_report_can_be_written_again_from_the_folder(real, fedcopl, tmp_path):
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("results.json", "examples.json"):
        shutil.copy(real / name, moved)
    assert fedcopl("report", moved) == (0, f"{moved / 'report.html'}\n", "")
    page = (moved / "report.html").read_bytes()
    assert page == (real / "report.html").read_bytes()
    assert page.count(b"data:image/png;base64,") > 10


def test_the_next_commands_follow_the_page(real, fedcopl, tmp_path):
    code, _, following = fedcopl("report", real, "--out", tmp_path / "page.html")
    assert code == 0
    assert following.splitlines() == [
        f"next: fedcopl review {real} --client client-0",
        f"      or fedcopl predict PHOTOS -c {real} --client client-0",
    ]


def test_the_real_results_have_all_that_the_page_shows(real):
    page = (real / "report.html").read_text(encoding="utf-8")
    for place in ("result", "classes", "examples", "research", "rounds", "labels", "balance", "drift", "cost"):
        assert f' id="{place}"' in page
    assert "averages their text prompts" in page
    assert "Wall time: " in page
    results = json.loads((real / "results.json").read_text())
    assert len(results["zero_shot"]["recall"]) == 10
    assert not (real / "progress.json").exists()


class Stop(ProgressReporter):
    def round_done(self, record):
        raise KeyboardInterrupt


def test_a_stopped_run_has_a_report(fedcopl, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        simulate(CONFIG, tmp_path / "run", progress=Stop(), dataset=small_digits())
    assert fedcopl("report", "run") == (0, "run/report.html\n", "next: fedcopl watch run\n")
    page = (tmp_path / "run/report.html").read_text(encoding="utf-8")
    assert "<b>Not finished:</b> 1 of 2" in page
    assert "client-1" in page
    simulate(CONFIG, tmp_path / "run", resume=True, dataset=small_digits())
    assert fedcopl("report", "run")[0] == 0
    assert "Not finished" not in (tmp_path / "run/report.html").read_text(encoding="utf-8")


def test_out_names_the_page(fedcopl, tmp_path):
    run = write_run(tmp_path / "run", sample_results())
    code, told, _ = fedcopl("report", "run", "--out", "pages/mine.html")
    assert (code, told) == (0, "pages/mine.html\n")
    assert (tmp_path / "pages/mine.html").is_file()
    assert not (run / "report.html").exists()


def test_several_runs_are_compared(fedcopl, tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / "runs" / name, sample_results(name=name, settings={"data": {"beta": len(name)}}))
    assert fedcopl("report", "runs/one", "runs/two") == (0, "comparison.html\n", "next: fedcopl report runs/one\n")
    page = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "FedCoPL comparison" in page
    assert not (tmp_path / "runs/one/report.html").exists()
    assert fedcopl("report", "runs", "--out", "all.html") == (0, "all.html\n", "next: fedcopl report runs/one\n")
    assert (tmp_path / "all.html").read_text(encoding="utf-8") == page


def test_a_run_named_twice_is_one_run(fedcopl, tmp_path):
    write_run(tmp_path / "runs" / "only", sample_results())
    assert fedcopl("report", "runs", "runs/only", "runs/../runs")[1] == "runs/only/report.html\n"


def test_runs_in_a_folder_without_a_finished_round_are_skipped(fedcopl, tmp_path):
    write_run(tmp_path / "runs" / "going", so_far(sample_results(), 3), "progress.json")
    write_run(tmp_path / "runs" / "done", sample_results())
    (tmp_path / "runs/begun").mkdir()
    (tmp_path / "runs/begun/settings.toml").touch()
    code, told, notes = fedcopl("report", "runs")
    assert (code, told) == (0, "comparison.html\n")
    note = "note: runs/begun: no round of this run is finished, so there is nothing to report yet\n"
    assert notes == f"{note}next: fedcopl report runs/done\n"
    code, told, notes = fedcopl("report", "runs/begun", "runs/done")
    assert (code, told) == (7, "")
    assert notes.startswith("fedcopl: runs/begun: no round of this run is finished")


@pytest.mark.parametrize("opens", [True, False])
def test_open_opens_the_page(fedcopl, tmp_path, monkeypatch, opens):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or opens)
    write_run(tmp_path / "a run", sample_results())
    _, told, notes = fedcopl("report", "a run", "--open")
    assert told == "a run/report.html\n"
    assert opened == [(tmp_path / "a run/report.html").as_uri()]
    assert notes == ("" if opens else "note: the page was not opened: there is no browser\n")


def begun(folder):
    folder.mkdir()
    (folder / "settings.toml").touch()


def damaged(folder):
    folder.mkdir()
    (folder / "results.json").write_text('{"name": "x", ')


def sealed(folder):
    write_run(folder, sample_results())
    (folder / "report.html").mkdir()


MISTAKES = {
    "no such folder": (lambda folder: None, "x: there is no such folder; name the folder of a run"),
    "a file": (lambda folder: folder.touch(), "x: is a file, not a folder; name the folder of a run"),
    "not a run": (lambda folder: folder.mkdir(), "x: has no run: there is no results.json or settings.toml"),
    "nothing yet": (begun, "x: no round of this run is finished, so there is nothing to report yet"),
    "damaged": (damaged, "x/results.json: is damaged: Expecting property name"),
    "cannot be written": (sealed, "x/report.html: cannot be written: Is a directory"),
}


@pytest.mark.parametrize(("prepare", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_user_error_is_one_line_and_an_exit_code(fedcopl, tmp_path, prepare, message):
    prepare(tmp_path / "x")
    code, told, complaint = fedcopl("report", "x")
    assert (code, told) == (7, "")
    assert complaint.startswith(f"fedcopl: {message}")
    assert complaint.count("\n") == 1


def test_without_a_run_it_says_what_is_missing(fedcopl):
    code, told, complaint = fedcopl("report")
    assert (code, told) == (2, "")
    assert "RUN" in complaint


def test_it_needs_neither_torch_nor_flower(tmp_path):
    run = write_run(tmp_path / "run", sample_results())
    script = (
        "import sys; from fedcopl.cli import main\n"
        f"sys.argv = ['fedcopl', 'report', {str(run)!r}]\n"
        "try: main()\n"
        "except SystemExit as left: assert not left.code\n"
        "print({'torch', 'flwr'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == [str(run / "report.html"), "set()"]

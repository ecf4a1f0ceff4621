"""`fedcopl review` as a person types it."""

import json
import os
import shlex
import signal
import subprocess
import sys

import httpx
import pytest

from fedcopl.cli import main
from fedcopl.config import Data
from fedcopl.data.catalog import load_dataset
from fedcopl.errors import RunFolderError
from fedcopl.report.label_free import read_reviews
from fedcopl.review.expert_answers import Answers, NewAnswer
from fedcopl.review.images import open_gallery
from fedcopl.review.sample_survey import SAMPLE, SampleSurvey
from local_page.run_folder import make_run
from preloaded_processes import run_preloaded
from waiting import WAIT_LIMIT


@pytest.fixture
def typed(monkeypatch, capsys):
    """Type a command: its exit code, what it printed, what it complained."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["fedcopl", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        told = capsys.readouterr()
        return left.value.code or 0, told.out, told.err

    return run


@pytest.fixture
def run(tmp_path):
    make_run(tmp_path / "run")
    return tmp_path / "run"


def answer_some(folder, wrong=1, right=4):
    survey = SampleSurvey(open_gallery(folder, None), Answers(folder, "site"))
    for place, number in enumerate(survey.numbers(SAMPLE)[: wrong + right]):
        label = int(survey.gallery.predictions.label[number])
        said = survey.gallery.classes[(label + (place < wrong)) % len(survey.gallery.classes)]
        survey.answers.add(NewAnswer(survey.gallery.names[number], "", "", "class", said, survey.plan_round))


def test_the_score_on_the_terminal(typed, run):
    answer_some(run)
    code, out, _ = typed("review", run, "--score")
    assert code == 0
    lines = dict(line.split("  ", 1) for line in out.splitlines())
    assert lines["random sample"].strip() == "4 of 5 right"
    assert lines["client"].strip() == "site, 12 images" and lines["labels"].strip() == "of the refresh in round 3"
    assert lines["accuracy"].strip() == "80.0 %"
    assert lines["all answers"].strip() == "5, 1 corrected"


def test_the_report_reads_the_estimate_of_the_review(typed, run):
    answer_some(run)
    err = typed("review", run, "--score")[2]
    assert f"next: fedcopl report {run}" in err
    told = json.loads(typed("review", run, "--score", "--json")[1])
    (kept,) = read_reviews(run)
    assert (kept.client, kept.reviewed) == ("site", 5)
    assert (kept.share, kept.low, kept.high) == (told["share"], told["low"], told["high"])
    (run / "review" / "site.json").write_text('{"client": "site"}')
    with pytest.raises(RunFolderError, match=r"site\.json: is damaged"):
        read_reviews(run)


def test_the_score_as_json_has_the_same_numbers(typed, run):
    answer_some(run)
    told = json.loads(typed("review", run, "--score", "--json")[1])
    assert (told["reviewed"], told["right"], told["corrected"], told["images"]) == (5, 4, 1, 12)
    assert told["low"] < told["share"] < told["high"]
    assert sum(one["reviewed"] for one in told["classes"]) == 5


def test_the_score_before_any_answer(typed, run):
    assert "unknown: no image of the random sample has an answer yet" in typed("review", run, "--score")[1]
    told = json.loads(typed("review", run, "--score", "--json")[1])
    assert told["share"] is None
    assert not (run / "review").exists()  # asking leaves nothing behind


def test_export_and_manifest(typed, run, tmp_path):
    answer_some(run)
    code, _, err = typed("review", run, "--export", tmp_path / "a.csv", "--manifest", tmp_path / "m.csv")
    again = typed("review", run, "--export", tmp_path / "a.csv")
    assert (again[0], again[2]) == (
        7,
        f"fedcopl: {tmp_path}/a.csv: already exists; choose another name, or add --overwrite\n",
    )
    assert typed("review", run, "--export", tmp_path / "a.csv", "--overwrite")[0] == 0
    assert code == 0
    assert (tmp_path / "a.csv").read_text().count("\n") == 6
    settings = dict(pair.split("=") for pair in shlex.split(err.splitlines()[-1]) if "=" in pair)
    assert f"next: fedcopl run {shlex.quote(str(run / 'settings.toml'))} " in err  # the same model, sentence and so on
    assert settings["data.clients"] == "1"
    path, classes = settings["data.path"], settings["data.classes_file"]
    dataset = load_dataset(Data(source=settings["data.source"], path=path, classes_file=classes))
    assert (len(dataset.test), len(dataset.train)) == (5, 7)


MISTAKES = {
    "no such folder": (["nowhere"], 7, "fedcopl: nowhere: there is no such folder"),
    "a folder that is no run": (["."], 7, "has no labels"),
    "no such client": (["run", "--client", "x"], 7, "has no client x; its clients are: site"),
    "nothing to write down": (["run", "--manifest", "m.csv"], 3, "no image of the random sample has an answer"),
    "no such port": (["run", "--port", "70000"], 2, "65535"),
}


@pytest.mark.parametrize(("words", "code", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_user_error_is_one_line_and_an_exit_code(typed, run, monkeypatch, words, code, message):
    monkeypatch.chdir(run.parent)
    left, out, err = typed("review", *words)
    assert (left, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


WEB = [f"fedcopl.local_page.{name}" for name in ("serving", "access")]


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
@pytest.mark.parametrize("command", ["review", "watch"])
def test_without_the_extra_it_says_what_to_install(typed, run, monkeypatch, package, command):
    for name in WEB:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = typed(command, run)
    assert code == 2
    assert f"fedcopl {command} needs {package}" in err
    assert "pip install 'fedcopl[web]'" in err and "labels of" not in err  # before any work
    if command == "review":
        assert typed("review", run, "--score")[0] == 0  # this needs no page


def test_help_loads_no_server():
    check = "import fedcopl.cli, sys; print({'starlette', 'uvicorn', 'torch'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"


def start(*words):
    command = [sys.executable, "-m", "fedcopl", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_whole_visit_and_ctrl_c(run):
    process = start("review", run)
    address = process.stdout.readline().strip()
    with httpx.Client() as browser:
        assert browser.get(address.split("?")[0]).status_code == 403
        assert browser.get(address).status_code == 200
        page = browser.get(address.split("?")[0])
    assert "Is this" in page.text
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_LIMIT)
    assert process.returncode == 130
    assert out == ""
    shown, first, last = err.splitlines()
    assert shown.startswith("labels of the refresh in round 3; the finished classifier cannot be used")
    assert first == "site: 12 images. Open this address; Ctrl-C to stop."
    assert last == "fedcopl: stopped; there is no answer"


@pytest.mark.slow
def test_a_taken_port_is_one_line(run):
    first = start("review", run)
    port = first.stdout.readline().split(":")[2].split("/")[0]
    second = run_preloaded("review", str(run), "--port", port)
    os.kill(first.pid, signal.SIGINT)
    first.communicate(timeout=WAIT_LIMIT)
    assert second.returncode == 2
    assert f"fedcopl: --port {port}: cannot be used" in second.stderr
    assert "Traceback" not in second.stderr


def test_the_origin_of_the_labels_is_printed(typed, run):
    why = "; the finished classifier cannot be used: the run is not finished"
    assert typed("review", run, "--score")[2].splitlines() == [
        f"labels of the refresh in round 3{why}",
        f"next: fedcopl review {run} --client site",
    ]
    refreshed = typed("review", run, "--score", "--labels", "refresh")[2]
    assert refreshed.splitlines()[0] == "labels of the refresh in round 3"


def test_a_second_reviewers_answers(typed, run, tmp_path):
    survey = SampleSurvey(open_gallery(run, None), Answers(run, "site"))
    for name, kind, label in (("000.png", "class", "cat"), ("001.png", "none", None), ("002.png", "class", "dog")):
        survey.answers.add(NewAnswer(name, "", "", kind, label))
    other = tmp_path / "second.csv"
    other.write_text(
        "file,pseudo label,label,when,digest\n000.png,cat,cat,,\n001.png,cat,'-x,,\n002.png,cat,(cannot tell),,\n"
        f"003.png,cat,horse,,{survey.gallery.digest(3)}\n004.png,cat,(none of the classes),,\n005.png,cat,dog,,0123\n"
        "nobody.png,cat,cat,,\n"
    )
    code, out, _ = typed("review", run, "--merge", other)
    assert code == 0
    assert out.splitlines() == [
        f"{other}: 2 answers added, 1 agree, 1 differ and are not used",
        "  002.png: kept dog, not (cannot tell)",
        "  001.png: skipped: the run has no class '-x'",
        "  005.png: skipped: the image of this client differs from the one that the other reviewer saw",
        "  nobody.png: skipped: this client has no such image",
    ]
    now = survey.answers.current()
    assert {name: (now[name].kind, now[name].label) for name in ("002.png", "003.png", "004.png")} == {
        "002.png": ("class", "dog"),
        "003.png": ("class", "horse"),
        "004.png": ("none", None),
    }
    assert not now["003.png"].sampled  # so it counts in no estimate
    assert typed("review", run, "--merge", other)[1].startswith(f"{other}: 0 answers added, 3 agree, 1 differ")

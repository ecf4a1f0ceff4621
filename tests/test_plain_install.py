"""The program as users install it: wheels in a fresh environment without extras, with the newest dependencies.

`make test-install` runs this file alone. It needs a package index, as `make demo` does, and takes two minutes.
"""

import json
import os
import re
import signal
import subprocess
import tarfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from PIL import Image

from release_check import ENVIRONMENT, QUICK, build, check_contents, install
from waiting import WAIT_LIMIT, until

pytestmark = pytest.mark.slow


class PlainInstall:
    """The program `fedcopl` of a fresh environment, with a working directory."""

    def __init__(self, scratch: Path):
        self.wheel, experiments, self.sdist = build(scratch)
        self.folder = scratch / "work"
        self.bin = install(scratch / "venv", self.wheel, experiments)
        self.folder.mkdir()
        (self.folder / "photos").mkdir()
        for number in range(3):
            Image.new("L", (32, 32), 60 * number).save(self.folder / "photos" / f"{number}.png")
        (self.folder / "classes.txt").write_text("zero\none\n")
        # Two workers, so that simulations fork also on a machine with one core.
        self.environment = {**ENVIRONMENT, "COLUMNS": "100", "FEDCOPL_WORKERS": "2", "HOME": str(scratch)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.bin / "fedcopl", *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.wait(self.start(*words))

    def wait(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        with process:
            try:
                out, err = process.communicate(timeout=WAIT_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert "Traceback" not in out + err, err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def fedcopl():
    with TemporaryDirectory(prefix="fedcopl-plain-") as scratch:  # pytest would keep its gigabytes
        yield PlainInstall(Path(scratch))


@pytest.fixture(scope="module")
def run(fedcopl):
    ended = fedcopl("run", *QUICK, "-o", "run")
    assert ended.returncode == 0, ended.stderr
    assert "zero-shot CLIP" in ended.stdout and "next: fedcopl review run --client client-0" in ended.stderr
    return "run"


def test_no_extra_is_installed(fedcopl):
    script = (
        "from importlib.metadata import version\n"
        "from importlib.util import find_spec\n"
        "extras = 'flwr ray starlette uvicorn onnx onnxruntime pyarrow datasets pydicom cryptography'\n"
        "print([name for name in extras.split() if find_spec(name)], version('typer'))"
    )
    printed = subprocess.run(
        [fedcopl.bin / "python", "-c", script], capture_output=True, text=True, check=True, env=fedcopl.environment
    ).stdout
    extras, typer = printed.rsplit(maxsplit=1)
    assert extras == "[]"
    assert tuple(map(int, typer.split(".")[:2])) >= (0, 29), "users get a newer version of typer"


def test_the_files_in_wheel_and_sdist(fedcopl):
    check_contents(fedcopl.wheel)
    with tarfile.open(fedcopl.sdist) as sdist:
        inside = {name.split("/", 1)[-1] for name in sdist.getnames()}
    assert {"pyproject.toml", "src/fedcopl/demo.toml", "experiments/pyproject.toml"} <= inside


ALL_HELP = """
import sys
from typer.main import get_command
from fedcopl.cli import app, main

def show_help(words, command):
    sys.argv = ["fedcopl", *words, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
    for name, below in getattr(command, "commands", {}).items():
        show_help([*words, name], below)

show_help([], get_command(app))
"""


def test_every_help_page(fedcopl):
    pages = subprocess.run(
        [fedcopl.bin / "python", "-c", ALL_HELP], capture_output=True, text=True, env=fedcopl.environment
    )
    assert pages.returncode == 0, pages.stderr
    assert pages.stdout.count("Usage: fedcopl ") > 30
    assert re.findall("<(?:bool|list|str|int|float|path)", pages.stdout, re.IGNORECASE) == []
    assert "Usage: fedcopl reproduce" in pages.stdout


def test_help_of_the_installed_program(fedcopl):
    page = fedcopl("run", "--help")
    assert page.returncode == 0 and page.stdout.startswith("Usage: fedcopl run [OPTIONS] [CONFIG.toml] [key=value ...]")
    alone = fedcopl()
    assert alone.returncode == 2 and "Commands" in alone.stdout + alone.stderr


ERRORS = {  # arguments: exit code, beginning of the one line of stderr
    "rnu": (2, "rnu: is not a command; did you mean run?"),
    "models chekc": (2, "chekc: is not a command; did you mean check?"),
    "run --rounds 2": (2, "--rounds: is not an option of fedcopl run; did you mean rounds=VALUE?"),
    "run rounds=x": (2, "command line: rounds: should be a whole number, not 'x'"),
    "run method=fedcpol": (2, "method: unknown method 'fedcpol'"),
    "run --engine x": (2, "--engine: should be local or flower, not x"),
    "run --plugin none.py": (2, "none.py: there is no such file; --plugin names a Python file"),
    "new": (2, "FOLDER: is missing; see fedcopl new --help"),
    "predict photos": (2, "--classifier: is missing"),
    "predict photos --top -1 -c run": (2, "--top: should be at least 0, not -1"),
    "predict photos --zero-shot": (2, "--zero-shot: needs --classes FILE"),
    "export nowhere -o out": (7, "nowhere: there is no such folder; name the folder of a finished run"),
    "report nowhere": (7, "nowhere: there is no such folder"),
    "doctor nowhere": (2, "nowhere: there is no such file or folder"),
    "data check nowhere": (2, "data.source: unknown data set 'nowhere'"),
    "reproduce tabel1": (2, "tabel1: there is no such table or figure"),
    "reproduce table1 --jobs x": (2, "--jobs: should be at least 1, not x"),
    "results --place nowhere": (7, "nowhere/results.sqlite: there are no results"),
}
WITHOUT_EXTRAS = {  # arguments: the extra that the message names
    "server": "flower",
    "join --images photos": "flower",
    "status": "flower",
    "admit package": "flower",
    "run --engine flower": "flower-simulation",
    "run privacy.secure_aggregation=true": "privacy",
    "privacy --noise-multiplier 1": "privacy",
    "watch photos": "web",
    "data check huggingface name": "datasets",
    "data check table.parquet": "parquet",
}


RUN_EACH = """
import json, os, sys, tempfile
import torch  # imported once, as the command line is; each process imports our other modules of its command
import fedcopl.cli
from fedcopl.__main__ import main

def run(words):
    streams = [tempfile.TemporaryFile() for _ in range(2)]
    process = os.fork()
    if process == 0:
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream.fileno(), number)
        sys.argv = ["fedcopl", *words.split()]
        main()
        raise RuntimeError("main() returned")
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code, *(stream.read().decode() for stream in streams if stream.seek(0) == 0)

print(json.dumps({words: run(words) for words in sys.argv[1:]}))
"""


@pytest.fixture(scope="module")
def results(fedcopl):
    """Return exit code, stdout and stderr of each command; each runs in a forked process, which saves the imports."""
    (fedcopl.folder / "table.parquet").touch()
    process = subprocess.run(
        [fedcopl.bin / "python", "-c", RUN_EACH, *ERRORS, *WITHOUT_EXTRAS],
        cwd=fedcopl.folder,
        env=fedcopl.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize("words", ERRORS)
def test_an_error_is_one_line(results, words):
    (code, out, err), (expected, line) = results[words], ERRORS[words]
    assert (code, out) == (expected, "")
    assert err.startswith(f"fedcopl: {line}") and err.count("\n") == 1


@pytest.mark.parametrize("words", WITHOUT_EXTRAS)
def test_a_missing_extra_is_one_line_that_names_it(results, words):
    code, out, err = results[words]
    assert code != 0 and out == "" and "Traceback" not in err
    assert f"pip install 'fedcopl[{WITHOUT_EXTRAS[words]}]'" in err.splitlines()[-1]


def test_an_error_of_a_newly_started_process(fedcopl):
    for words in ("rnu", "server"):
        fresh = fedcopl(words)
        assert fresh.returncode == 2 and fresh.stdout == "" and fresh.stderr.count("\n") == 1


def test_predict_report_and_export(fedcopl, run):
    exported = fedcopl("export", run, "--client", "client-0", "-o", "classifier")
    assert exported.stdout == "classifier\n", exported.stderr
    assert exported.stderr.startswith("in Python:\n  from fedcopl import Classifier\n")
    assert exported.stderr.endswith("\nnext: fedcopl predict PHOTOS -c classifier -o predictions.csv\n")
    again = fedcopl("export", run, "--client", "client-0", "-o", "classifier")
    assert again.returncode == 7 and again.stderr.startswith("fedcopl: classifier: ")
    for words in (["-c", "classifier"], ["-c", run, "--client", "client-1"]):
        predicted = fedcopl("predict", "photos", *words)
        assert predicted.returncode == 0 and predicted.stdout.count("\n") == 4, predicted.stderr
    assert fedcopl("report", run, "-o", "page.html").stdout == "page.html\n"
    onnx = fedcopl("export", run, "--client", "client-0", "-o", "other", "--onnx")
    assert onnx.returncode == 4 and "pip install 'fedcopl[onnx]'" in onnx.stderr


def test_predict_without_a_run(fedcopl):
    words = ["predict", "photos", "--zero-shot", "--classes", "classes.txt", "--backbone", "glyph-clip"]
    ended = fedcopl(*words, "-o", "zero.csv")
    assert ended.returncode == 0, ended.stderr
    rows = (fedcopl.folder / "zero.csv").read_text().splitlines()[1:]
    labels = [row.split(",")[1] for row in rows]
    summary, counts, following = ended.stderr.splitlines()
    assert summary.startswith("3 images") and following == "next: fedcopl new STUDY"
    assert dict(part.split(": ") for part in counts.split(", ")) == {
        label: str(labels.count(label)) for label in set(labels)
    }


def test_a_study_from_its_first_command(fedcopl):
    assert fedcopl("new", "study", "--backbone", "glyph-clip").stderr == "next: cd study && fedcopl doctor\n"
    doctor = fedcopl("doctor", "study")
    assert doctor.returncode == 1 and doctor.stderr.startswith("next: fix the problems above")
    assert "PROBLEM data: images: there is no such folder" in doctor.stdout
    machine = fedcopl("doctor")
    assert machine.returncode == 0 and "pip install 'fedcopl[flower]'" in machine.stdout


PLUGIN = """
import numpy as np
from fedcopl.algorithm.select import select
from fedcopl.labelers import Labeler
from fedcopl.methods.fedcopl import FedCoPL


class TopFew(Labeler):
    title = "Top few"

    def quota(self, counts, images, request):
        return np.full_like(counts, 2)

    def select(self, log_probs, quota):
        return select(log_probs, quota)


class Mine(FedCoPL):
    title = "Mine"


METHODS, LABELERS = {"mine": Mine}, {"top-few": TopFew}
"""


def test_a_plugin_is_needed_in_each_process(fedcopl):
    (fedcopl.folder / "plugin.py").write_text(PLUGIN)
    option = ["--plugin", "plugin.py"]
    trained = fedcopl("run", *option, "method=mine", "labeler=top-few", *QUICK, "-o", "plugged")
    assert trained.returncode == 0, trained.stderr
    assert "Mine + Top few" in trained.stdout
    for words in (["predict", "photos", "-c", "plugged"], ["export", "plugged", "-o", "plugged-classifier"]):
        without = fedcopl(*words, "--client", "client-0")
        assert without.returncode == 2 and without.stderr.count("\n") == 1
        assert "unknown method 'mine'" in without.stderr and "add --plugin FILE.py" in without.stderr
        assert fedcopl(*words, "--client", "client-0", *option).returncode == 0
    assert fedcopl("predict", "photos", "-c", "plugged-classifier", *option).returncode == 0
    assert "mine" in fedcopl("methods", *option).stdout


def test_a_table_of_the_paper_with_the_default_number_of_jobs(fedcopl):
    ended = fedcopl("reproduce", "table6", "--scale", "smoke")  # four runs
    assert ended.returncode == 0, ended.stderr
    assert "written to results/smoke" in ended.stdout


@pytest.mark.parametrize("seconds", [0, 0.4])
@pytest.mark.parametrize("words", ["run", "doctor"])
def test_ctrl_c_during_imports(fedcopl, words, seconds):
    process = fedcopl.start(words)
    wait_until_loaded(process, "pydantic_core")  # earlier, Python itself is starting
    time.sleep(seconds)
    ended = interrupt(fedcopl, process)
    assert ended.returncode == 130 and ended.stderr.splitlines()[-1].startswith("fedcopl: stopped")


def test_ctrl_c_in_a_run_that_is_resumed(fedcopl):
    process = fedcopl.start("run", "rounds=6", "train.epochs=1", "-o", "stopped")
    assert any(line.startswith("round 1/6") for line in process.stderr)
    ended = interrupt(fedcopl, process)
    assert ended.returncode == 130
    assert ended.stderr == "fedcopl: stopped; continue with: fedcopl run --out stopped --resume\n"
    assert fedcopl("run", "--out", "stopped", "--resume").returncode == 0


@pytest.mark.parametrize("command", ["predict photos -c {} --client client-0", "export {} --client client-0 -o late"])
def test_ctrl_c_in_predict_and_export(fedcopl, run, command):
    process = fedcopl.start(*command.format(run).split())
    wait_until_loaded(process, "libtorch")
    ended = interrupt(fedcopl, process)
    assert ended.returncode == 130 and ended.stderr.startswith("fedcopl: stopped")


def wait_until_loaded(process, library):
    maps = Path(f"/proc/{process.pid}/maps")
    until(lambda: library in maps.read_text())


def interrupt(fedcopl, process):
    os.kill(process.pid, signal.SIGINT)
    return fedcopl.wait(process)

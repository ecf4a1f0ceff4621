"""An error on the command line is one line, whichever part finds it; and the help pages."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.main import get_command

import fedcopl
from fedcopl.cli import _missing_extra, app, main
from fedcopl.data.cache import PixelCache

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def typed(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedcopl", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["review", "--exprt"], "--exprt: is not an option of fedcopl review; did you mean --export?"),
        (["review"], "RUN: is missing; see fedcopl review --help"),
        (["predict", "x.png"], "--classifier: is missing; name an export or a run, or use --zero-shot --classes FILE"),
        (["rn"], "rn: is not a command; did you mean run?"),
        (["data", "chek"], "chek: is not a command; did you mean check?"),
        (
            ["watch", ".", "--port", "99999"],
            "--port: should be at least 0 and at most 65535, not 99999; see fedcopl watch",
        ),
        (
            ["watch", ".", "--port", "x"],
            "--port: should be at least 0 and at most 65535, not x; see",
        ),
        (["run", "--seed", "x"], "--seed: should be a whole number, not x; see fedcopl run --help"),
        (["privacy", "--epsilon", "x"], "--epsilon: should be a number, not x; see fedcopl privacy --help"),
        (["run", "--engine", "x"], "--engine: should be local or flower, not x; see fedcopl run --help"),
        (["predict", "x.png", "--format", "xls"], "--format: should be csv or jsonl, not xls; see fedcopl predict"),
        (["drift", "x", "--device", "tpu"], "--device: should be auto, cpu, cuda or mps, not tpu; see fedcopl drift"),
        (["models", "check", "x", "--activation", "relu"], "--activation: should be quick_gelu or gelu, not relu; see"),
        (["service", "x"], "ROLE: should be site or server, not x; see fedcopl service --help"),
        (["run", "--rounds", "2"], "--rounds: is not an option of fedcopl run; did you mean rounds=VALUE?"),
        (["run", "--sed", "2"], "--sed: is not an option of fedcopl run; did you mean --seed?"),
        (["export", "--rounds"], "--rounds: is not an option of fedcopl export; see fedcopl export --help"),
        (["--verbose"], "name a command; see fedcopl --help"),
        (
            ["run", "rounds=0", "labels.capacity=x"],
            "command line: rounds: should be at least 1, not 0; labels.capacity: should be fixed",
        ),
        (["run", "name=a@b"], "command line: name: should be made of letters, digits, dots, dashes and underscores"),
        (["run", "model.visual_depth=x"], "command line: model.visual_depth: should be all-but-last or all or a whole"),
        (["data", "check", "folder", __file__], f"{__file__}: is a file, not a folder; data.path should be"),
        (["data", "check", "manifest", "/"], "/: is a folder; data.path should be a .csv or .parquet file"),
        (["review", __file__], f"{__file__}: is a file, not a folder; name the folder of a run"),
    ],
)
def test_one_line(typed, arguments, line):
    code, said = typed(*arguments)
    assert code in (2, 3, 7)
    assert said.out == ""
    assert said.err.startswith(f"fedcopl: {line}")
    assert said.err.count("\n") == 1


def test_an_error_names_its_file_or_the_command_line(typed, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("rounds = 0\n[trian]\nlr = 1\n")
    assert typed("run", file, "labels.capacity=y", "seed=-1")[1].err == (
        "fedcopl: command line: seed: should be at least 0, not -1; labels.capacity: should be fixed or grow, not 'y'; "
        f"{file}: trian: unknown setting; did you mean train.lr?; rounds: should be at least 1, not 0\n"
    )


def test_a_missing_extra(typed, monkeypatch):
    def status(*_):
        raise ModuleNotFoundError("No module named 'grpc.aio'", name="grpc.aio")

    monkeypatch.setattr("fedcopl.deployment.monitoring.status_of", status)
    assert typed("status") == (
        2,
        ("", "fedcopl: fedcopl status needs grpc, which is not installed: pip install 'fedcopl[flower]'\n"),
    )
    with pytest.raises(ModuleNotFoundError):
        _missing_extra(ModuleNotFoundError(name="a_module_of_nobody"))


def test_the_version(typed):
    code, said = typed("--version")
    assert (code, said.out) == (0, f"fedcopl {fedcopl.__version__}\n")
    code, said = typed("--version", "--verbose")
    assert code == 0
    names = [line.split()[0] for line in said.out.splitlines()]
    assert names[:3] == ["fedcopl", "python", "torch"]
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    alone = {
        f"[{extra}]" for extra, needed in extras.items() if not any(name.startswith("fedcopl[") for name in needed)
    }
    assert {name for name in names if name.startswith("[")} == alone and "[dicom]" in alone
    assert names[-1] == "cache"


def test_an_extra_is_complete_only_with_all_of_its_packages(typed, monkeypatch):
    def version(package):
        if package == "onnxscript":
            raise PackageNotFoundError
        return "1.0"

    monkeypatch.setattr("fedcopl.cli.version_of", version)
    lines = typed("--version", "--verbose")[1].out.splitlines()
    assert f"{'[onnx]':<14}no: pip install 'fedcopl[onnx]'" in lines
    assert f"{'[parquet]':<14}pyarrow 1.0" in lines


@pytest.mark.parametrize("group", [[], ["data"], ["models"], ["cache"]])
def test_help_is_printed_without_a_command(typed, group):
    code, said = typed(*group)
    assert code == 2
    assert said.err.startswith(f"Usage: {' '.join(['fedcopl', *group])} [OPTIONS] COMMAND ...\n")


def test_the_help_of_a_command(typed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    code, said = typed("service", "--help")
    assert (code, said.out) == (0, SERVICE_HELP)


SERVICE_HELP = """\
Usage: fedcopl service [OPTIONS] ROLE [key=value ...]

Write a systemd unit and a Containerfile for a site or a server;
nothing is installed or started.

Arguments
  ROLE               Role of the service.
  [key=value ...]    Additional settings and options.

Options
  --home PATH       Folder of the service, the only folder with
                    write access. [default: /var/lib/fedcopl]
  --images PATH     Images of a site, with read access.
  --user TEXT       User account that runs the service. [default:
                    fedcopl]
  --out, -o PATH    Folder for the two files. [default: .]
  --help            Show this message and exit.
"""


def every_command(command, *words):
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, *words, name)


COMMANDS = dict(every_command(get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_shows_no_types_of_python(typed, words):
    code, said = typed(*words, "--help")
    assert code == 0
    assert not set(re.findall(r"<.*?>", said.out)) - {"<time>", "<name>"}
    assert "BOOLEAN" not in said.out


def test_every_command_that_has_out_takes_o():
    options = [parameter.opts for command in COMMANDS.values() for parameter in command.params]
    out = [names for names in options if "--out" in names]
    assert len(out) >= 9
    assert all("-o" in names for names in out)


def test_ctrl_c_in_a_command_is_one_line(typed, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(PixelCache, "entries", lambda cache: interrupt())
    code, said = typed("cache", "info")
    assert (code, said.out, said.err) == (130, "", "fedcopl: stopped\n")


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "fedcopl.config":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["fedcopl", "--version"]
runpy.run_module("fedcopl", run_name="__main__")
"""


def test_ctrl_c_while_modules_are_loaded_is_one_line():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "fedcopl: stopped\n")

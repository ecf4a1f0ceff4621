"""What is typed wrongly is answered in one line of our words, whoever finds the mistake."""

import sys

import pytest

import fedcopl
from fedcopl.cli import main


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
        (["review", "--exprt"], "--exprt: there is no such option of fedcopl review; did you mean --export?"),
        (["review"], "RUN: is missing; see fedcopl review --help"),
        (["predict", "x.png"], "--classifier: is missing; see fedcopl predict --help"),
        (["rn"], "rn: there is no such command; did you mean run?"),
        (["data", "chek"], "chek: there is no such command; did you mean check?"),
        (
            ["watch", ".", "--port", "99999"],
            "--port: should be at least 0 and at most 65535, not 99999; see fedcopl watch",
        ),
        (
            ["watch", ".", "--port", "x"],
            "--port: should be at least 0 and at most 65535, not 'x'; see",
        ),
        (["--verbose"], "name a command; see fedcopl --help"),
        (
            ["run", "rounds=0", "labeler=x"],
            "command line: rounds: should be at least 1, not 0; labeler: should be copl,",
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


def test_a_mistake_is_blamed_on_where_it_stands(typed, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("rounds = 0\nlabeler = 'x'\n[trian]\nlr = 1\n")
    assert typed("run", file, "labeler=y", "seed=-1")[1].err == (
        "fedcopl: command line: seed: should be at least 0, not -1; labeler: should be copl, fpl or cpl, not 'y'; "
        f"{file}: trian: unknown setting; did you mean train.lr?; rounds: should be at least 1, not 0\n"
    )


def test_the_version(typed):
    code, said = typed("--version")
    assert (code, said.out) == (0, f"fedcopl {fedcopl.__version__}\n")
    code, said = typed("--version", "--verbose")
    assert code == 0
    names = [line.split()[0] for line in said.out.splitlines()]
    assert names[:3] == ["fedcopl", "python", "torch"]
    assert {"[dicom]", "[web]", "cache"} <= set(names)


def test_without_a_command_the_help(typed):
    code, said = typed()
    assert code == 2
    assert "Usage" in said.out + said.err

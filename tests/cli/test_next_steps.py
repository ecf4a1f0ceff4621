"""Each successful command ends with what to do next, on standard error; an error says what to do about it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcopl.cli import app
from fedcopl.deployment.audit_log import AuditLog, AuditMessage
from fedcopl.errors import ConfigError, RunFolderError


def fedcopl(*words):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words))


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCOPL_CACHE", str(tmp_path / "cache"))


COMMANDS = {
    "methods": "next: fedcopl run method=NAME options.KEY=VALUE",
    "models list": "next: fedcopl models show NAME",
    "models show ViT-B/32": "next: fedcopl models fetch ViT-B/32",
    "models check glyph-clip": "next: fedcopl run STUDY.toml model.backbone=glyph-clip method=priors",
    "models fetch glyph-clip": "next: fedcopl run model.backbone=glyph-clip",
    "data list": "next: fedcopl data check NAME PATH",
    "data check digits": "next: fedcopl new STUDY",
    "data show digits": "next: fedcopl new STUDY",
    "cache info": "next: fedcopl run  # fills the cache",
    "cache clear": "next: fedcopl run  # fills the cache again",
    "new study": "next: cd study && fedcopl doctor",
    "provision plan.toml --example": "next: edit this file, then: fedcopl provision plan.toml",
    "service server": "next: fedcopl status --folder /var/lib/fedcopl/federation",
}


@pytest.mark.parametrize(("command", "line"), COMMANDS.items(), ids=COMMANDS)
def test_a_command_ends_with_the_next_one(command, line):
    result = fedcopl(*command.split())
    assert result.exit_code == 0, result.output
    assert line in result.stderr.splitlines()
    assert "next:" not in result.stdout


def test_status_stop_and_audit_of_a_site():
    site = Path("site")
    site.mkdir()
    about = {"role": "site", "name": "a", "server": "x:1", "conditions": "any"}
    (site / "working.json").write_text(json.dumps({**about, "pid": 2**22 + 1, "running": True, "since": 1.0}))
    AuditLog(site).write(AuditMessage("in", "server", "run", "0", "train", 3, "0" * 64, "answered"))
    expected = {
        "status --folder site": ["next: fedcopl watch site", "      or fedcopl audit site"],
        "stop --folder site": ["next: fedcopl join again", "      or fedcopl audit site"],
        "audit site": ["next: fedcopl audit site --out audit.csv"],
        "audit site --out audit.csv": [
            "next: keep the head with the file: it proves later that the log was not changed"
        ],
    }
    for command, lines in expected.items():
        result = fedcopl(*command.split())
        assert (result.exit_code, result.stderr.splitlines()) == (0, lines), result.output


@pytest.mark.parametrize(
    ("command", "error", "remedy"),
    [
        ("audit nowhere", RunFolderError, "name the folder of a site, a server or a server's run"),
        ("report nowhere", RunFolderError, "name the folder of a run"),
        ("run nothing.toml", ConfigError, "fedcopl new STUDY writes one"),
        ("models show glyph-clip", ConfigError, "fedcopl models check glyph-clip prints its details"),
    ],
)
def test_an_error_says_what_to_do(command, error, remedy):
    result = fedcopl(*command.split())
    assert isinstance(result.exception, error)
    assert remedy in str(result.exception) and "\n" not in str(result.exception)


def test_a_server_that_cannot_start_prints_only_the_error():
    result = fedcopl("server")
    assert isinstance(result.exception, ConfigError) and str(result.exception).startswith("--classes: ")
    assert result.output == ""

"""`fedcopl new`, as a user types it."""

import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fedcopl.cli import app
from fedcopl.config import load
from fedcopl.errors import ConfigError, RunFolderError


def fedcopl(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_new_writes_the_folder(tmp_path):
    study = tmp_path / "my study!"
    said = fedcopl("new", study, "--sites", "3")
    config = load(study / "settings.toml")
    assert (config.name, config.data.partition, config.model.backbone) == ("my-study-", "natural", "ViT-B/32")
    assert sorted(path.name for path in (study / "images" / "clients").iterdir()) == ["site-a", "site-b", "site-c"]
    files = [path for path in study.rglob("*") if path.is_file()]
    assert all(str(path) in said for path in files) and len(files) == 6


def test_its_readme_names_the_commands_in_their_order(tmp_path):
    fedcopl("new", tmp_path / "study")
    block = re.search(r"```sh\n(.*?)```", (tmp_path / "study" / "README.md").read_text(), re.S)[1]
    commands = [line.split()[1] for line in block.splitlines()]
    assert commands == ["doctor", "run", "run", "review", "export", "predict"]
    assert set(commands) <= set(get_command(app).commands)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "classes.txt").write_text("precious")
    with pytest.raises(RunFolderError, match="not empty"):
        fedcopl("new", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["classes.txt"]
    (tmp_path / "empty").mkdir()
    fedcopl("new", tmp_path / "empty")


def test_a_relative_model_path_is_valid_inside_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    fedcopl("new", "study", "--backbone", "model")
    assert load(tmp_path / "study" / "settings.toml").model.backbone == str(tmp_path / "model")


def test_invalid_arguments_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="between 1 and 26"):
        fedcopl("new", tmp_path / "x", "--sites", "0")
    with pytest.raises(ConfigError, match=r"has a quotation mark.*; leave out --backbone and set model\.backbone"):
        fedcopl("new", tmp_path / "x", "--backbone", 'a"\nrounds = 1')
    with pytest.raises(ConfigError, match=r"--backbone: ViT-B/23: no such file or folder, .*; did you mean ViT-B/32"):
        fedcopl("new", tmp_path / "x", "--backbone", "ViT-B/23")
    assert not (tmp_path / "x").exists()

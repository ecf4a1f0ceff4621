"""Atomic writing of files, and safe reading of untrusted ones."""

import os

import pytest
from PIL import Image

from fedcopl.config import Data, RunConfig
from fedcopl.data.dataset import clean_class_names
from fedcopl.data.folder import read_folder
from fedcopl.errors import ConfigError, DataError, RunFolderError
from fedcopl.files import parse_json, parse_toml, read_limited, write_many


def test_written_files_are_private_and_leave_no_temporary_files(tmp_path):
    files = [(tmp_path / "sub" / f"{number}", bytes([number])) for number in range(5)]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "3").write_bytes(b"old")
    write_many(iter(files))
    assert sorted(path.name for path in (tmp_path / "sub").iterdir()) == list("01234")
    assert all(path.read_bytes() == data and path.stat().st_mode & 0o77 == 0 for path, data in files)


@pytest.mark.parametrize("can_sync", [True, False])
def test_an_interrupted_write_keeps_the_old_files(tmp_path, monkeypatch, can_sync):
    if not can_sync:
        monkeypatch.delattr(os, "sync")
    (tmp_path / "a").write_bytes(b"old")

    def interrupted():
        yield tmp_path / "b", b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_many(interrupted())
    assert (tmp_path / "a").read_bytes() == b"old"
    write_many([(tmp_path / "a", b"new"), (tmp_path / "b", b"new")])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == b"new"


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="file/a: cannot be written"):
        write_many([(tmp_path / "file" / "a", b"")])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 6000 + "}", "6,000 digits, more than 40"),
        (r'{"a": "\u001b[2J"}', "control character"),
    ],
)
def test_hostile_json_is_refused_in_one_line(text, why):
    with pytest.raises(ValueError, match=why):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = " + "9" * 6000, "digits"),
        ('a = "\\u001b[2J"', "control character"),
        (".".join(["a"] * 20_000) + " = 1", "16 parts"),
        (".".join([r'"a\"b"'] * 20_000) + " = 1", "16 parts"),
    ],
)
def test_hostile_toml_is_refused_in_one_line(text, why):
    with pytest.raises(ValueError, match=why):
        parse_toml(text)


def test_ordinary_toml_and_json_are_read():
    assert parse_toml('a.b = [0.1, 0.2]\nc = "\\U00000041 \\t"') == {"a": {"b": [0.1, 0.2]}, "c": "A \t"}
    assert parse_json(r'{"a": "\\u001b", "b": NaN, "c": 12}') == {"a": r"\u001b", "b": None, "c": 12}


def test_only_regular_files_within_the_limit_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"12345")
    with pytest.raises(ValueError, match="regular"):
        read_limited(tmp_path / "pipe")
    with pytest.raises(ValueError, match="larger than 4 bytes"):
        read_limited(tmp_path / "large", 4)
    assert read_limited(tmp_path / "large", 5) == b"12345"


def test_an_error_escapes_control_characters():
    assert str(RunFolderError("a\x1b[2J\nb\u202e")) == r"a\x1b[2J\nb\u202e"


def test_classes_with_control_characters_and_too_many_are_refused():
    with pytest.raises(DataError, match="control character"):
        clean_class_names(["cat", "dog\x1b[2J"], "classes.txt")
    with pytest.raises(DataError, match="200,000 classes"):
        clean_class_names([str(number) for number in range(200_000)], "classes.txt")


def test_settings_and_clients_have_no_control_characters(tmp_path):
    with pytest.raises(ConfigError, match=r"data.path.*control character"):
        RunConfig.from_mapping({"data": {"path": "a\x1b[2J"}}, "test")
    folder = tmp_path / "clients" / "site\x1b[2J" / "train" / "cat"
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "1.png")
    with pytest.raises(DataError, match=r"client.*control character"):
        read_folder(Data(source="folder", path=str(tmp_path)))

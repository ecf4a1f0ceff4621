"""Files written so that a stop at any moment leaves none of them half."""

import os

import pytest

from fedcopl.errors import RunFolderError
from fedcopl.files import write_many


def test_many_files_are_there_with_nothing_else_and_for_the_owner_alone(tmp_path):
    files = [(tmp_path / "sub" / f"{number}", bytes([number])) for number in range(5)]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "3").write_bytes(b"old")
    write_many(iter(files))
    assert sorted(path.name for path in (tmp_path / "sub").iterdir()) == list("01234")
    assert all(path.read_bytes() == data and path.stat().st_mode & 0o77 == 0 for path, data in files)


@pytest.mark.parametrize("can_sync", [True, False])
def test_a_stop_leaves_the_old_ones_or_the_new_ones(tmp_path, monkeypatch, can_sync):
    if not can_sync:
        monkeypatch.delattr(os, "sync")
    (tmp_path / "a").write_bytes(b"old")

    def stopped():
        yield tmp_path / "b", b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_many(stopped())
    assert (tmp_path / "a").read_bytes() == b"old"
    write_many([(tmp_path / "a", b"new"), (tmp_path / "b", b"new")])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == b"new"


def test_why_one_of_many_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="file/a: cannot be written"):
        write_many([(tmp_path / "file" / "a", b"")])

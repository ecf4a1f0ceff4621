"""Writing files so that a stop at any moment never leaves half of one."""

import os
from contextlib import suppress
from pathlib import Path

from .errors import RunFolderError

TEMPORARY = ".part"
USUAL, OWNER_ONLY = 0o666, 0o600  # less what the system's umask takes away
OWNER_ONLY_FOLDER = 0o700


def write_bytes(path: Path, data: bytes) -> None:
    """Write under a temporary name in the same folder, then rename."""
    _write(path, data, USUAL)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_private(path: Path, data: bytes) -> None:
    """The same, for this user's eyes only, from the first moment."""
    with suppress(OSError):  # what a stop left behind would keep the rights it has
        _temporary(path).unlink(missing_ok=True)
    _write(path, data, OWNER_ONLY)


def make_private_folder(path: Path) -> None:
    """A folder into which nobody else can look."""
    try:
        path.mkdir(OWNER_ONLY_FOLDER, parents=True, exist_ok=True)
        path.chmod(OWNER_ONLY_FOLDER)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be made: {error.strerror or error}") from error


def _write(path: Path, data: bytes, rights: int) -> None:
    temporary = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, rights)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunFolderError(f"{path}: cannot be written: {error.strerror or error}") from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}{TEMPORARY}")

"""Writing files so that a stop at any moment leaves the old one or the new one, never half of one."""

import os
from contextlib import suppress
from pathlib import Path

from .errors import RunFolderError

TEMPORARY = ".part"


def write_bytes(path: Path, data: bytes) -> None:
    """Write under a temporary name in the same folder, then rename."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunFolderError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))

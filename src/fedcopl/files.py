"""Bounded reading and atomic writing of files."""

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from .errors import RunFolderError

TEMPORARY = ".part"
_FOR_OTHERS, _OWNER_ONLY = 0o666, 0o600  # the system applies the umask to both
OWNER_ONLY_FOLDER = 0o700
_MAX_BYTES = 512_000_000  # of a file; JSON of a million images has about 100 MB
MAX_SETTINGS = 1_000_000  # bytes of a TOML file
_MAX_DIGITS = 40  # of an integer; longer ones overflow in later arithmetic
_CONTROL = re.compile(  # control characters other than tab and line breaks, literal or as escapes of JSON and TOML
    r"(?<!\\)(?:\\\\)*\\(?:u00|U000000)(?:0[0-8bcefBCEF]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])|[\x7f-\x9f]"
)
_KEY = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_KEY}){{16}}")  # tomllib's memory grows with the square of a key's length


def read_limited(path: Path, max_bytes: int = _MAX_BYTES) -> bytes:
    """Read a regular file of at most `max_bytes` bytes.

    Raises:
        OSError: The file cannot be opened.
        ValueError: The file is larger, or no regular file: a pipe or device might never end.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("is not a regular file")
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise ValueError(f"is larger than {max_bytes:,} bytes")
        return file.read(max_bytes)


def parse_json(text: bytes | str) -> Any:
    """Parse JSON with NaN and infinity as None.

    Raises:
        ValueError: The text is not JSON, too deeply nested, or has control characters or numbers of many digits.
    """
    decoded = text if isinstance(text, str) else text.decode("utf-8-sig")
    _refuse_control_characters(decoded)
    try:
        return json.loads(decoded, parse_constant=lambda _: None, parse_int=_bounded_int)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML, with the checks of `parse_json` and a limit on the parts of a key."""
    _refuse_control_characters(text)
    if _LONG_KEY.search(text):
        raise ValueError("a key has more than 16 parts")
    if long := re.search(rf"[0-9][0-9_]{{{_MAX_DIGITS}}}", text):
        raise ValueError(f"a number has more than {_MAX_DIGITS} digits: {long[0][:10]}...")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits, more than {_MAX_DIGITS}")
    return int(digits)


def _refuse_control_characters(text: str) -> None:
    if match := _CONTROL.search(text):
        raise ValueError(f"has a control character at position {match.start():,}")


def no_folder(path: Path) -> str:
    """Return the reason why a path is not a folder, as part of an error message."""
    return "is a file, not a folder" if path.exists() else "there is no such folder"


def check_output_file(path: Path, *, overwrite: bool = True) -> None:
    """Raise RunFolderError if a file cannot be written, before the work that produces it."""
    if os.path.isdir(path):
        raise RunFolderError(f"{path}: is a folder; name a file to write")
    if os.path.exists(path) and not overwrite:
        raise RunFolderError(f"{path}: already exists; choose another name, or add --overwrite")
    _check_writable(path.absolute().parent, path)


def check_output_folder(path: Path, *, new: bool = False) -> None:
    """Raise RunFolderError if a folder cannot be written or, with `new`, is not empty."""
    _check_writable(path.absolute(), path)
    if new and os.path.isdir(path) and any(path.iterdir()):
        raise RunFolderError(f"{path}: already exists and is not empty; choose another name")


def _check_writable(folder: Path, path: Path) -> None:
    existing = next(above for above in (folder, *folder.parents) if os.path.exists(above))
    if not existing.is_dir():
        raise RunFolderError(f"{path}: cannot be written: {existing} is a file, not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RunFolderError(f"{path}: cannot be written: no permission to write to {existing}; choose another folder")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically (temporary name, then rename), readable by the owner only.

    Labels, prompts, answers and reports reveal information about the images.
    """
    _write(path, data, _OWNER_ONLY)


@contextmanager
def reading(file: Path, further_error: type[Exception] = OSError) -> Iterator[None]:
    """Convert errors in reading and parsing a file, and errors of the type `further_error`, to RunFolderError."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, further_error) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise RunFolderError(f"{file}: is damaged: {reason}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8; invalid bytes of file names in it are escaped."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def publish_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by others as far as the umask allows."""
    _write(path, data, _FOR_OTHERS)


def publish_text(path: Path, text: str) -> None:
    publish_bytes(path, text.encode("utf-8"))


def write_private(path: Path, data: bytes) -> None:
    """Write a secret to a file that only its owner can read, also while it is written."""
    with suppress(OSError):  # the file of an interrupted write would keep its permissions
        _temporary(path).unlink(missing_ok=True)
    _write(path, data, _OWNER_ONLY)


def make_private_folder(path: Path) -> None:
    """Create a folder that only the owner can read."""
    try:
        make_folders(path)
        path.chmod(OWNER_ONLY_FOLDER)
    except FileExistsError as error:
        raise RunFolderError(f"{path}: {no_folder(path)}") from error
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be created: {error.strerror or error}") from error


def only_for_owner(name: str, flags: int) -> int:
    """Open a file that only the owner can read; an `opener` for `open`."""
    return os.open(name, flags, _OWNER_ONLY)


def make_folders(path: Path) -> None:
    """Create a folder and its parents, readable by the owner only; existing folders keep their permissions."""
    if not path.is_dir():
        make_folders(path.parent)
        path.mkdir(OWNER_ONLY_FOLDER, exist_ok=True)


def write_many(files: Iterable[tuple[Path, bytes]]) -> None:
    """Write several files as `write_bytes` does, with one sync for all if the system has `os.sync`."""
    has_sync, paths = hasattr(os, "sync"), []
    for path, data in files:
        with _convert_os_errors(path):
            _write_part(path, data, _OWNER_ONLY, sync=not has_sync)
        paths.append(path)
    if has_sync:
        os.sync()
    for path in paths:
        with _convert_os_errors(path):
            _temporary(path).replace(path)


def _write(path: Path, data: bytes, mode: int) -> None:
    with _convert_os_errors(path):
        _write_part(path, data, mode, sync=True)
        _temporary(path).replace(path)


def _write_part(path: Path, data: bytes, mode: int, *, sync: bool) -> None:
    """Write the temporary file; with `sync`, wait until it is on disk."""
    make_folders(path.parent)
    with open(_temporary(path), "wb", opener=partial(os.open, mode=mode)) as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


@contextmanager
def _convert_os_errors(path: Path) -> Iterator[None]:
    """Convert an OSError to RunFolderError and remove the temporary file."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            _temporary(path).unlink(missing_ok=True)
        raise RunFolderError(f"{path}: cannot be written: {error.strerror or error}") from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}{TEMPORARY}")

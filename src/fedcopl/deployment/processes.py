"""The processes of a deployment: the one that holds a folder, how it is stopped, and the log of its child.

A server and a site each hold their own folder. A child process never outlives its parent, however that ends.
"""

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import IO

from ..errors import FederationError
from ..files import make_private_folder, write_text
from ..run.folder import RunFolder

_LOG_BYTES, _OLD_LOGS = 5_000_000, 3  # size of a log file, and number of older ones kept
WORKING = "working.json"
_STOP = "stop"  # a file of this name stops the process of this folder
_FOR_OWNER = 0o077
SECRET = "exec.secret"  # shared by a server and its SuperLink
_PARENT_CHECK = 0.2  # seconds between two checks that the parent is alive
GRACE = 5.0  # seconds for a child to end after SIGTERM


@dataclass(frozen=True)
class FolderProcess:
    """The process that holds a folder, or the last one that did."""

    folder: Path
    role: str  # server or site
    running: bool
    about: Mapping[str, str]  # its address, its name and so on

    @property
    def results(self) -> Path:
        """Folder of a server's run."""
        if "out" not in self.about:
            raise FederationError(f"{self.folder}: is the folder of a {self.role}; name that of a server with --folder")
        return Path(self.about["out"])


@contextmanager
def holding(folder: Path, role: str, about: Mapping[str, str]) -> Iterator[None]:
    """Hold the folder: one process at a time; `about` is for `fedcopl status`."""
    os.umask(_FOR_OWNER)  # also for Flower's processes and their files
    make_private_folder(folder)
    with RunFolder(folder):
        (folder / _STOP).unlink(missing_ok=True)
        _write(folder, role, about, running=True)
        try:
            yield
        finally:
            _write(folder, role, about, running=False)
            (folder / _STOP).unlink(missing_ok=True)


def _write(folder: Path, role: str, about: Mapping[str, str], *, running: bool) -> None:
    now = {"role": role, **about, "pid": os.getpid(), "running": running, "since": time.time()}
    write_text(folder / WORKING, json.dumps(now, indent=1) + "\n")


def process_of(folder: Path) -> FolderProcess:
    """Read which process holds this folder, or did; `running` only if it still exists."""
    try:
        kept = json.loads((folder / WORKING).read_text(encoding="utf-8"))
        about = {key: value for key, value in kept.items() if isinstance(value, str) and key != "role"}
        running = bool(kept["running"]) and _is_there(int(kept["pid"]))
        return FolderProcess(folder, str(kept["role"]), running, about)
    except FileNotFoundError as error:
        is_prepared = any((folder / name).exists() for name in ("site.key", "server.key", "package.json"))
        reason = "has not run yet" if is_prepared else "is not the folder of a server or a site; name one with --folder"
        raise FederationError(f"{folder}: {reason}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FederationError(f"{folder / WORKING}: cannot be read: {error}") from error


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def should_stop(folder: Path) -> bool:
    """Return whether the process of this folder is to stop."""
    return (folder / _STOP).exists()


def request_stop(folder: Path, timeout: float) -> bool:
    """Stop the process of this folder; returns whether it stopped within `timeout` seconds."""
    write_text(folder / _STOP, "")
    end = time.monotonic() + timeout
    while process_of(folder).running:
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    (folder / _STOP).unlink(missing_ok=True)
    return True


@contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C within the block: children end first, and files are complete."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_parent(parent: int) -> None:
    """End this process when its parent has ended, also if that was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _QuietHandler(RotatingFileHandler):
    """Ignores errors: a full disk must not stop the child."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


def write_log(source: IO[bytes], file: Path, max_bytes: int = _LOG_BYTES, kept: int = _OLD_LOGS) -> threading.Thread:
    """Write the lines of a source to a file, in a thread; a full file becomes `name.1`, and the oldest is deleted."""
    handler = _QuietHandler(file, maxBytes=max_bytes, backupCount=kept, encoding="utf-8", delay=True)

    def follow() -> None:
        with source, closing(handler):
            for line in source:
                handler.emit(logging.makeLogRecord({"msg": line.decode(errors="replace").rstrip("\n")}))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    return thread

"""The processes of a deployment: the one that holds a folder, how it is stopped, and Flower's SuperLink as its child.

A server and a site each hold their own folder. A child process never outlives its parent, however that ends.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from ..errors import FederationError
from ..files import make_private_folder, write_private, write_text
from ..run.folder import RunFolder
from . import OFFLINE

_LOG_BYTES, _OLD_LOGS = 5_000_000, 3  # size of a log file, and number of older ones kept
_LOG_END = 2.0  # seconds to wait for the end of a log
WORKING = "working.json"
_STOP = "stop"  # a file of this name stops the process of this folder
_FOR_OWNER = 0o077
SECRET = "exec.secret"  # shared by a server and its SuperLink
_PARENT_CHECK = 0.2  # seconds between two checks that the parent is alive
_GRACE = 5.0  # seconds for a child to end after SIGTERM


class RotatingLog:
    """Writes lines until its source ends. A full file becomes `name.1`, that one `name.2`; the oldest is deleted."""

    def __init__(self, path: Path, max_bytes: int = _LOG_BYTES, kept: int = _OLD_LOGS):
        self.path, self._max_bytes, self._kept = path, max_bytes, kept
        self._thread = threading.Thread()

    def follow(self, source: IO[bytes]) -> None:
        """Write all lines of a source, in a thread."""
        self._thread = threading.Thread(target=self._follow, args=(source,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the source has ended, for a limited time: another process may hold it open."""
        if self._thread.is_alive():
            self._thread.join(_LOG_END)

    def _follow(self, source: IO[bytes]) -> None:
        with source:
            for line in source:
                with suppress(OSError):  # a full disk must not stop the child
                    self.write(line)

    def write(self, line: bytes) -> None:
        if self.path.exists() and self.path.stat().st_size + len(line) > self._max_bytes:
            self._rotate()
        with self.path.open("ab") as file:
            file.write(line)

    def _rotate(self) -> None:
        for number in range(self._kept - 1, 0, -1):
            if self._older(number).exists():
                self._older(number).replace(self._older(number + 1))
        self.path.replace(self._older(1))

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


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
        raise FederationError(f"{folder}: is not the folder of a server or a site; name one with --folder") from error
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
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def flower_child(module: str, arguments: Sequence[str], log_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of `flower_internals` as a child process that ends with this one."""
    command = [sys.executable, "-m", f"fedcopl.deployment.flower_internals.{module}", str(os.getpid()), *arguments]
    # A new session: Ctrl-C reaches only the parent, which then ends its children in order.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=child_environment(log_file.parent),
        start_new_session=True,
    )
    log = RotatingLog(log_file)
    if child.stdout is not None:
        log.follow(child.stdout)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
        child.wait()
        log.join()


def child_environment(home: Path) -> Mapping[str, str]:
    """Return the environment of a child: Flower's files in `home`, no telemetry, forwarded addresses not trusted."""
    own = {"FLWR_HOME": str(home.absolute()), "FORWARDED_ALLOW_IPS": "127.0.0.1", "NO_COLOR": "1"}
    return {**os.environ, **OFFLINE, **own}


def fresh_secret(home: Path) -> tuple[Path, bytes]:
    """Write a new random secret to a file that only this user can read."""
    file, secret = home / SECRET, secrets.token_bytes(32)
    write_private(file, secret)
    return file, secret

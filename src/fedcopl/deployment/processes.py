"""The processes of a deployment: which one holds a folder and how it is asked to stop, and the children it starts.

A server and a site each hold their own folder, and have a child around a command of Flower's, which does not outlive
its parent, however that ends.
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import FederationError
from ..files import make_private_folder, write_private, write_text
from ..run.folder import RunFolder
from . import OFFLINE
from .rotating_log import RotatingLog

WORKING = "working.json"
STOP = "stop"  # a file of this name asks the process of this folder to stop
FOR_OWNER = 0o077
SECRET = "exec.secret"  # what a process shares with its child of Flower's
LOOK = 0.2  # seconds between two looks for the parent
GRACE = 5.0  # seconds a child has to end when asked


@dataclass(frozen=True)
class FolderProcess:
    """The process that holds a folder, or the last one that did, in its own words."""

    folder: Path
    role: str  # server or site
    running: bool
    about: Mapping[str, str]  # what else it says of itself: its address, its name

    @property
    def results(self) -> Path:
        """Where a server writes its run."""
        if "out" not in self.about:
            raise FederationError(f"{self.folder}: is the folder of a {self.role}; name that of a server with --folder")
        return Path(self.about["out"])


@contextmanager
def holding(folder: Path, role: str, about: Mapping[str, str]) -> Iterator[None]:
    """Hold the folder: one process at a time; `about` is for those who ask what is going on."""
    os.umask(FOR_OWNER)  # also of Flower's processes, which have files of their own
    make_private_folder(folder)
    with RunFolder(folder):
        (folder / STOP).unlink(missing_ok=True)
        _write(folder, role, about, running=True)
        try:
            yield
        finally:
            _write(folder, role, about, running=False)
            (folder / STOP).unlink(missing_ok=True)


def _write(folder: Path, role: str, about: Mapping[str, str], *, running: bool) -> None:
    now = {"role": role, **about, "pid": os.getpid(), "running": running, "since": time.time()}
    write_text(folder / WORKING, json.dumps(now, indent=1) + "\n")


def process_of(folder: Path) -> FolderProcess:
    """Who holds this folder, or did; `running` only if it is still there."""
    try:
        kept = json.loads((folder / WORKING).read_text(encoding="utf-8"))
        about = {key: value for key, value in kept.items() if isinstance(value, str) and key != "role"}
        running = bool(kept["running"]) and _is_there(int(kept["pid"]))
        return FolderProcess(folder, str(kept["role"]), running, about)
    except FileNotFoundError as error:
        raise FederationError(f"{folder}: holds neither a server nor a site; name its folder with --folder") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FederationError(f"{folder / WORKING}: cannot be read: {error}") from error


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def should_stop(folder: Path) -> bool:
    return (folder / STOP).exists()


def ask_to_stop(folder: Path, patience: float) -> bool:
    """Ask the process of this folder to stop, and whether it did within so many seconds."""
    write_text(folder / STOP, "")
    end = time.monotonic() + patience
    while process_of(folder).running:
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    (folder / STOP).unlink(missing_ok=True)
    return True


def end_with_parent(parent: int) -> None:
    """In a child: stop when the parent is gone, also if it was killed without a word."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def flower_child(module: str, arguments: Sequence[str], log_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A module of `flower_internals` around a command of Flower's, in a process of its own that ends with this one."""
    command = [sys.executable, "-m", f"fedcopl.deployment.flower_internals.{module}", str(os.getpid()), *arguments]
    child, log = _start(command, child_environment(log_file.parent)), RotatingLog(log_file)
    if child.stdout is not None:
        log.follow(child.stdout)
    try:
        yield child
    finally:
        _end(child)
        log.join()


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C is for the parent, which then ends its children in order.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
    child.wait()


def child_environment(home: Path) -> Mapping[str, str]:
    """Flower keeps its files in our folder and talks to nobody; forwarded addresses are not believed."""
    own = {"FLWR_HOME": str(home.absolute()), "FORWARDED_ALLOW_IPS": "127.0.0.1", "NO_COLOR": "1"}
    return {**os.environ, **OFFLINE, **own}


def fresh_secret(home: Path) -> tuple[Path, bytes]:
    """Random bytes for this process and the child it is about to start, in a file that only this user can read."""
    file, secret = home / SECRET, secrets.token_bytes(32)
    write_private(file, secret)
    return file, secret

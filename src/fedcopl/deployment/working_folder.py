"""The folder of a server or a site: who works in it, and how it is asked to stop."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import FederationError
from ..files import write_text
from ..run.folder import RunFolder

WORKING = "working.json"
STOP = "stop"  # a file of this name asks who works here to stop


@contextmanager
def working(folder: Path, about: Mapping[str, Any]) -> Iterator[None]:
    """Hold the folder: one process at a time; `about` is for those who ask what is going on."""
    with RunFolder(folder):
        (folder / STOP).unlink(missing_ok=True)
        _write(folder, about, running=True)
        try:
            yield
        finally:
            _write(folder, about, running=False)
            (folder / STOP).unlink(missing_ok=True)


def _write(folder: Path, about: Mapping[str, Any], *, running: bool) -> None:
    now = {**about, "pid": os.getpid(), "running": running, "since": time.time()}
    write_text(folder / WORKING, json.dumps(now, indent=1) + "\n")


def who_works(folder: Path) -> dict[str, Any]:
    """What the last process said of itself; `running` only if it is there."""
    try:
        about: dict[str, Any] = json.loads((folder / WORKING).read_text(encoding="utf-8"))
        return {**about, "running": bool(about["running"]) and _is_there(int(about["pid"]))}
    except FileNotFoundError as error:
        raise FederationError(f"{folder}: holds neither a server nor a site; name its folder with --folder") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
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
    """Ask who works here to stop, and whether it did within so many seconds."""
    write_text(folder / STOP, "")
    end = time.monotonic() + patience
    while who_works(folder)["running"]:
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    (folder / STOP).unlink(missing_ok=True)
    return True

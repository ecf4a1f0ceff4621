"""Children that do not outlive their parent, however it ends."""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from . import OFFLINE
from .certificates import write_secret

LOOK = 0.2  # seconds between two looks for the parent
GRACE = 5.0  # seconds a child has to end when asked
HEARTBEAT = 10  # seconds between a SuperNode's signs of life; after twice as many without one it counts as gone


def end_with(parent: int) -> None:
    """In a child: stop when the parent is gone, also if it was killed without a word."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def start(module: str, arguments: Sequence[str], home: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """One of our modules around a command of Flower's, in a process of its own that ends with this one."""
    command = [sys.executable, "-m", f"fedcopl.deployment.flower_internals.{module}", str(os.getpid()), *arguments]
    # A session of its own: Ctrl-C is for the parent, which then ends its children in order.
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=child_environment(home), start_new_session=True
    )


def fresh_secret(home: Path) -> tuple[Path, bytes]:
    """Random bytes for this process and the child it is about to start, in a file that only this user can read."""
    file, secret = home / "exec.secret", secrets.token_bytes(32)
    write_secret(file, secret)
    return file, secret


def child_environment(home: Path) -> Mapping[str, str]:
    """Flower keeps its files in our folder and talks to nobody; forwarded addresses are not believed."""
    own = {"FLWR_HOME": str(home.absolute()), "FORWARDED_ALLOW_IPS": "127.0.0.1", "NO_COLOR": "1"}
    return {**os.environ, **OFFLINE, **own}


def end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
    child.wait()

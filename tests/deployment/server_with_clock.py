"""A server with a clock that the test moves, so that no test waits for a timeout."""

import time
from pathlib import Path
from types import SimpleNamespace

from fedcopl.cli import main
from fedcopl.deployment.server import grid_transport

HOURS = Path("hours")  # in the folder where the server was started: a byte for each hour that has passed
HOURS.touch()


def monotonic():
    return time.monotonic() + 3600 * HOURS.stat().st_size


grid_transport.time = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
main()

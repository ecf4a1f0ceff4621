"""A server with a clock that the test moves, so that no test waits for a timeout."""

import time
from pathlib import Path
from types import SimpleNamespace

from fedcopl.cli import main
from fedcopl.deployment.server import grid_transport

HOURS = Path("hours")  # in the server's working folder: one byte for each hour to add to the clock
HOURS.touch()


def monotonic():
    return time.monotonic() + 3600 * HOURS.stat().st_size


grid_transport.time = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
main()

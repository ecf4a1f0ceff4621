"""Waiting for what another process or thread does: as long as a busy machine may take, and not for ever."""

import time
from collections.abc import Callable

PATIENCE = 300.0  # seconds; these machines are shared


def until(done: Callable[[], object], told: Callable[[], object] = lambda: "it never came") -> None:
    """Until it is true; fails with what is told."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, told()
        time.sleep(0.02)

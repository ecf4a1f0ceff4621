"""Waiting for another process or thread, with a time limit that suits a busy machine."""

import time
from collections.abc import Callable

WAIT_LIMIT = 300.0  # seconds; these machines are shared


def until(condition: Callable[[], object], message: Callable[[], object] = lambda: "timed out") -> None:
    """Wait until a condition is true; fail with the message after `WAIT_LIMIT` seconds."""
    end = time.monotonic() + WAIT_LIMIT
    while not condition():
        assert time.monotonic() < end, message()
        time.sleep(0.02)

"""Interrupting a computation of a site in its main thread, when its time is up or the site is stopped."""

import _thread
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ..wire.terms import Refused

CHECK = 0.2  # seconds between two checks
AGAIN = 5.0  # seconds until a computation that goes on is interrupted again


@contextmanager
def time_limit(seconds: float, should_stop: Callable[[], bool]) -> Iterator[None]:
    """End the work of this block in the main thread after `seconds`, or as soon as the site is to stop.

    Raises:
        Refused: it takes too long.
        KeyboardInterrupt: the site is to stop.
    """
    end = time.monotonic() + seconds
    try:
        with _interrupted_when(lambda: should_stop() or time.monotonic() > end):
            yield
    except KeyboardInterrupt:
        if time.monotonic() > end and not should_stop():
            raise Refused(f"the reply takes longer than this site's limit of {seconds:g} s") from None
        raise


@contextmanager
def _interrupted_when(is_over: Callable[[], bool]) -> Iterator[None]:
    """KeyboardInterrupt in the main thread as soon as this is true, and never after this block.

    Where it is swallowed, as in the finaliser of an object, another one follows.
    """
    lock, done = threading.Lock(), threading.Event()

    def watch() -> None:
        while not done.wait(CHECK):
            if is_over():
                with lock:
                    if not done.is_set():
                        _thread.interrupt_main(signal.SIGINT)
                done.wait(AGAIN)

    before = signal.signal(signal.SIGINT, _interrupt)  # disabled in background jobs
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with lock:
            done.set()
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt

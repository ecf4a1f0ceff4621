"""A site can be stopped, and an answer given up, in the middle of whatever it is doing: also of a million epochs."""

import _thread
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from ...messages import Ask, Reply
from ..wire.terms import Refused, Terms
from .replies import Answerer

LOOK = 0.2  # seconds between two looks at the clock and for the wish to stop
AGAIN = 5.0  # seconds until who goes on all the same is interrupted again


@dataclass(frozen=True)
class InTime:
    """Somebody who answers, for so many seconds at most and until told to stop. For the main thread."""

    answerer: Answerer
    seconds: float
    should_stop: Callable[[], bool]

    @property
    def name(self) -> str:
        return self.answerer.name

    @property
    def folder_name(self) -> str:
        return self.answerer.folder_name

    def answer(self, ask: Ask, terms: Terms) -> Reply:
        """The reply; `Refused` if it takes too long, KeyboardInterrupt if the site is to stop. Nothing is kept then."""
        end = time.monotonic() + self.seconds
        try:
            with interrupted_when(lambda: self.should_stop() or time.monotonic() > end):
                return self.answerer.answer(ask, terms)
        except KeyboardInterrupt:
            if time.monotonic() > end and not self.should_stop():
                raise Refused(f"the answer takes longer than this site's limit of {self.seconds:g} s") from None
            raise


@contextmanager
def interrupted_when(is_over: Callable[[], bool]) -> Iterator[None]:
    """KeyboardInterrupt in the main thread as soon as this is true, and never after this block.

    Where it is swallowed, as by the end of an object that is being collected, another one follows.
    """
    lock, done = threading.Lock(), threading.Event()

    def watch() -> None:
        while not done.wait(LOOK):
            if is_over():
                with lock:
                    if not done.is_set():
                        _thread.interrupt_main(signal.SIGINT)
                done.wait(AGAIN)

    before = signal.signal(signal.SIGINT, _interrupt)  # a job in the background has it switched off
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

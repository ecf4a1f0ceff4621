"""How a run gets on, for people at a notebook or a terminal. No library is needed for either."""

import sys
import time
from collections.abc import Mapping
from html import escape
from typing import Any, Protocol, TextIO

from ..config import RunConfig
from ..messages import Ask
from ..run.watcher import SilentWatcher, Watcher

STEPS = {"Estimate": "labelling", "Select": "choosing", "Train": "training", "Evaluate": "evaluating"}


class Screen(Protocol):
    """A place to show progress."""

    def show(self, done: int, total: int, text: str) -> None: ...

    def line(self, text: str) -> None: ...

    def end(self) -> None: ...


class ScreenWatcher:
    """Keeps one screen up to date."""

    def __init__(self, screen: Screen):
        self._screen = screen
        self._rounds, self._done, self._began, self._done_before = 1, 0, time.monotonic(), 0
        self._last = ""

    def preparing(self, what: str) -> None:
        self._screen.show(0, self._rounds, what)

    def prepared(self, done: int, total: int) -> None:
        pass

    def noticed(self, what: str) -> None:
        self._screen.line(f"note: {what}")

    def started(self, config: RunConfig, clients: int, done: int) -> None:
        self._rounds, self._done, self._done_before = config.rounds, done, done
        self._began = time.monotonic()
        self._screen.show(done, self._rounds, f"{clients} sites")

    def answered(self, client: str, ask: Ask) -> None:
        step = STEPS.get(type(ask).__name__, "exchanging keys")
        self._screen.show(self._done, self._rounds, ", ".join(filter(None, (self._last, step))))

    def round_done(self, record: Mapping[str, Any]) -> None:
        self._done = record["round"] + 1
        left = (time.monotonic() - self._began) / (self._done - self._done_before) * (self._rounds - self._done)
        self._last = round_line(record)
        self._screen.line(f"round {self._done}/{self._rounds}: {self._last}, about {left:.0f} s left")
        self._screen.show(self._done, self._rounds, self._last)
        if self._done == self._rounds:
            self._screen.end()


def round_line(record: Mapping[str, Any]) -> str:
    parts = []
    if record["macro"] is not None:
        parts.append(f"accuracy {100 * record['macro']:.1f} %")
    if record["loss"] is not None:
        parts.append(f"loss {record['loss']:.3f}")
    return ", ".join(parts) or "nothing to train on"


class NotebookScreen:
    """One cell output that is replaced: plain HTML, so that it needs no widgets and stays readable when saved."""

    def __init__(self, display: Any):
        self._display = display
        self._handle = display.display(display.HTML(""), display_id=True)
        self._notes: list[str] = []
        self._shown = ""

    def show(self, done: int, total: int, text: str) -> None:
        notes = "".join(f"<div>{escape(note)}</div>" for note in self._notes)
        page = f'<div><progress value="{done}" max="{total}"></progress> {done} / {total} {escape(text)}</div>{notes}'
        if page != self._shown:
            self._shown = page
            self._handle.update(self._display.HTML(page))

    def line(self, text: str) -> None:
        if text.startswith("note: "):
            self._notes.append(text)

    def end(self) -> None:
        pass


class TerminalScreen:
    """One line that is written over."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def show(self, done: int, total: int, text: str) -> None:
        bar = "#" * (20 * done // total)
        self._stream.write(f"\r\x1b[K[{bar:<20}] {done}/{total} {text}")
        self._stream.flush()

    def line(self, text: str) -> None:
        if text.startswith("note: "):
            self._stream.write(f"\r\x1b[K{text}\n")

    def end(self) -> None:
        self._stream.write("\n")
        self._stream.flush()


class LinesScreen:
    """A line for each round, where nothing can be written over."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def show(self, done: int, total: int, text: str) -> None:
        pass

    def line(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def end(self) -> None:
        pass


def watcher_for(progress: bool | Watcher) -> Watcher:
    """True: whatever suits the place; False: silence; or somebody who wants to be told."""
    if progress is False:
        return SilentWatcher()
    return ScreenWatcher(choose_screen(sys.stderr)) if progress is True else progress


def choose_screen(stream: TextIO) -> Screen:
    """A notebook's kernel has IPython loaded, and a shell without a terminal of its own."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and hasattr(shell, "kernel"):
        from importlib import import_module

        return NotebookScreen(import_module("IPython.display"))
    return TerminalScreen(stream) if stream.isatty() else LinesScreen(stream)

"""How a run gets on, for people at a terminal, a notebook or a log file."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from .config import RunConfig
from .messages import Ask
from .run.guard_words import guard_words
from .run.record import RoundRecord
from .run.watcher import SilentWatcher, Watcher

STEPS = {"Estimate": "labelling", "Select": "choosing", "Train": "training", "Evaluate": "evaluating"}


@contextmanager
def watching(progress: bool | Watcher, rounds: int) -> Iterator[Watcher]:
    """True: whatever suits the place; False: silence; or somebody who wants to be told."""
    if isinstance(progress, bool):
        with watch(rounds) if progress else nullcontext(SilentWatcher()) as watcher:
            yield watcher
    else:
        yield progress


@contextmanager
def watch(rounds: int) -> Iterator[Watcher]:
    """A moving bar on a terminal and in a notebook that has widgets, plain lines anywhere else."""
    console = Console(stderr=True)
    if not (find_spec("ipywidgets") if console.is_jupyter else console.is_terminal):
        yield LineWatcher(console, rounds)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield BarWatcher(progress, rounds)


class LineWatcher:
    """One line for each thing that is done."""

    def __init__(self, console: Console, rounds: int):
        self._console, self._rounds, self._began = console, rounds, time.monotonic()
        self._done_before = 0

    def preparing(self, what: str) -> None:
        self._line(what)

    def prepared(self, done: int, total: int) -> None:
        pass

    def noticed(self, what: str) -> None:
        self._line(f"note: {what}")

    def started(self, config: RunConfig, clients: int, done: int) -> None:
        self._began, self._done_before, self._rounds = time.monotonic(), done, config.rounds
        self._line(f"going on after round {done}" if done else _size_of_run(clients, config.rounds))

    def answered(self, client: str, ask: Ask) -> None:
        pass

    def round_done(self, record: RoundRecord) -> None:
        done = record.number
        each = (time.monotonic() - self._began) / (done - self._done_before)
        self._line(f"{round_line(record, self._rounds)}, about {each * (self._rounds - done):.0f} s left")

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class BarWatcher:
    """A bar over the rounds, one over the clients of the step under way."""

    def __init__(self, progress: Progress, rounds: int):
        self._progress, self._rounds = progress, rounds
        self._clients = 0
        self._all = progress.add_task("preparing", total=rounds)
        self._step = progress.add_task("", total=None, visible=False)
        self._name = ""

    def preparing(self, what: str) -> None:
        self._progress.update(self._all, description=what, total=None)

    def prepared(self, done: int, total: int) -> None:
        self._progress.update(self._all, completed=done, total=total)

    def noticed(self, what: str) -> None:
        self._progress.console.print(f"note: {what}", highlight=False, markup=False)

    def started(self, config: RunConfig, clients: int, done: int) -> None:
        self._clients, self._rounds = clients, config.rounds
        self._progress.reset(self._all, description="rounds", completed=done, total=self._rounds)

    def answered(self, client: str, ask: Ask) -> None:
        name = STEPS.get(type(ask).__name__, "exchanging keys")
        if name != self._name:
            self._name = name
            self._progress.reset(self._step, total=self._clients, description=name, visible=True)
        self._progress.advance(self._step)

    def round_done(self, record: RoundRecord) -> None:
        self._name = ""
        self._progress.update(self._all, completed=record.number)
        self._progress.console.print(round_line(record, self._rounds), highlight=False, markup=False)


def _size_of_run(clients: int, rounds: int) -> str:
    return f"{clients} client{'s' * (clients != 1)}, {rounds} round{'s' * (rounds != 1)}"


def round_line(record: RoundRecord, rounds: int) -> str:
    parts = [f"round {record.number}/{rounds}"]
    if record.macro is not None:
        parts.append(f"accuracy {percent(record.macro)}")
    if record.loss is not None:
        parts.append(f"loss {record.loss:.3f}")
    if record.refreshed:
        parts.append(", ".join(["new labels", *_about_labels(record)]))
    if record.kept_old_prompt:
        parts.append("nothing to average: the old prompts stay")
    parts += guard_words(record)
    parts += [f"{client} left out: {why}" for client, why in record.dropped.items()]
    return ", ".join(parts)


def _about_labels(record: RoundRecord) -> Iterator[str]:
    """How good they are where that is known, else what can be seen of them."""
    seen = record.labelling
    if record.pseudo_label_accuracy is not None:
        yield f"{percent(record.pseudo_label_accuracy)} right"
    elif seen:
        yield f"{percent(seen.chosen / max(seen.images, 1))} of the images chosen"
        if seen.compared:
            yield f"{percent(seen.unchanged / seen.compared)} labelled as before"


def percent(share: float | None, sign: str = " %") -> str:
    return "unknown" if share is None else f"{100 * share:.1f}{sign}"

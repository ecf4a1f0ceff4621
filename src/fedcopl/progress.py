"""Progress reporting on a terminal, in a notebook or in a log file."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from .messages import Request
from .plurals import counted
from .run.progress_reporter import STEPS, ProgressReporter
from .run.record import RoundRecord

_COLUMNS = (
    SpinnerColumn(),
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeRemainingColumn(),
)


@contextmanager
def reporting(rounds: int, progress: bool | ProgressReporter = True) -> Iterator[ProgressReporter]:
    """Yield a reporter: bars on a terminal and in a notebook with widgets, lines of text anywhere else.

    Args:
        progress: False for no reports, or a reporter to use instead.
    """
    console = Console(stderr=True)
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield ProgressReporter()
    elif not (find_spec("ipywidgets") if console.is_jupyter else console.is_terminal):
        yield _LineReporter(console, rounds)
    else:
        with Progress(*_COLUMNS, console=console, transient=True) as bar:
            yield _BarReporter(bar, rounds)


@contextmanager
def site_reporting() -> Iterator[ProgressReporter]:
    """Yield a reporter of a site: lines of text, and on a terminal a bar until all images are prepared.

    Later the terminal is free, because the site may ask for consent there.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _LineReporter(console, 0)
        return
    bar = Progress(*_COLUMNS, console=console, transient=True)
    try:
        yield _PreparingReporter(console, bar)
    finally:
        bar.stop()


class _LineReporter(ProgressReporter):
    """Prints a line per step and round."""

    def __init__(self, console: Console, rounds: int):
        self._console, self._rounds, self._began = console, rounds, time.monotonic()
        self._done_before = 0

    def preparing(self, step: str) -> None:
        self._line(step)

    def note(self, note: str) -> None:
        self._line(f"note: {note}")

    def started(self, config: RunConfig, clients: int, done: int) -> None:
        self._rounds, self._done_before = _training_rounds(config), done
        self._began = time.monotonic()
        rounds = counted(self._rounds, "round") if self._rounds else "no training"
        self._line(f"continuing after round {done}" if done else f"{counted(clients, 'client')}, {rounds}")

    def round_done(self, record: RoundRecord) -> None:
        line, done = _round_line(record, self._rounds), record.number
        if done < self._rounds and not record.converged:
            seconds_per_round = (time.monotonic() - self._began) / (done - self._done_before)
            line += f", about {format_duration(seconds_per_round * (self._rounds - done))} left"
        self._line(line)

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class _PreparingReporter(_LineReporter):
    """Prints lines, and shows a bar until all images are prepared."""

    def __init__(self, console: Console, bar: Progress):
        super().__init__(console, 0)
        self._bar, self._task = bar, bar.add_task("preparing the images", total=None)

    def prepared(self, done: int, total: int) -> None:
        if done >= total:
            self._bar.stop()
            return
        self._bar.update(self._task, completed=done, total=total)
        self._bar.start()


class _BarReporter(ProgressReporter):
    """Shows a bar over the rounds, and one over the clients of the current step."""

    def __init__(self, progress: Progress, rounds: int):
        self._progress, self._rounds = progress, rounds
        self._clients = 0
        self._round_task = progress.add_task("preparing", total=rounds)
        self._step_task = progress.add_task("", total=None, visible=False)
        self._shown_step = ""

    def preparing(self, step: str) -> None:
        self._progress.update(self._round_task, description=step, total=None)

    def prepared(self, done: int, total: int) -> None:
        self._progress.update(self._round_task, completed=done, total=total)

    def note(self, note: str) -> None:
        self._progress.console.print(f"note: {note}", highlight=False, markup=False)

    def started(self, config: RunConfig, clients: int, done: int) -> None:
        self._clients, self._rounds = clients, _training_rounds(config)
        title = "rounds" if self._rounds else "predicting"
        self._progress.reset(self._round_task, description=title, completed=done, total=config.rounds)

    def replied(self, client: str, request: Request) -> None:
        step = STEPS.get(type(request).__name__.lower(), "exchanging keys")
        if step != self._shown_step:
            self._shown_step = step
            self._progress.reset(self._step_task, total=self._clients, description=step, visible=True)
        self._progress.advance(self._step_task)

    def round_done(self, record: RoundRecord) -> None:
        self._shown_step = ""
        self._progress.update(self._round_task, completed=record.number)
        self._progress.console.print(_round_line(record, self._rounds), highlight=False, markup=False)


def format_duration(seconds: float) -> str:
    """Return a duration in one unit of time.

    >>> format_duration(0.2), format_duration(59), format_duration(200), format_duration(8000)
    ('1 second', '59 seconds', '3 minutes', '2 hours')
    """
    for length, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return counted(max(round(seconds), 1), "second")


def _training_rounds(config: RunConfig) -> int:
    """Return the number of rounds; 0 if the method trains nothing."""
    from .methods import choose_method  # imports torch, which only a run needs

    return config.rounds if choose_method(config).trains else 0


def _round_line(record: RoundRecord, rounds: int) -> str:
    parts = [f"round {record.number}/{rounds}" if rounds else "predicted"]
    if record.macro is not None:
        parts.append(f"accuracy {percent(record.macro)}")
    if record.loss is not None:
        parts.append(f"loss {record.loss:.3f}")
    if record.refreshed:
        parts.append(", ".join(["new labels", *_label_notes(record)]))
    if rounds and record.kept_old_prompt:
        parts.append("no update to average: the prompts did not change")
    if rounds:
        parts += record.rollbacks()
    if record.converged:
        parts.append("training stops: no more gain on held-out images (train.patience)")
    parts += [f"{client} not used: {reason}" for client, reason in record.dropped.items()]
    parts += [f"{client}: {note}" for client, note in record.site_notes()]
    return ", ".join(parts)


def _label_notes(record: RoundRecord) -> Iterator[str]:
    """Yield the accuracy of the pseudo labels if it is known, otherwise the shares of selected and unchanged ones."""
    labelling = record.labelling
    if record.pseudo_label_accuracy is not None:
        yield f"{percent(record.pseudo_label_accuracy)} right"
    elif labelling:
        yield f"{percent(labelling.chosen / max(labelling.images, 1))} of the images selected"
        if labelling.compared:
            yield f"{percent(labelling.unchanged / labelling.compared)} unchanged"


def percent(share: float | None, sign: str = " %") -> str:
    return "unknown" if share is None else f"{100 * share:.1f}{sign}"

"""What a person sees of a run: its progress on stderr, its outcome on stdout."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ..config import RunConfig
from ..engines.watcher import Watcher
from ..messages import Ask

STEPS = {"Estimate": "labelling", "Select": "choosing", "Train": "training", "Evaluate": "evaluating"}
Record = Mapping[str, Any]


@contextmanager
def watch(rounds: int) -> Iterator[Watcher]:
    """A moving bar on a terminal, plain lines anywhere else."""
    console = Console(stderr=True)
    if not console.is_terminal:
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
        self._began, self._done_before = time.monotonic(), done
        self._line(f"going on after round {done}" if done else _size_of_run(clients, config.rounds))

    def answered(self, client: str, ask: Ask) -> None:
        pass

    def round_done(self, record: Record) -> None:
        done = record["round"] + 1
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
        self._clients = clients
        self._progress.reset(self._all, description="rounds", completed=done, total=self._rounds)

    def answered(self, client: str, ask: Ask) -> None:
        name = STEPS.get(type(ask).__name__, "exchanging keys")
        if name != self._name:
            self._name = name
            self._progress.reset(self._step, total=self._clients, description=name, visible=True)
        self._progress.advance(self._step)

    def round_done(self, record: Record) -> None:
        self._name = ""
        self._progress.update(self._all, completed=record["round"] + 1)
        self._progress.console.print(round_line(record, self._rounds), highlight=False, markup=False)


def _size_of_run(clients: int, rounds: int) -> str:
    return f"{clients} client{'s' * (clients != 1)}, {rounds} round{'s' * (rounds != 1)}"


def round_line(record: Record, rounds: int) -> str:
    parts = [f"round {record['round'] + 1}/{rounds}"]
    if record["macro"] is not None:
        parts.append(f"accuracy {percent(record['macro'])}")
    if record["loss"] is not None:
        parts.append(f"loss {record['loss']:.3f}")
    if record["refreshed"]:
        parts.append(", ".join(["new labels", *_about_labels(record)]))
    if record["kept_old_prompt"]:
        parts.append("nothing to average: the old prompts stay")
    parts += record.get("guard", {}).get("words", [])
    parts += [f"{client} left out: {why}" for client, why in record["dropped"].items()]
    return ", ".join(parts)


def _about_labels(record: Record) -> Iterator[str]:
    """How good they are where that is known, else what can be seen of them."""
    told = record.get("labelling")
    if record.get("pseudo_label_accuracy") is not None:
        yield f"{percent(record['pseudo_label_accuracy'])} right"
    elif told:
        yield f"{percent(told['chosen'] / max(told['images'], 1))} of the images chosen"
        if told["compared"]:
            yield f"{percent(told['unchanged'] / told['compared'])} labelled as before"


def print_results(outcome: Record, folder: Path) -> None:
    """The outcome, zero-shot beside the result where labels tell how good they are."""
    console = Console(highlight=False, markup=False)
    if outcome["final"]["macro"] is None:
        console.print(f"{outcome['name']}, seed {outcome['seed']}: no labelled test images, so accuracy is unknown")
    else:
        console.print(accuracy_table(outcome))
    for title, value in facts(outcome):
        console.print(f"{title:<22}{value}")
    console.print(f"{'report':<22}{folder / 'report.html'}", soft_wrap=True)


def accuracy_table(outcome: Record) -> Table:
    table = Table(title=f"{outcome['name']}, seed {outcome['seed']}: accuracy in %")
    for name in ("", "macro", "weighted", "global"):
        table.add_column(name, justify="left" if not name else "right")
    rows = {
        "zero-shot CLIP": "zero_shot",
        f"last round ({outcome['final']['round'] + 1})": "final",
        f"best round ({outcome['best']['round'] + 1})": "best",
    }
    for title, key in rows.items():
        table.add_row(title, *(percent(outcome[key][kind], sign="") for kind in ("macro", "weighted", "global")))
    return table


def facts(outcome: Record) -> Iterator[tuple[str, str]]:
    right = outcome["pseudo_label_accuracy"]
    if any(share is not None for share in right):
        told = outcome["settings"]["options"].get("labels") == "truth"
        title = "labels right" if told else "pseudo labels right"
        yield title, ", ".join(percent(share) for share in right) + " (per refresh)"
    held = sum(client["train"] for client in outcome["clients"])
    clients = len(outcome["clients"])
    yield "images used", f"{outcome['images_used']:,} of {held:,}, {clients} client{'s' * (clients != 1)}"
    yield "sent to the server", f"{size(outcome['bytes_up'])} (back: {size(outcome['bytes_down'])})"
    if outcome.get("privacy"):
        yield from privacy_facts(outcome["privacy"])
    yield "time", f"{outcome['seconds']:.0f} s"


def privacy_facts(privacy: Record) -> Iterator[tuple[str, str]]:
    """What the server has seen, and the account where noise was added."""
    seen = "sums over the clients only" if privacy["secure_sums"] else "each client's own numbers"
    yield "the server saw", seen if privacy["epsilon"] is None else f"{seen}, with noise"
    if privacy["epsilon"] is not None:
        budget = f"epsilon {privacy['epsilon']:.3g}, delta {privacy['delta']:g}"
        yield "privacy", f"{budget} for {privacy['unit']}, {privacy['releases']} releases"


def percent(share: float | None, sign: str = " %") -> str:
    return "unknown" if share is None else f"{100 * share:.1f}{sign}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"

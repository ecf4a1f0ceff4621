"""What people see of a real federation."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .show import percent, privacy_facts, size

Told = Mapping[str, Any]


def print_outcome(outcome: Told, folder: Path) -> None:
    """The end of a run as the server knows it; accuracy only where sites had labels."""
    console = _console()
    last = outcome["rounds"][-1]
    rounds = len(outcome["rounds"])
    console.print(f"{outcome['name']}, seed {outcome['seed']}: {rounds} round{'s' * (rounds != 1)}")
    for title, value in (
        ("sites", ", ".join(outcome["sites"])),
        ("accuracy", _accuracy(outcome)),
        ("images trained on", f"{last['examples']:,} in the last round" if last["examples"] else "not told"),
        ("loss", "unknown" if last["loss"] is None else f"{last['loss']:.3f} in the last round"),
        ("answers not used", str(sum(len(record["dropped"]) for record in outcome["rounds"]))),
        ("sent to the server", f"{size(outcome['bytes_up'])} (back: {size(outcome['bytes_down'])})"),
        (
            "on the wire",
            f"{size(outcome['traffic']['received'])} (back: {size(outcome['traffic']['sent'])}), this start",
        ),
        *_privacy(outcome),
        ("time", f"{outcome['seconds']:.0f} s"),
        ("results", str(folder)),
    ):
        console.print(f"{title:<22}{value}", soft_wrap=True)


def _accuracy(outcome: Told) -> str:
    if outcome["final"]["macro"] is None:
        return "unknown: no site has labelled test images"
    return f"{percent(outcome['final']['macro'])} (zero-shot: {percent(outcome['zero_shot']['macro'])})"


def _privacy(told: Told) -> Iterator[tuple[str, str]]:
    if told.get("privacy"):
        yield from privacy_facts(told["privacy"])


def print_status(told: Told) -> None:
    console = _console()
    for title, value in (*told["facts"].items(), *_privacy(told)):
        console.print(f"{title:<22}{value}", soft_wrap=True)
    if told.get("sites"):
        console.print(_table(("site", "now", "since", "last trained"), told["sites"]))
    if told.get("rounds"):
        console.print(_table(("round", "sites", "images", "loss", "left out"), told["rounds"]))


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table()
    for title in titles:
        table.add_column(title)
    for row in rows:
        table.add_row(*row)
    return table


def _console() -> Console:
    return Console(highlight=False, markup=False)

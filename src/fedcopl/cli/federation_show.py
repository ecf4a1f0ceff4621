"""What people see of a real federation."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ..api.progress import percent
from ..privacy.accountant import PrivacyStatement
from ..run.record import Outcome
from .show import privacy_facts, size

if TYPE_CHECKING:
    from ..deployment.status import Status


def print_outcome(outcome: Outcome, folder: Path) -> None:
    """The end of a run as the server knows it; accuracy only where sites had labels."""
    console = _console()
    rounds = len(outcome.rounds)
    console.print(f"{outcome.name}, seed {outcome.seed}: {rounds} round{'s' * (rounds != 1)}")
    for title, value in (*_about_rounds(outcome), ("results", str(folder))):
        console.print(f"{title:<22}{value}", soft_wrap=True)


def _about_rounds(outcome: Outcome) -> Iterator[tuple[str, str]]:
    last = outcome.rounds[-1]
    yield "sites", ", ".join(outcome.sites or ())
    yield "accuracy", _accuracy(outcome)
    yield "images trained on", f"{last.examples:,} in the last round" if last.examples else "not told"
    yield "loss", "unknown" if last.loss is None else f"{last.loss:.3f} in the last round"
    yield "answers not used", str(sum(len(record.dropped) for record in outcome.rounds))
    yield "sent to the server", f"{size(outcome.bytes_up)} (back: {size(outcome.bytes_down)})"
    if outcome.traffic:
        yield "on the wire", f"{size(outcome.traffic['received'])} (back: {size(outcome.traffic['sent'])}), this start"
    yield from _privacy(outcome.privacy)
    yield "time", f"{outcome.seconds:.0f} s"


def _accuracy(outcome: Outcome) -> str:
    if outcome.final.macro is None:
        return "unknown: no site has labelled test images"
    return f"{percent(outcome.final.macro)} (zero-shot: {percent(outcome.zero_shot.macro)})"


def _privacy(privacy: PrivacyStatement | None) -> Iterator[tuple[str, str]]:
    if privacy:
        yield from privacy_facts(privacy)


def print_status(status: "Status") -> None:
    console = _console()
    for title, value in (*status.facts.items(), *_privacy(status.privacy)):
        console.print(f"{title:<22}{value}", soft_wrap=True)
    if status.sites:
        console.print(_table(("site", "now", "since", "last trained"), status.sites))
    if status.rounds:
        console.print(_table(("round", "sites", "images", "loss", "left out"), status.rounds))


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table()
    for title in titles:
        table.add_column(title)
    for row in rows:
        table.add_row(*row)
    return table


def _console() -> Console:
    return Console(highlight=False, markup=False)

"""Results of a run and status of a federation on the terminal."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ..plurals import counted
from ..privacy.accountant import PrivacyStatement
from ..progress import percent
from ..report.numbers import difference
from ..run.record import Accuracies, Outcome

_WORTH_A_WORD = 1.0  # points

if TYPE_CHECKING:
    from ..deployment.status import Status
    from ..simulation.time_estimate import TimeEstimate


def print_results(outcome: Outcome, folder: Path) -> None:
    """Print accuracies where there are labels, else priors, confidence and rollbacks."""
    from ..report.label_free import label_free, label_free_facts, read_reviews
    from ..run.pseudo_labels import read_last_labels

    console, first = _console(), []
    if outcome.final.macro is None:
        title = f"{outcome.method}, {outcome.name}, seed {outcome.seed}"
        console.print(f"{title}: accuracy not measured, no labelled test images", soft_wrap=True)
        first = list(label_free_facts(label_free(outcome, read_last_labels(folder), read_reviews(folder))))
    else:
        console.print(_accuracy_table(outcome))
    for title, value in (*first, *facts(outcome), ("report", str(folder / "report.html"))):
        console.print(f"{title:<22}{value}", soft_wrap=True)


def print_next(*commands: Sequence[object] | str) -> None:
    """Name the commands that usually follow, on standard error: the results alone are on standard output."""
    for number, command in enumerate(commands):
        line = command if isinstance(command, str) else shlex.join(map(str, command))
        print(f"{'      or' if number else 'next:'} {line}", file=sys.stderr)


def print_estimate(run: "TimeEstimate", *, as_json: bool) -> None:
    """Print the expected wall time and memory of a run."""
    if as_json:
        names = ("seconds", "memory", "workers", "is_busy")
        print(json.dumps({**{name: getattr(run, name) for name in names}, **asdict(run.work)}))
        return
    console = _console()
    console.print(f"{'takes':<22}{run}", soft_wrap=True)
    console.print(f"{'computes':<22}{run.work.encoded:,} image encodings, {run.work.steps:,} training steps")


def _accuracy_table(outcome: Outcome) -> Table:
    """Zero-shot CLIP, priors, the last and the best round; without training one row for the method."""
    table = Table(title=f"{outcome.method}\n{outcome.name}, seed {outcome.seed}: accuracy in %")
    for name in ("", "macro", "weighted", "global"):
        table.add_column(name, justify="left" if not name else "right")
    rows: dict[str, Accuracies] = {"zero-shot CLIP": outcome.zero_shot}
    if outcome.untrained is not None:
        rows["priors, no training"] = outcome.untrained
    if outcome.trains:
        rows[f"last round ({outcome.final.number})"] = outcome.final
        rows[f"best round ({outcome.best.number})"] = outcome.best
    elif outcome.setting("method") != "zeroshot":
        rows[outcome.method] = outcome.final
    for title, row in rows.items():
        table.add_row(title, *(percent(share, sign="") for share in (row.macro, row.weighted, row.everywhere)))
    return table


def facts(outcome: Outcome) -> Iterator[tuple[str, str]]:
    right = outcome.pseudo_label_accuracy
    if any(share is not None for share in right):
        title = "labels right" if outcome.setting("options", "labels") == "truth" else "pseudo labels right"
        yield title, ", ".join(percent(share) for share in right) + " (per refresh)"
    clients = len(outcome.clients)
    if not outcome.trains:
        yield "training", f"none: {outcome.method} trains nothing"
    elif (lost := difference(getattr(outcome.untrained, "macro", None), outcome.final.macro) or 0) > _WORTH_A_WORD:
        yield "training", f"lost {lost:.1f} points against priors alone: method=priors is better on this data"
    if outcome.trains:
        yield from _rollbacks(outcome)
        yield "images used", f"{outcome.images_used:,} of {outcome.images_held:,}, {counted(clients, 'client')}"
    else:
        yield "images", f"{outcome.images_held:,}, {counted(clients, 'client')}"
    yield "sent to the server", f"{size(outcome.bytes_up)} (back: {size(outcome.bytes_down)})"
    yield from _privacy_facts(outcome.privacy)
    yield "time", f"{outcome.seconds:.0f} s"


def _rollbacks(outcome: Outcome) -> Iterator[tuple[str, str]]:
    from ..report.narrative import by_rounds

    lines = by_rounds((record.number, text) for record in outcome.rounds for text in record.rollbacks())
    if not lines and outcome.final.macro is None:
        checked = any(record.holdout and record.holdout.images for record in outcome.rounds)
        lines = ["nothing" if checked else "nothing: no hold-out check was made"]
    yield from (("rolled back", line) for line in lines)


def _privacy_facts(privacy: PrivacyStatement | None) -> Iterator[tuple[str, str]]:
    """What the server sees, and the privacy budget spent where noise is added."""
    if privacy is None:
        return
    seen = "sums over the clients only" if privacy.secure_aggregation else "each client's own numbers"
    yield "the server sees", seen if privacy.epsilon is None else f"{seen}, with noise"
    if privacy.epsilon is not None:
        budget = f"epsilon {privacy.epsilon:.3g}, delta {privacy.delta:g}"
        yield "privacy", f"{budget} for {privacy.unit}, {counted(privacy.releases or 0, 'release')}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def print_outcome(outcome: Outcome, folder: Path) -> None:
    """Print the end of a run as the server knows it; accuracy only where sites have labels."""
    console = _console()
    rounds = counted(len(outcome.rounds), "round")
    console.print(f"{outcome.method}, {outcome.name}, seed {outcome.seed}: {rounds}")
    for title, value in (*_about_rounds(outcome), ("report", str(folder / "report.html"))):
        console.print(f"{title:<22}{value}", soft_wrap=True)


def _about_rounds(outcome: Outcome) -> Iterator[tuple[str, str]]:
    last = outcome.rounds[-1]
    yield "sites", ", ".join(outcome.sites or ())
    known = f"{percent(outcome.final.macro)} (zero-shot: {percent(outcome.zero_shot.macro)})"
    yield "accuracy", "unknown: no site has labelled test images" if outcome.final.macro is None else known
    yield "images trained on", f"{last.examples:,} in the last round" if last.examples else "not reported"
    yield "loss", "unknown" if last.loss is None else f"{last.loss:.3f} in the last round"
    yield "replies not used", str(sum(len(record.dropped) for record in outcome.rounds))
    yield "sent to the server", f"{size(outcome.bytes_up)} (back: {size(outcome.bytes_down)})"
    if outcome.traffic:
        yield "on the wire", f"{size(outcome.traffic['received'])} (back: {size(outcome.traffic['sent'])}), this start"
    yield from _privacy_facts(outcome.privacy)
    yield "time", f"{outcome.seconds:.0f} s"


def print_status(status: "Status") -> None:
    console = _console()
    for title, value in (*status.facts.items(), *_privacy_facts(status.privacy)):
        console.print(f"{title:<22}{value}", soft_wrap=True)
    if status.sites:
        console.print(_table(("site", "now", "since", "last trained", "its key"), status.sites))
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

"""Terminal output: results of a run, status of a federation, and the next commands."""

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ..plurals import counted
from ..privacy.accountant import PrivacyStatement
from ..progress import percent
from ..report import formatting as fmt
from ..run.record import Accuracies, Outcome

_LOSS_SHOWN = 1.0  # percentage points: a larger loss of accuracy by training, against the priors, is printed

if TYPE_CHECKING:
    from ..deployment.monitoring import Status
    from ..simulation.time_estimate import TimeEstimate


def print_results(outcome: Outcome, folder: Path) -> None:
    """Print the accuracies, or without labelled test images the label-free estimates, and facts about the run."""
    from ..report.label_free import label_free, label_free_facts, read_reviews
    from ..run.pseudo_labels import read_last_labels

    console, label_free_lines = _console(), []
    if outcome.final.macro is None:
        title = f"{outcome.method}, {outcome.name}, seed {outcome.seed}"
        console.print(f"{title}: accuracy not measured, no labelled test images", soft_wrap=True)
        label_free_lines = list(label_free_facts(label_free(outcome, read_last_labels(folder), read_reviews(folder))))
    else:
        console.print(_accuracy_table(outcome))
    _print_facts((*label_free_lines, *_facts(outcome), ("report", str(folder / "report.html"))))


def print_next(*commands: Sequence[object] | str) -> None:
    """Print suggested next commands to standard error, so that standard output has only the results."""
    for number, command in enumerate(commands):
        line = command if isinstance(command, str) else shlex.join(map(str, command))
        print(f"{'      or' if number else 'next:'} {line}", file=sys.stderr)


def print_estimate(estimate: "TimeEstimate", *, as_json: bool) -> None:
    """Print the expected wall time and memory of a run."""
    if as_json:
        names = ("seconds", "memory", "workers", "is_busy")
        print(json.dumps({**{name: getattr(estimate, name) for name in names}, **asdict(estimate.work)}))
        return
    compute = f"{estimate.work.encoded:,} image encodings, {estimate.work.steps:,} training steps"
    _print_facts((("wall time", str(estimate)), ("compute", compute)))


def _accuracy_table(outcome: Outcome) -> Table:
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


def _facts(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Yield title and value of each line about the run below its accuracies."""
    accuracies = outcome.pseudo_label_accuracy
    if any(accuracy is not None for accuracy in accuracies):
        title = "label accuracy" if outcome.setting("options", "labels") == "truth" else "pseudo-label accuracy"
        yield title, ", ".join(percent(accuracy) for accuracy in accuracies) + " (at each label refresh)"
    clients = len(outcome.clients)
    if not outcome.trains:
        yield "training", f"none: {outcome.method} trains nothing"
    elif (lost := _points_lost(outcome)) > _LOSS_SHOWN:
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
    """Yield a line for each rollback; without one, and without accuracies, a line that there was none."""
    from ..report.narrative import by_rounds

    lines = by_rounds((record.number, text) for record in outcome.rounds for text in record.rollbacks())
    if not lines and outcome.final.macro is None:
        checked = any(record.holdout and record.holdout.images for record in outcome.rounds)
        lines = ["nothing" if checked else "nothing: no hold-out check was made"]
    yield from (("rolled back", line) for line in lines)


def _points_lost(outcome: Outcome) -> float:
    """Return how many points of accuracy training lost against the priors without training; 0 if not measured."""
    before = None if outcome.untrained is None else outcome.untrained.macro
    after = outcome.final.macro
    return 0.0 if before is None or after is None else 100 * (before - after)


def _privacy_facts(privacy: PrivacyStatement | None) -> Iterator[tuple[str, str]]:
    """Yield the values that the server sees, and the spent privacy budget if noise is added."""
    if privacy is None:
        return
    server_input = "sums over the clients only" if privacy.secure_aggregation else "each client's own numbers"
    yield "the server sees", server_input if privacy.epsilon is None else f"{server_input}, with noise"
    if privacy.epsilon is not None:
        budget = f"epsilon {privacy.epsilon:.3g}, delta {privacy.delta:g}"
        yield "privacy", f"{budget} for {privacy.unit}, {counted(privacy.releases or 0, 'release')}"


def size(octets: int) -> str:
    """Format a number of bytes like the report, with plain spaces."""
    return fmt.size(octets).replace(fmt.SPACE, " ")


def print_outcome(outcome: Outcome, folder: Path) -> None:
    """Print the results of a federation at its server; the accuracy is measured if sites have labelled test images."""
    console = _console()
    rounds = counted(len(outcome.rounds), "round")
    console.print(f"{outcome.method}, {outcome.name}, seed {outcome.seed}: {rounds}")
    last, traffic, accuracy = outcome.rounds[-1], outcome.traffic, "not measured: no site has labelled test images"
    on_the_wire = {}
    if traffic:
        on_the_wire["on the wire"] = f"{size(traffic['received'])} (back: {size(traffic['sent'])}) since this start"
    training = {"training": f"none: {outcome.method} trains nothing"}
    if outcome.trains:
        training = {
            "images trained on": f"{last.examples:,} in the last round" if last.examples else "not reported",
            "loss": "not reported" if last.loss is None else f"{last.loss:.3f} in the last round",
        }
    if outcome.final.macro is not None:
        accuracy = f"{percent(outcome.final.macro)} (zero-shot: {percent(outcome.zero_shot.macro)})"
    lines = {
        "sites": ", ".join(outcome.sites or ()),
        "accuracy": accuracy,
        **training,
        "replies not used": str(sum(len(record.dropped) for record in outcome.rounds)),
        "sent to the server": f"{size(outcome.bytes_up)} (back: {size(outcome.bytes_down)})",
        **on_the_wire,
        **dict(_privacy_facts(outcome.privacy)),
        "time": f"{outcome.seconds:.0f} s",
        "report": str(folder / "report.html"),
    }
    _print_facts(lines.items())


def print_status(status: "Status") -> None:
    """Print the state of a server or a site."""
    console = _console()
    _print_facts((*status.facts.items(), *_privacy_facts(status.privacy)))
    if status.sites:
        console.print(_table(("site", "connection", "since", "last trained", "key"), status.sites))
    if status.rounds:
        console.print(_table(("round", "sites", "images", "loss", "left out"), status.rounds))


def _print_facts(facts: Iterable[tuple[str, str]]) -> None:
    for title, value in facts:
        _console().print(f"{title:<22}{value}", soft_wrap=True)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table()
    for title in titles:
        table.add_column(title)
    for row in rows:
        table.add_row(*row)
    return table


def _console() -> Console:
    return Console(highlight=False, markup=False)

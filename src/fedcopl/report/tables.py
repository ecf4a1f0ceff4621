"""Clients and classes of a run as rows of numbers, for the report."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..run.record import ClientRecord, Counts, Outcome, RoundRecord
from .narrative import LabelStory, refused_priors
from .numbers import difference

SHOWN = 30  # clients in a table; the others are summed up or folded
_LEVELS = 9  # shades of a heat map, not counting the one of zero
_CHANGES = 5  # shades of a change, in each direction
Table = tuple[NDArray[np.int64], NDArray[np.bool_]]
"""Numbers by client and class, and which clients replied; the row of one that did not is zero."""


def _count_table(rows: Sequence[Counts | None], classes: int) -> Table:
    """Build a table from one row per client; a client without a reply has None or an empty row."""
    full = [row or (0,) * classes for row in rows]
    return np.array(full, np.int64).reshape(len(rows), classes), np.array([bool(row) for row in rows], np.bool_)


@dataclass(frozen=True)
class Counted:
    """Images per client and class at the last refresh; `true` where labels exist."""

    true: Table | None
    estimated: Table
    allocated: Table
    selected: Table


def counted(outcome: Outcome) -> Counted | None:
    """Return the label counts of a run; None if nothing was labelled."""
    if not outcome.refreshes:
        return None
    classes, last = len(outcome.classes), outcome.refreshes[-1]
    true = [client.true_counts for client in outcome.clients]
    return Counted(
        _count_table(true, classes) if any(row is not None for row in true) else None,
        *(_count_table(rows, classes) for rows in (last.estimated, last.allocated, last.selected)),
    )


@dataclass(frozen=True)
class _HeatTable:
    """A table of clients by classes whose cells are shaded by their number."""

    title: str
    note: str
    rows: list[tuple[str, list[tuple[int, str]]]]  # client; number and look of each cell, none without a reply
    others: list[int] | None  # the clients that are not shown, together
    totals: list[int]
    signed: bool = False
    unit: str = "counts"
    missing: str = "no reply"  # stands for a row without numbers


def heat_tables(outcome: Outcome, numbers: Counted, story: LabelStory) -> list[_HeatTable]:
    """The counts with one common scale of shades, and the change where the server balanced the classes."""
    used = "Labels of the data; they were used." if story.supervised else "Labels of the data; never used in training."
    titled = [
        ("True", used, numbers.true),
        ("Estimated", story.estimated, numbers.estimated),
        ("Allocated", story.allocated, numbers.allocated),
        ("Selected", story.selected, numbers.selected),
    ]
    available = [(title, note, one) for title, note, one in titled if one is not None]
    largest = max(int(counts.max(initial=0)) for _, _, (counts, _) in available)
    tables = [_heat_table(outcome, title, note, one, largest) for title, note, one in available]
    if not story.cooperative:
        return tables
    both = numbers.estimated[1] & numbers.allocated[1]
    change = np.where(both[:, None], numbers.allocated[0] - numbers.estimated[0], 0)
    most = int(np.abs(change).max(initial=0))
    title, note = "Change by the allocation", "Allocated minus estimated."
    return [*tables, _heat_table(outcome, title, note, (change, both), most, signed=True)]


def _heat_table(
    outcome: Outcome,
    title: str,
    note: str,
    table: Table,
    largest: int,
    together: Callable[[NDArray[np.int64]], list[int]] | None = None,
    **looks: Any,
) -> _HeatTable:
    """Shade the largest clients' numbers, and take the others and all `together`; without it they are added up."""
    numbers, present = table

    def shaded(number: int) -> tuple[int, str]:
        if looks.get("signed"):
            return number, f"{'less' if number < 0 else 'more'}{_shade(abs(number), largest, _CHANGES)}"
        return number, f"h{_shade(number, largest, _LEVELS)}"

    def added(clients: NDArray[np.int64]) -> list[int]:
        return [int(number) for number in numbers[clients].sum(axis=0)]

    shown, everyone = largest_clients(outcome), np.arange(len(outcome.clients))
    rows = [(outcome.clients[k].name, [shaded(n) for n in numbers[k].tolist()] if present[k] else []) for k in shown]
    rest, of_several = np.setdiff1d(everyone, shown), together or added
    return _HeatTable(title, note, rows, of_several(rest) if len(rest) else None, of_several(everyone), **looks)


def _shares(rows: Sequence[Sequence[float] | None], classes: int) -> NDArray[np.float64]:
    """Rows that sum to 1, by client and class; zeros where a client's are not known."""
    numbers = np.array([row or (0.0,) * classes for row in rows], np.float64).reshape(len(rows), classes)
    sums = numbers.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(numbers, sums, out=np.zeros_like(numbers), where=sums > 0))


def class_priors(outcome: Outcome) -> dict[str, Any]:
    """Return the page's table of class priors of the last refresh.

    Returns:
        priors: The estimated ones, and the true ones where labels exist; nothing without priors.
        common: Whether all clients that have a prior have the same one.
        overlap: Sum over the classes of the smaller of estimated and true prior, mean over clients; None if unknown.
    """
    classes, last = len(outcome.classes), outcome.refreshes[-1].class_prior if outcome.refreshes else ()
    if not any(last):
        return {"priors": [], "common": False, "overlap": None}
    refused = refused_priors(outcome)
    own = [None if client.name in refused else row for client, row in zip(outcome.clients, last, strict=True)]
    estimated, true = _shares(own, classes), _shares([client.true_counts for client in outcome.clients], classes)
    note = "In per cent; estimated by each client without labels, and never sent."
    tables = [_prior_table(outcome, "Estimated class prior", note, estimated)]
    if true.any():
        tables.append(_prior_table(outcome, "True class prior", "In per cent; from labels that were never used.", true))
    nonzero, both = estimated[estimated.any(axis=1)], estimated.any(axis=1) & true.any(axis=1)
    overlap = float(min(np.minimum(estimated, true)[both].sum(axis=1).mean(), 1.0)) if both.any() else None
    return {"priors": tables, "common": bool(len(nonzero) and np.ptp(nonzero, axis=0).max() < 1e-9), "overlap": overlap}


def _prior_table(outcome: Outcome, title: str, note: str, shares: NDArray[np.float64]) -> _HeatTable:
    present = np.asarray(shares.any(axis=1))
    images = np.array([client.train or 0 for client in outcome.clients], np.int64)

    def pooled_prior(clients: NDArray[np.int64]) -> list[int]:
        """Average the class priors, weighted by images; unweighted if their numbers are unknown."""
        estimated = clients[present[clients]]
        weights = images[estimated] if images[estimated].any() else np.ones(len(estimated))
        return [int(share) for share in np.rint(100 * weights @ shares[estimated] / max(weights.sum(), 1))]

    percents = np.rint(100 * shares).astype(np.int64), present
    return _heat_table(outcome, title, note, percents, 100, pooled_prior, unit="per cent", missing="not estimated")


def _shade(number: int, largest: int, levels: int) -> int:
    """Map a count to a shade from 0 to `levels`, by the square root, so that small counts stay visible."""
    return math.ceil(levels * math.sqrt(number / largest)) if number else 0


def largest_clients(outcome: Outcome, most: int = SHOWN) -> list[int]:
    """Return all clients in order; if there are many, those with the most training images, largest first."""
    sizes = np.array([client.train or 0 for client in outcome.clients])
    if len(sizes) <= SHOWN:
        return list(range(len(sizes)))
    return [int(k) for k in np.argsort(-sizes, kind="stable")[:most]]


@dataclass(frozen=True)
class ClassRow:
    """Images of one class over all clients at the last refresh."""

    name: str
    true: int | None
    estimated: int
    allocated: int
    selected: int


def class_rows(outcome: Outcome, numbers: Counted) -> list[ClassRow]:
    true = numbers.true[0].sum(axis=0).tolist() if numbers.true else [None] * len(outcome.classes)
    others = (table[0].sum(axis=0).tolist() for table in (numbers.estimated, numbers.allocated, numbers.selected))
    return [ClassRow(*row) for row in zip(outcome.classes, true, *others, strict=True)]


@dataclass(frozen=True)
class _ReportedClient:
    """A client with its accuracies, its participation, and its counts of the last refresh."""

    client: ClientRecord
    priors: float | None  # accuracy of the priors without training
    rounds: int | None  # in which it took part; None where that is not recorded
    last: str  # its part in the last round
    estimated: int = 0
    allocated: int = 0
    selected: int = 0

    @property
    def name(self) -> str:
        return self.client.name

    @property
    def points(self) -> float | None:
        return difference(self.client.final, self.client.zero_shot)


def reported_clients(outcome: Outcome, numbers: Counted | None) -> list[_ReportedClient]:
    """Return the rows of all clients; if there are many, largest first."""
    clients, rounds = outcome.clients, outcome.rounds
    untrained = outcome.untrained.clients if outcome.untrained else ()
    priors = untrained if len(untrained) == len(clients) else (None,) * len(clients)
    listed = any(record.sites is not None for record in rounds)
    trained_rounds = [
        sum(client.name in (record.sites or ()) for record in rounds) if listed else None for client in clients
    ]
    last = [_last_part(client.name, rounds[-1]) for client in clients]
    tables = (numbers.estimated, numbers.allocated, numbers.selected) if numbers else ()
    sums = [table[0].sum(axis=1).tolist() for table in tables]
    rows = [_ReportedClient(*row) for row in zip(clients, priors, trained_rounds, last, *sums, strict=True)]
    return [rows[k] for k in largest_clients(outcome, len(rows))]


def _last_part(name: str, record: RoundRecord) -> str:
    if name in record.dropped:
        return f"reply not used: {record.dropped[name]}"
    if record.sites is None or name in record.sites:
        return "took part"
    return "waits for the next refresh" if name in record.missed_refresh else "absent"


def changed_clients(rows: Sequence[_ReportedClient]) -> tuple[int, int, int] | None:
    """Count the clients that are better than zero-shot, worse, and equal; None without an evaluation."""
    measured = [row.points for row in rows if row.points is not None]
    better, worse = sum(points > 0 for points in measured), sum(points < 0 for points in measured)
    return (better, worse, len(measured) - better - worse) if measured else None


@dataclass(frozen=True)
class RecallRow:
    """The recall of one class on the test images of the clients that hold it."""

    name: str
    zero_shot: float | None
    last: float | None

    @property
    def points(self) -> float | None:
        return difference(self.last, self.zero_shot)


def recall_rows(outcome: Outcome) -> list[RecallRow]:
    """Return one row per class; empty without labelled test images."""
    last = last_recall(outcome)
    zero_shot = outcome.zero_shot.recall or (None,) * len(outcome.classes)
    return [RecallRow(*row) for row in zip(outcome.classes, zero_shot, last, strict=True)] if last else []


def last_recall(outcome: Outcome) -> tuple[float | None, ...]:
    """Recall of each class as it was measured last; empty where it never was."""
    return next((record.recall for record in reversed(outcome.rounds) if record.recall), ())

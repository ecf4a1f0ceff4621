"""Clients, classes and refreshes as rows of numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..run.record import ClientRecord, Counts, Outcome, RefreshRecord
from .narrative import LabelStory
from .numbers import difference

SHOWN = 30  # clients in a table; the others are summed up
LEVELS = 9  # shades of a heat map, beside the one of zero
CHANGES = 5  # shades of a change, for more and for less


@dataclass(frozen=True)
class CountTable:
    """Counts by client and class. A client that did not answer has a row of zeros and is not `present`."""

    counts: NDArray[np.int64]
    present: NDArray[np.bool_]

    @property
    def totals(self) -> list[int]:
        return [int(number) for number in self.counts.sum(axis=0)]

    @property
    def by_client(self) -> list[int]:
        return [int(number) for number in self.counts.sum(axis=1)]


def count_table(rows: Sequence[Counts | None], classes: int) -> CountTable:
    """From one row per client; a client without an answer has None or an empty one."""
    full = [row or (0,) * classes for row in rows]
    return CountTable(np.array(full, np.int64).reshape(len(rows), classes), np.array([bool(row) for row in rows]))


@dataclass(frozen=True)
class Counted:
    """How many images of each class each client has, at the last refresh; `true` where somebody knows it."""

    true: CountTable | None
    estimated: CountTable
    allocated: CountTable
    selected: CountTable


def counted(outcome: Outcome) -> Counted | None:
    """None for a run that never labelled anything."""
    if not outcome.refreshes:
        return None
    classes, last = len(outcome.classes), outcome.refreshes[-1]
    true = [client.true_counts for client in outcome.clients]
    return Counted(
        count_table(true, classes) if any(row is not None for row in true) else None,
        *(count_table(rows, classes) for rows in (last.estimated, last.allocated, last.selected)),
    )


@dataclass(frozen=True)
class HeatRow:
    name: str
    cells: list[tuple[int, str]]  # number, look; empty if the client did not answer


@dataclass(frozen=True)
class HeatTable:
    title: str
    note: str
    rows: list[HeatRow]
    others: list[int] | None  # the clients that are not shown, together
    totals: list[int]
    signed: bool = False
    unit: str = "counts"


def heat_tables(outcome: Outcome, numbers: Counted, how: LabelStory) -> list[HeatTable]:
    """The tables with one common scale of shades, and what changed where the classes were shared out."""
    used = "What there is; these labels were used."
    titled = [
        ("True", used if how.supervised else "What the clients really hold; never used in training.", numbers.true),
        ("Estimated", how.estimated, numbers.estimated),
        ("Allocated", how.allocated, numbers.allocated),
        ("Selected", how.selected, numbers.selected),
    ]
    known = [(title, note, one) for title, note, one in titled if one is not None]
    largest = max(int(one.counts.max(initial=0)) for _, _, one in known)
    tables = [_heat_table(outcome, title, note, one, largest) for title, note, one in known]
    return [*tables, _changes(outcome, numbers)] if how.cooperative else tables


def _heat_table(
    outcome: Outcome, title: str, note: str, one: CountTable, largest: int, signed: bool = False
) -> HeatTable:
    shown = largest_clients(outcome)
    rest = np.setdiff1d(np.arange(len(outcome.clients)), shown)
    others = [int(number) for number in one.counts[rest].sum(axis=0)] if len(rest) else None
    rows = [HeatRow(outcome.clients[k].name, _cells(one, k, largest, signed)) for k in shown]
    return HeatTable(title, note, rows, others, one.totals, signed)


@dataclass(frozen=True)
class Mixes:
    """Shares by client and class; a row of zeros where a client's are not known."""

    shares: NDArray[np.float64]

    @property
    def present(self) -> NDArray[np.bool_]:
        return np.asarray(self.shares.any(axis=1))

    def together(self, clients: Sequence[int], images: NDArray[np.int64]) -> list[int]:
        """Of all images of some clients, in per cent; every client counts alike where nobody knows how many it has."""
        known = [k for k in clients if self.present[k]]
        weights = images[known] if images[known].any() else np.ones(len(known))
        class_prior = weights @ self.shares[known] / max(weights.sum(), 1)
        return [int(share) for share in np.rint(100 * class_prior)]


def _mixes(rows: Sequence[Sequence[float] | None], classes: int) -> Mixes:
    numbers = np.array([row or (0.0,) * classes for row in rows], np.float64).reshape(len(rows), classes)
    sums = numbers.sum(axis=1, keepdims=True)
    return Mixes(np.divide(numbers, sums, out=np.zeros_like(numbers), where=sums > 0))


def mix_tables(outcome: Outcome) -> list[HeatTable]:
    """In what mix each client believes to hold the classes, and in what mix it does; nothing without priors."""
    if not outcome.refreshes or not any(outcome.refreshes[-1].class_priors):
        return []
    believed = _mixes(outcome.refreshes[-1].class_priors, len(outcome.classes))
    tables = [_mix_table(outcome, "Believed mix", "Found by each client without a label, and never sent.", believed)]
    true = _true_mixes(outcome)
    if true.present.any():
        tables.append(_mix_table(outcome, "True mix", "What the clients really hold; never used.", true))
    return tables


def _true_mixes(outcome: Outcome) -> Mixes:
    return _mixes([client.true_counts for client in outcome.clients], len(outcome.classes))


def _mix_table(outcome: Outcome, title: str, note: str, class_priors: Mixes) -> HeatTable:
    """As a table of counts, but what several clients hold together is no sum of their shares."""
    rounded = CountTable(np.rint(100 * class_priors.shares).astype(np.int64), class_priors.present)
    table = _heat_table(outcome, title, note, rounded, 100)
    images = np.array([client.train or 0 for client in outcome.clients], np.int64)
    everybody, shown = range(len(outcome.clients)), set(largest_clients(outcome))
    others = class_priors.together([k for k in everybody if k not in shown], images) if table.others else None
    return replace(table, others=others, totals=class_priors.together(everybody, images), unit="per cent")


@dataclass(frozen=True)
class MixOverlap:
    """How far the clients' believed mixes were right at a refresh."""

    number: int  # of its round, as people count
    overlap: float  # sum over the classes of the lesser share, mean over the clients; 1 is the same mix


def mix_overlaps(outcome: Outcome) -> list[MixOverlap]:
    """Refresh by refresh, where somebody knows the truth."""
    true = _true_mixes(outcome)
    found = []
    for refresh in outcome.refreshes:
        believed = _mixes(refresh.class_priors or [None] * len(outcome.clients), len(outcome.classes))
        both = true.present & believed.present
        if both.any():
            common = np.minimum(true.shares, believed.shares)[both].sum(axis=1)
            found.append(MixOverlap(refresh.number, float(min(common.mean(), 1.0))))
    return found


def _changes(outcome: Outcome, numbers: Counted) -> HeatTable:
    """Who gave and who got: allocated minus estimated."""
    estimated, allocated = numbers.estimated, numbers.allocated
    both = estimated.present & allocated.present
    change = CountTable(np.where(both[:, None], allocated.counts - estimated.counts, 0), both)
    largest = int(np.abs(change.counts).max(initial=0))
    note = "Allocated minus estimated: below zero the client gave, above zero it got."
    return _heat_table(outcome, "Given and got", note, change, largest, signed=True)


def _cells(one: CountTable, client: int, largest: int, signed: bool) -> list[tuple[int, str]]:
    if not one.present[client]:
        return []
    look = change_look if signed else level_look
    return [(int(number), look(int(number), largest)) for number in one.counts[client]]


def level_look(number: int, largest: int) -> str:
    return f"h{shade(number, largest, LEVELS)}"


def change_look(number: int, largest: int) -> str:
    """Two families of shades, for more and for less."""
    return f"{'less' if number < 0 else 'more'}{shade(abs(number), largest, CHANGES)}"


def shade(number: int, largest: int, levels: int) -> int:
    """From 0 for none to `levels` for the largest, by the square root: a few must be seen beside very many."""
    return math.ceil(levels * math.sqrt(number / largest)) if number else 0


def largest_clients(outcome: Outcome) -> list[int]:
    """All clients as they come, or of many those with the most training images, the largest first."""
    sizes = np.array([client.train or 0 for client in outcome.clients])
    if len(sizes) <= SHOWN:
        return list(range(len(sizes)))
    return [int(k) for k in np.argsort(-sizes, kind="stable")[:SHOWN]]


@dataclass(frozen=True)
class ClassRow:
    """What the allocation did to one class, over all clients."""

    name: str
    true: int | None
    estimated: int
    allocated: int
    selected: int

    @property
    def change(self) -> int:
        return self.allocated - self.estimated


def class_rows(outcome: Outcome, numbers: Counted) -> list[ClassRow]:
    true: Sequence[int | None] = numbers.true.totals if numbers.true else [None] * len(outcome.classes)
    others = (numbers.estimated.totals, numbers.allocated.totals, numbers.selected.totals)
    return [ClassRow(*row) for row in zip(outcome.classes, true, *others, strict=True)]


@dataclass(frozen=True)
class ReportedClient:
    """A client, and how many images it counted, was allowed and took at the last refresh."""

    client: ClientRecord
    estimated: int = 0
    allocated: int = 0
    selected: int = 0

    @property
    def name(self) -> str:
        return self.client.name

    @property
    def points(self) -> float | None:
        return difference(self.client.final, self.client.zero_shot)

    @property
    def change(self) -> int:
        return self.allocated - self.estimated


def reported_clients(outcome: Outcome, numbers: Counted | None) -> list[ReportedClient]:
    """Every client; of many, the largest first."""
    rows = [ReportedClient(client) for client in outcome.clients]
    if numbers:
        sums = (one.by_client for one in (numbers.estimated, numbers.allocated, numbers.selected))
        rows = [ReportedClient(*row) for row in zip(outcome.clients, *sums, strict=True)]
    return rows if len(rows) <= SHOWN else sorted(rows, key=lambda row: -(row.client.train or 0))


@dataclass(frozen=True)
class Verdict:
    """How many clients the training helped."""

    better: int
    worse: int
    same: int


def verdict(rows: Sequence[ReportedClient]) -> Verdict | None:
    measured = [row.points for row in rows if row.points is not None]
    if not measured:
        return None
    better, worse = sum(points > 0 for points in measured), sum(points < 0 for points in measured)
    return Verdict(better, worse, len(measured) - better - worse)


@dataclass(frozen=True)
class RefreshRow:
    """A refresh, and its counts over all clients and classes."""

    refresh: RefreshRecord
    number: int  # of its round, as people count
    estimated: int
    allocated: int


def refresh_rows(outcome: Outcome) -> list[RefreshRow]:
    return [
        RefreshRow(refresh, refresh.round + 1, _sum(refresh.estimated), _sum(refresh.allocated))
        for refresh in outcome.refreshes
    ]


def _sum(rows: Sequence[Counts]) -> int:
    return sum(map(sum, rows))


@dataclass(frozen=True)
class RecallRow:
    """How much of a class's test images is found, by the models of the clients that hold them."""

    name: str
    zero_shot: float | None
    last: float | None

    @property
    def points(self) -> float | None:
        return difference(self.last, self.zero_shot)


def recall_rows(outcome: Outcome) -> list[RecallRow]:
    """One row per class; none at all where no test image has a label."""
    last = last_recall(outcome)
    zero_shot = outcome.zero_shot.recall or (None,) * len(outcome.classes)
    return [RecallRow(*row) for row in zip(outcome.classes, zero_shot, last, strict=True)] if last else []


def last_recall(outcome: Outcome) -> tuple[float | None, ...]:
    """Of each class, as it was measured last; nothing where it never was."""
    return next((record.recall for record in reversed(outcome.rounds) if record.recall), ())

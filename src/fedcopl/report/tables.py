"""Clients, classes and refreshes as rows of numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .narrative import Labelling, Results
from .numbers import difference

SHOWN = 30  # clients in a table; the others are summed up
LEVELS = 9  # shades of a heat map, beside the one of zero
CHANGES = 5  # shades of a change, for more and for less

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """Counts by client and class. A client that did not answer has a row of zeros and is not `present`."""

    counts: Counts
    present: NDArray[np.bool_]

    @property
    def totals(self) -> list[int]:
        return [int(number) for number in self.counts.sum(axis=0)]

    @property
    def by_client(self) -> list[int]:
        return [int(number) for number in self.counts.sum(axis=1)]


def table(rows: Sequence[Sequence[int] | None], classes: int) -> Table:
    """From one row per client; a client without an answer has None or an empty one."""
    full = [list(row) if row else [0] * classes for row in rows]
    return Table(np.array(full, np.int64).reshape(len(rows), classes), np.array([bool(row) for row in rows]))


@dataclass(frozen=True)
class Counted:
    """How many images of each class each client has, at the last refresh; `true` where somebody knows it."""

    true: Table | None
    estimated: Table
    allocated: Table
    selected: Table


def counted(results: Results) -> Counted | None:
    """None for a run that never labelled anything."""
    if not results["refreshes"]:
        return None
    classes, last = len(results["classes"]), results["refreshes"][-1]
    true = [client["true_counts"] for client in results["clients"]]
    return Counted(
        table(true, classes) if any(row is not None for row in true) else None,
        table(last["estimated"], classes),
        table(last["allocated"], classes),
        table(last["selected"], classes),
    )


@dataclass(frozen=True)
class HeatRow:
    name: str
    cells: list[tuple[int, str]]  # number, look; empty if the client did not answer


@dataclass(frozen=True)
class HeatMap:
    title: str
    note: str
    rows: list[HeatRow]
    others: list[int] | None  # the clients that are not shown, together
    totals: list[int]
    signed: bool = False


def heat_maps(results: Results, numbers: Counted, how: Labelling) -> list[HeatMap]:
    """The tables with one common scale of shades, and what changed where the classes were shared out."""
    titled = [
        ("True", "What the clients really hold; never used in training.", numbers.true),
        ("Estimated", how.estimated, numbers.estimated),
        ("Allocated", how.allocated, numbers.allocated),
        ("Selected", how.selected, numbers.selected),
    ]
    if how.supervised:
        titled[0] = ("True", "What there is; these labels were used.", numbers.true)
    known = [(title, note, one) for title, note, one in titled if one is not None]
    largest = max(int(one.counts.max(initial=0)) for _, _, one in known)
    maps = [_heat_map(results, title, note, one, largest) for title, note, one in known]
    return [*maps, _changes(results, numbers)] if how.cooperative else maps


def _heat_map(results: Results, title: str, note: str, one: Table, largest: int, signed: bool = False) -> HeatMap:
    names = [client["name"] for client in results["clients"]]
    shown = largest_clients(results)
    rest = np.setdiff1d(np.arange(len(names)), shown)
    others = [int(number) for number in one.counts[rest].sum(axis=0)] if len(rest) else None
    rows = [HeatRow(names[place], _cells(one, place, largest, signed)) for place in shown]
    return HeatMap(title, note, rows, others, one.totals, signed)


def _changes(results: Results, numbers: Counted) -> HeatMap:
    """Who gave and who got: allocated minus estimated."""
    estimated, allocated = numbers.estimated, numbers.allocated
    both = estimated.present & allocated.present
    change = Table(np.where(both[:, None], allocated.counts - estimated.counts, 0), both)
    largest = int(np.abs(change.counts).max(initial=0))
    note = "Allocated minus estimated: below zero the client gave, above zero it got."
    return _heat_map(results, "Given and got", note, change, largest, signed=True)


def _cells(one: Table, place: int, largest: int, signed: bool) -> list[tuple[int, str]]:
    if not one.present[place]:
        return []
    look = change_look if signed else level_look
    return [(int(number), look(int(number), largest)) for number in one.counts[place]]


def level_look(number: int, largest: int) -> str:
    return f"h{shade(number, largest, LEVELS)}"


def change_look(number: int, largest: int) -> str:
    """Two families of shades, for more and for less."""
    return f"{'less' if number < 0 else 'more'}{shade(abs(number), largest, CHANGES)}"


def shade(number: int, largest: int, levels: int) -> int:
    """From 0 for none to `levels` for the largest, by the square root: a few must be seen beside very many."""
    return math.ceil(levels * math.sqrt(number / largest)) if number else 0


def largest_clients(results: Results) -> list[int]:
    """All clients as they come, or of many those with the most training images, the largest first."""
    sizes = np.array([client["train"] or 0 for client in results["clients"]])
    if len(sizes) <= SHOWN:
        return list(range(len(sizes)))
    return [int(place) for place in np.argsort(-sizes, kind="stable")[:SHOWN]]


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


def class_rows(results: Results, numbers: Counted) -> list[ClassRow]:
    classes = results["classes"]
    true: Sequence[int | None] = numbers.true.totals if numbers.true else [None] * len(classes)
    others = (numbers.estimated.totals, numbers.allocated.totals, numbers.selected.totals)
    return [ClassRow(*row) for row in zip(classes, true, *others, strict=True)]


@dataclass(frozen=True)
class ClientRow:
    name: str
    train: int | None
    test: int | None
    zero_shot: float | None
    final: float | None
    estimated: int
    allocated: int
    selected: int

    @property
    def points(self) -> float | None:
        return difference(self.final, self.zero_shot)

    @property
    def change(self) -> int:
        return self.allocated - self.estimated


def client_rows(results: Results, numbers: Counted | None) -> list[ClientRow]:
    """Every client; of many, the largest first."""
    nothing = [0] * len(results["clients"])
    tables = (numbers.estimated, numbers.allocated, numbers.selected) if numbers else ()
    sums = [one.by_client for one in tables] or [nothing] * 3
    keys = ("name", "train", "test", "zero_shot", "final")
    rows = [
        ClientRow(*(client[key] for key in keys), *(column[place] for column in sums))
        for place, client in enumerate(results["clients"])
    ]
    return rows if len(rows) <= SHOWN else sorted(rows, key=lambda row: -(row.train or 0))


@dataclass(frozen=True)
class Verdict:
    """How many clients the training helped."""

    better: int
    worse: int
    same: int


def verdict(rows: Sequence[ClientRow]) -> Verdict | None:
    measured = [row.points for row in rows if row.points is not None]
    if not measured:
        return None
    better, worse = sum(points > 0 for points in measured), sum(points < 0 for points in measured)
    return Verdict(better, worse, len(measured) - better - worse)


@dataclass(frozen=True)
class RefreshRow:
    round: int
    estimated: int
    allocated: int
    selected: int
    accuracy: float | None
    similarity: float | None  # of chosen and true label counts
    coverage: float | None  # candidate sets that hold the truth
    set_size: float | None


def refresh_rows(results: Results) -> list[RefreshRow]:
    return [
        RefreshRow(
            refresh["round"],
            _sum(refresh["estimated"]),
            _sum(refresh["allocated"]),
            refresh["images"],
            refresh["pseudo_label_accuracy"],
            refresh["distribution_similarity"],
            refresh["coverage"],
            refresh["mean_set_size"],
        )
        for refresh in results["refreshes"]
    ]


def _sum(rows: Sequence[Sequence[int]]) -> int:
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


def recall_rows(results: Results) -> list[RecallRow]:
    """One row per class; none at all where no test image has a label."""
    nothing: list[float | None] = [None] * len(results["classes"])
    measured = [record["recall"] for record in results["rounds"] if record["recall"]]
    if not measured:
        return []
    zero_shot = results["zero_shot"].get("recall") or nothing
    return [RecallRow(*row) for row in zip(results["classes"], zero_shot, measured[-1], strict=True)]

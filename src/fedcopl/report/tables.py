"""Clients, classes and refreshes as rows of numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .words import difference

SHOWN = 30  # clients in a table; the others are summed up
LEVELS = 9  # shades of a heat map, beside the one of zero

Results = Mapping[str, Any]
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


def counted(results: Results) -> Counted:
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
    cells: list[tuple[int, int]]  # number, shade; empty if the client did not answer


@dataclass(frozen=True)
class HeatMap:
    title: str
    note: str
    rows: list[HeatRow]
    others: list[int] | None  # the clients that are not shown, together
    totals: list[int]


def heat_maps(results: Results, numbers: Counted) -> list[HeatMap]:
    """The four tables with one common scale of shades."""
    titled = [
        ("True", "What the clients really hold; never used in training.", numbers.true),
        ("Estimated", "Images a client is sure of, counted by the class it predicts.", numbers.estimated),
        ("Allocated", "Pseudo labels a client may use of each class.", numbers.allocated),
        ("Selected", "Pseudo labels it did use, as far as it has images for them.", numbers.selected),
    ]
    known = [(title, note, one) for title, note, one in titled if one is not None]
    largest = max(int(one.counts.max(initial=0)) for _, _, one in known)
    return [_heat_map(results, title, note, one, largest) for title, note, one in known]


def _heat_map(results: Results, title: str, note: str, one: Table, largest: int) -> HeatMap:
    names = [client["name"] for client in results["clients"]]
    shown = largest_clients(results)
    rest = np.setdiff1d(np.arange(len(names)), shown)
    others = [int(number) for number in one.counts[rest].sum(axis=0)] if len(rest) else None
    rows = [HeatRow(names[place], _cells(one, place, largest)) for place in shown]
    return HeatMap(title, note, rows, others, one.totals)


def _cells(one: Table, place: int, largest: int) -> list[tuple[int, int]]:
    if not one.present[place]:
        return []
    return [(int(number), shade(int(number), largest)) for number in one.counts[place]]


def shade(number: int, largest: int) -> int:
    """From 0 for none to LEVELS for the largest, by the square root: a few must be seen beside very many."""
    return math.ceil(LEVELS * math.sqrt(number / largest)) if number else 0


def largest_clients(results: Results) -> list[int]:
    """All clients as they come, or of many those with the most training images, the largest first."""
    sizes = np.array([client["train"] for client in results["clients"]])
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
    train: int
    test: int
    zero_shot: float | None
    final: float | None
    estimated: int
    allocated: int
    selected: int

    @property
    def points(self) -> float | None:
        return difference(self.final, self.zero_shot)


def client_rows(results: Results, numbers: Counted) -> list[ClientRow]:
    """Every client; of many, the largest first."""
    sums = (numbers.estimated.by_client, numbers.allocated.by_client, numbers.selected.by_client)
    keys = ("name", "train", "test", "zero_shot", "final")
    rows = [
        ClientRow(*(client[key] for key in keys), *(column[place] for column in sums))
        for place, client in enumerate(results["clients"])
    ]
    return rows if len(rows) <= SHOWN else sorted(rows, key=lambda row: -row.train)


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


def refresh_rows(results: Results) -> list[RefreshRow]:
    return [
        RefreshRow(
            refresh["round"],
            _sum(refresh["estimated"]),
            _sum(refresh["allocated"]),
            refresh["images"],
            refresh["pseudo_label_accuracy"],
        )
        for refresh in results["refreshes"]
    ]


def _sum(rows: Sequence[Sequence[int]]) -> int:
    return sum(map(sum, rows))

"""What is drawn over the rounds: which number of a round, in which unit, on which axis."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from . import numbers as words
from .charts import Bounds, Line, LineChart, line_chart
from .narrative import Results

KINDS = {
    "macro": "the mean of the clients' accuracies, each on its own test images",
    "weighted": "the same mean, weighted by each client's number of test images",
    "global": "every client's model on all test images, averaged",
}
SERIES = tuple(f"s{number}" for number in range(1, 9))  # looks of lines: colour, dash and mark
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Unit:
    """How the numbers of a chart are written, and how far its axis reaches."""

    write: Callable[[float], str]
    ticked: Callable[[Sequence[float]], list[str]] = words.marks
    bounds: Bounds = (0, math.inf)
    include: tuple[float, ...] = ()
    bend: Callable[[float], float] = float


PERCENT = Unit(lambda value: words.percent(value / 100), lambda values: words.marks(values, "%"), (0, 100))
LOSS = Unit(words.loss)
BYTES = Unit(lambda value: words.size(round(value)), words.sizes, include=(0,))
SECONDS = Unit(words.duration, lambda values: words.marks(values, "s"), include=(0,))
RATIO = Unit(words.ratio, include=(0,))
ENDLESS = 1e12
TINIEST = 1e-4  # what is smaller stands at the foot of a logarithmic axis
POWERS = Unit(
    words.ratio,
    words.powers,
    (TINIEST, math.inf),
    bend=lambda value: math.log10(max(value, TINIEST)),
)


def by_round(records: Sequence[Record], value: Callable[[Record], float | None]) -> dict[int, float]:
    measured = ((record["round"], value(record)) for record in records)
    return {r: float(number) for r, number in measured if number is not None}


def accuracy_by_round(kind: str) -> Callable[[Results], dict[int, float]]:
    return lambda results: by_round(results["rounds"], lambda record: hundred(record[kind]))


def loss_by_round(results: Results) -> dict[int, float]:
    return by_round(results["rounds"], lambda record: record["loss"])


def right_by_refresh(results: Results) -> dict[int, float]:
    return by_round(results["refreshes"], lambda refresh: hundred(refresh["pseudo_label_accuracy"]))


def bytes_by_round(way: str) -> Callable[[Results], dict[int, float]]:
    return lambda results: by_round(results["rounds"], lambda record: record[way])


def seconds_by_round(results: Results) -> dict[int, float]:
    """How long each round took; the records hold the time since the start."""
    since = [0.0, *(record["seconds"] for record in results["rounds"])]
    taken = [max(0.0, after - before) for before, after in pairwise(since)]
    return {record["round"]: seconds for record, seconds in zip(results["rounds"], taken, strict=True)}


def drift_by_round(name: str, measure: str) -> Callable[[Results], dict[int, float]]:
    """Updates that all but cancel out drift infinitely: there is no place for that on an axis."""

    def drift(record: Record) -> float | None:
        value: float | None = (record["drift"] or {}).get(name, {}).get(measure)
        return None if value is None or value > ENDLESS else value

    return lambda results: by_round(results["rounds"], drift)


def drifting(results: Results) -> list[str]:
    """The names of what was trained, as far as its drift was measured."""
    return list(dict.fromkeys(name for record in results["rounds"] for name in record["drift"] or {}))


def hundred(share: float | None) -> float | None:
    return None if share is None else 100 * share


def chart(
    title: str,
    unit: Unit,
    named: Mapping[str, dict[int, float]],
    looks: Sequence[str] = SERIES,
    *,
    over: Sequence[Record] = (),
    level: float | None = None,
) -> LineChart | None:
    """One line for each name, over all rounds given or else those measured; None when there is nothing to draw."""
    rounds = sorted({r for values in named.values() for r in values} | {record["round"] for record in over})
    kinds = (looks[n % len(looks)] for n in range(len(named)))
    lines = [
        Line(name, kind, [values.get(r) for r in rounds])
        for (name, values), kind in zip(named.items(), kinds, strict=True)
    ]
    return line_chart(
        title,
        rounds,
        lines,
        unit.write,
        bounds=unit.bounds,
        include=unit.include,
        ticked=unit.ticked,
        bend=unit.bend,
        level=level,
        refreshed=[record["round"] for record in over if record["refreshed"]],
    )


def accuracy_chart(results: Results) -> LineChart | None:
    named = {kind: accuracy_by_round(kind)(results) for kind in KINDS}
    level = hundred(results["zero_shot"]["macro"])
    return chart("Accuracy", PERCENT, named, tuple(KINDS), over=results["rounds"], level=level)


def loss_chart(results: Results) -> LineChart | None:
    return chart("Training loss", LOSS, {"loss": loss_by_round(results)}, ("macro",), over=results["rounds"])


def share_by_refresh(part: str, whole: str) -> Callable[[Results], dict[int, float]]:
    """What the clients told of their labels at each refresh, in percent; nothing where there was nothing to tell of."""

    def share(record: Record) -> float | None:
        told = record["labelling"]
        return 100 * min(1.0, told[part] / told[whole]) if told and told[whole] else None

    return lambda results: by_round(results["rounds"], share)


def labelling_chart(results: Results) -> LineChart | None:
    """What can be seen of the pseudo labels without any truth; one refresh is no curve."""
    named = {
        "images trained on": share_by_refresh("chosen", "images")(results),
        "labels as at the last refresh": share_by_refresh("unchanged", "compared")(results),
    }
    told = {name: values for name, values in named.items() if values}
    return chart("What refreshes changed", PERCENT, told) if len(told) == len(named) else None


def labels_chart(results: Results) -> LineChart | None:
    """How much of the pseudo labels is right, refresh by refresh; of candidate sets also how many hold the truth."""
    covered = by_round(results["refreshes"], lambda refresh: hundred(refresh["coverage"]))
    named = {"pseudo labels right": right_by_refresh(results)} | (
        {"sets that hold the truth": covered} if covered else {}
    )
    return chart("Pseudo labels that are right", PERCENT, named, ("macro", "weighted"))


DRIFT = {"diversity": "Drift diversity", "cosine": "Cosine distance"}


def unit_for(values: Iterable[float]) -> Unit:
    """What is shared and what stays drift by very different amounts; then the axis needs powers of ten."""
    above_zero = [value for value in values if value > 0]
    return POWERS if above_zero and max(above_zero) > 10 * min(above_zero) and max(above_zero) > 2 else RATIO


def drift_charts(results: Results) -> list[LineChart]:
    drawn = []
    for measure, title in DRIFT.items():
        named = {name: drift_by_round(name, measure)(results) for name in drifting(results)}
        unit = unit_for(value for values in named.values() for value in values.values())
        drawn.append(chart(title, unit, named, over=results["rounds"]))
    return [one for one in drawn if one]


def cost_charts(results: Results) -> list[LineChart]:
    sent = {"up": bytes_by_round("bytes_up")(results), "down": bytes_by_round("bytes_down")(results)}
    drawn = [
        chart("Bytes per round", BYTES, sent, ("macro", "weighted"), over=results["rounds"]),
        chart("Time per round", SECONDS, {"time": seconds_by_round(results)}, ("macro",), over=results["rounds"]),
    ]
    return [one for one in drawn if one]


@dataclass(frozen=True)
class Step:
    """One kind of work, and how long it took in all."""

    name: str
    seconds: float
    share: float


STEPS = {"estimate": "labelling", "select": "choosing", "train": "training", "evaluate": "evaluating"}


def time_by_step(results: Results) -> list[Step]:
    """Where the time went, as far as it was taken; the rest is loading, averaging and writing."""
    taken = [record["seconds_of"] for record in results["rounds"]]
    sums = {name: sum(seconds.get(key) or 0.0 for seconds in taken) for key, name in STEPS.items()}
    whole = results["seconds"]
    known = {name: seconds for name, seconds in sums.items() if seconds}
    if not known or not whole:
        return []
    rest = max(0.0, whole - sum(known.values()))
    return [Step(name, seconds, seconds / whole) for name, seconds in (known | {"all else": rest}).items()]

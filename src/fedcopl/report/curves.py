"""Curves over the rounds: their values, units and charts."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..run.record import Accuracies, Drift, Outcome, RoundRecord
from . import numbers as words
from .charts import ChartLine, LineChart, Unit, line_chart


@dataclass(frozen=True)
class AccuracyKind:
    """One of the three accuracies: its name (also of its style), its meaning, and where the record has it."""

    name: str
    meaning: str
    of: Callable[[Accuracies], float | None]


ACCURACIES = (
    AccuracyKind(
        "macro", "the mean of the clients' accuracies, each on its own test images", lambda scores: scores.macro
    ),
    AccuracyKind(
        "weighted",
        "the same mean, weighted by each client's number of test images",
        lambda scores: scores.weighted,
    ),
    AccuracyKind("global", "every client's model on all test images, averaged", lambda scores: scores.everywhere),
)
SERIES = tuple(f"s{number}" for number in range(1, 9))  # styles of lines: colour, dash and mark
_LOOKS = tuple(kind.name for kind in ACCURACIES)  # the same for at most three
ByRound = Mapping[int, float]
"""A number of those rounds that have it, counted from 1."""

PERCENT = Unit(lambda value: words.percent(value / 100), lambda values: words.marks(values, "%"), (0, 100), least=5)
LOSS = Unit(words.loss, include=(0,))
BYTES = Unit(lambda value: words.size(round(value)), words.sizes, include=(0,))
SECONDS = Unit(words.duration, lambda values: words.marks(values, "s"), include=(0,))
_RATIO = Unit(words.ratio, include=(0,))
COUNT = Unit(lambda value: words.count(round(value)))
ZERO_SHOT = "zero-shot macro"
_ENDLESS = 1e12
_TINIEST = 1e-4  # what is smaller stands at the foot of a logarithmic axis
_POWERS = Unit(
    words.ratio,
    words.powers,
    (_TINIEST, math.inf),
    bend=lambda value: math.log10(max(value, _TINIEST)),
)


def hundred(share: float | None) -> float | None:
    """Return a share in per cent."""
    return None if share is None else 100 * share


def by_round(outcome: Outcome, value: Callable[[RoundRecord], float | None]) -> ByRound:
    """Return a number of the rounds that have it."""
    measured = ((record.number, value(record)) for record in outcome.rounds)
    return {number: float(measurement) for number, measurement in measured if measurement is not None}


def accuracy_by_round(outcome: Outcome, kind: AccuracyKind) -> ByRound:
    """Return one of the three accuracies in per cent."""
    return by_round(outcome, lambda record: hundred(kind.of(record)))


def by_refresh(outcome: Outcome, share: str = "pseudo_label_accuracy") -> ByRound:
    """Return a share of the refreshes that have it in per cent."""
    shares = ((refresh.number, hundred(getattr(refresh, share))) for refresh in outcome.refreshes)
    return {number: value for number, value in shares if value is not None}


def seconds_by_round(outcome: Outcome) -> ByRound:
    """Return the duration of each round; the records have the time since the start."""
    since = [0.0, *(record.seconds for record in outcome.rounds)]
    durations = (max(0.0, after - before) for before, after in pairwise(since))
    return {record.number: seconds for record, seconds in zip(outcome.rounds, durations, strict=True)}


DRIFT: Mapping[str, Callable[[Drift], float | None]] = {
    "Drift diversity": lambda drift: drift.diversity,
    "Cosine distance": lambda drift: drift.cosine,
}


def drift_by_round(outcome: Outcome, name: str, measure: str) -> ByRound:
    """Return the drift of one array, without values beyond any axis: updates that almost cancel diverge."""
    values = by_round(outcome, lambda record: DRIFT[measure]((record.drift or {}).get(name, Drift())))
    return {number: value for number, value in values.items() if value <= _ENDLESS}


def drifting(outcome: Outcome) -> list[str]:
    """Return the names of the arrays whose drift was measured."""
    return list(dict.fromkeys(name for record in outcome.rounds for name in record.drift or {}))


def drift_unit(values: Iterable[float]) -> Unit:
    """Return a logarithmic axis where the values span more than a factor of ten."""
    above_zero = [value for value in values if value > 0]
    return _POWERS if above_zero and max(above_zero) > 10 * min(above_zero) and max(above_zero) > 2 else _RATIO


def run_charts(outcome: Outcome) -> dict[str, Any]:
    """Return the charts of one run by their place on the page; None or nothing where there is nothing to draw."""
    rounds, untrained = outcome.rounds, outcome.untrained
    levels = {
        ZERO_SHOT: hundred(outcome.zero_shot.macro),
        "priors without training, macro": None if untrained is None else hundred(untrained.macro),
    }
    accuracies = {kind.name: accuracy_by_round(outcome, kind) for kind in ACCURACIES}
    labels = {"pseudo labels right": by_refresh(outcome)}
    if covered := by_refresh(outcome, "coverage"):
        labels["sets that hold the truth"] = covered
    labelling = {
        "images trained on": by_round(outcome, lambda record: _share(record, "chosen", "images")),
        "labels as at the last refresh": by_round(outcome, lambda record: _share(record, "unchanged", "compared")),
    }
    sent = {
        "up": by_round(outcome, lambda record: record.bytes_up),
        "down": by_round(outcome, lambda record: record.bytes_down),
    }
    loss = {"loss": by_round(outcome, lambda record: record.loss)}
    drift = [_drift_chart(outcome, measure) for measure in DRIFT]
    seconds = seconds_by_round(outcome)
    cost = [
        _chart("Bytes per round", BYTES, sent, _LOOKS, over=rounds),
        _chart("Time per round", SECONDS, {"time": seconds}, _LOOKS, over=rounds),
    ]
    return {
        "accuracy": _chart("Accuracy", PERCENT, accuracies, _LOOKS, over=rounds, levels=levels),
        "loss": _chart("Training loss", LOSS, loss, _LOOKS, over=rounds),
        "labels": _chart("Pseudo labels that are right", PERCENT, labels, _LOOKS),
        "labelling": _chart("What refreshes changed", PERCENT, labelling) if all(labelling.values()) else None,
        "drift": [chart for chart in drift if chart],
        "cost": [chart for chart in cost if chart],
        "seconds": seconds,
    }


def _share(record: RoundRecord, part: str, whole: str) -> float | None:
    """Return a count of the refresh as a share of another, in per cent; None where nothing was counted."""
    counts = record.labelling
    if counts is None or not getattr(counts, whole):
        return None
    return 100 * min(float(getattr(counts, part)) / float(getattr(counts, whole)), 1.0)


def _drift_chart(outcome: Outcome, measure: str) -> LineChart | None:
    by_name = {name: drift_by_round(outcome, name, measure) for name in drifting(outcome)}
    unit = drift_unit(value for values in by_name.values() for value in values.values())
    return _chart(measure, unit, by_name, over=outcome.rounds)


def _chart(
    title: str,
    unit: Unit,
    named: Mapping[str, ByRound],
    looks: Sequence[str] = SERIES,
    *,
    over: Sequence[RoundRecord] = (),
    levels: Mapping[str, float | None] | None = None,
) -> LineChart | None:
    """Draw one line for each name, over all rounds given or else those measured."""
    rounds = sorted({r for values in named.values() for r in values} | {record.number for record in over})
    lines = [
        ChartLine(name, looks[n % len(looks)], [values.get(r) for r in rounds])
        for n, (name, values) in enumerate(named.items())
    ]
    refreshed = [record.number for record in over if record.refreshed]
    return line_chart(title, rounds, lines, unit, levels=levels, refreshed=refreshed)


_STEPS = {
    "adapt": "estimating priors",
    "estimate": "labelling",
    "select": "selecting",
    "train": "training",
    "evaluate": "evaluating",
}


def time_by_step(outcome: Outcome) -> list[tuple[str, float, float]]:
    """Name, seconds and share of each kind of request; the rest is loading, averaging, measuring and writing."""
    sums = {name: sum(record.seconds_of.get(key, 0.0) for record in outcome.rounds) for key, name in _STEPS.items()}
    measured = {name: seconds for name, seconds in sums.items() if seconds}
    if not measured or not outcome.seconds:
        return []
    whole = max(outcome.seconds, sum(measured.values()))
    measured["all else"] = whole - sum(measured.values())
    return [(name, seconds, seconds / whole) for name, seconds in measured.items()]

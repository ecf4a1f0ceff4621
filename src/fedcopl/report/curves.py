"""Charts over the rounds, of one run and of groups of runs: values, units and lines."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

from ..run.record import Accuracies, Drift, Outcome, RoundRecord
from . import numbers as words
from .charts import LineChart, Series, Unit, line_chart


@dataclass(frozen=True)
class AccuracyKind:
    """One of the three accuracies: its name (also of its style), its meaning, and where the record has it."""

    name: str
    meaning: str
    of: Callable[[Accuracies], float | None]


ACCURACIES = (
    AccuracyKind("macro", "the mean of the clients' accuracies, each on its own test images", attrgetter("macro")),
    AccuracyKind("weighted", "the same mean, weighted by each client's number of test images", attrgetter("weighted")),
    AccuracyKind("global", "every client's model on all test images, averaged", attrgetter("everywhere")),
)
SERIES = tuple(f"s{number}" for number in range(1, 9))  # styles of lines: colour, dash and mark
_LOOKS = tuple(kind.name for kind in ACCURACIES)  # the same for at most three
_ByRound = Mapping[int, float]
"""A number of those rounds that have it, counted from 1."""

PERCENT = Unit(lambda value: words.percent(value / 100), lambda values: words.marks(values, "%"), (0, 100), least=5)
_LOSS = Unit(words.loss, include=(0,))
BYTES = Unit(lambda value: words.size(round(value)), words.sizes, include=(0,))
_SECONDS = Unit(words.duration, lambda values: words.marks(values, "s"), include=(0,))
_RATIO = Unit(words.ratio, include=(0,))
COUNT = Unit(lambda value: words.count(round(value)))
_ZERO_SHOT = "zero-shot macro"
_DRIFT_MAX = 1e12
_LOG_MIN = 1e-4  # smaller values are drawn at the foot of a logarithmic axis
_POWERS = Unit(
    words.ratio,
    words.powers,
    (_LOG_MIN, math.inf),
    transform=lambda value: math.log10(max(value, _LOG_MIN)),
)


def hundred(share: float | None) -> float | None:
    """Return a share in per cent."""
    return None if share is None else 100 * share


@dataclass(frozen=True)
class Spread:
    """A number over the runs of a group: its mean, and its standard deviation over seeds where there are several."""

    mean: float
    std: float | None = None

    def written(self, write: Callable[[float], str]) -> str:
        """Format as `82.7 ± 0.6 %`, with the unit once at the end."""
        if self.std is None:
            return write(self.mean)
        number, space, unit = write(self.mean).partition(words.SPACE)
        deviation, _, its_unit = write(self.std).removeprefix("+").partition(words.SPACE)
        if self.std and its_unit != unit:
            return f"{write(self.mean)} ± {write(self.std)}"
        return f"{number} ± {deviation}{space}{unit}"


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return mean and sample standard deviation (n - 1); None without a value."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return Spread(statistics.fmean(present), statistics.stdev(present) if len(present) > 1 else None)


def _by_round(value: Callable[[RoundRecord], float | None], outcome: Outcome) -> _ByRound:
    """Return a number of the rounds that have it."""
    measured = ((record.number, value(record)) for record in outcome.rounds)
    return {number: float(measurement) for number, measurement in measured if measurement is not None}


def _accuracy(kind: AccuracyKind, outcome: Outcome) -> _ByRound:
    """Return one of the three accuracies in per cent."""
    return _by_round(lambda record: hundred(kind.of(record)), outcome)


def _by_refresh(outcome: Outcome, share: str = "pseudo_label_accuracy") -> _ByRound:
    """Return a share of the refreshes that have it in per cent."""
    shares = ((refresh.number, hundred(getattr(refresh, share))) for refresh in outcome.refreshes)
    return {number: value for number, value in shares if value is not None}


def seconds_by_round(outcome: Outcome) -> _ByRound:
    """Return the duration of each round; the records have the time since the start."""
    since = [0.0, *(record.seconds for record in outcome.rounds)]
    durations = (max(0.0, after - before) for before, after in pairwise(since))
    return {record.number: seconds for record, seconds in zip(outcome.rounds, durations, strict=True)}


_DRIFT: Mapping[str, Callable[[Drift], float | None]] = {
    "Drift diversity": attrgetter("diversity"),
    "Cosine distance": attrgetter("cosine"),
}


def _drift(name: str, measure: str, outcome: Outcome) -> _ByRound:
    """Return the drift of one array, without values beyond any axis: updates that almost cancel diverge."""
    values = _by_round(lambda record: _DRIFT[measure]((record.drift or {}).get(name, Drift())), outcome)
    return {number: value for number, value in values.items() if value <= _DRIFT_MAX}


def _drifting(outcome: Outcome) -> list[str]:
    """Return the names of the arrays whose drift was measured."""
    return list(dict.fromkeys(name for record in outcome.rounds for name in record.drift or {}))


def _drift_unit(values: Iterable[float]) -> Unit:
    """Return a logarithmic axis where the values span more than a factor of ten."""
    above_zero = [value for value in values if value > 0]
    return _POWERS if above_zero and max(above_zero) > 10 * min(above_zero) and max(above_zero) > 2 else _RATIO


def run_charts(outcome: Outcome) -> dict[str, Any]:
    """Return the charts of one run by their place on the page; None or nothing where there is nothing to draw."""
    rounds, untrained = outcome.rounds, outcome.untrained
    levels = {
        _ZERO_SHOT: hundred(outcome.zero_shot.macro),
        "priors without training, macro": None if untrained is None else hundred(untrained.macro),
    }
    accuracies = {kind.name: _accuracy(kind, outcome) for kind in ACCURACIES}
    labels = {"pseudo labels right": _by_refresh(outcome)}
    if covered := _by_refresh(outcome, "coverage"):
        labels["sets that hold the truth"] = covered
    labelling = {
        "images trained on": _by_round(lambda record: _share(record, "chosen", "images"), outcome),
        "labels as at the last refresh": _by_round(lambda record: _share(record, "unchanged", "compared"), outcome),
    }
    sent = {
        "up": _by_round(attrgetter("bytes_up"), outcome),
        "down": _by_round(attrgetter("bytes_down"), outcome),
    }
    loss = {"loss": _by_round(attrgetter("loss"), outcome)}
    drift = []
    for measure in _DRIFT:
        by_name = {name: _drift(name, measure, outcome) for name in _drifting(outcome)}
        unit = _drift_unit(value for values in by_name.values() for value in values.values())
        drift.append(_chart(measure, unit, by_name, over=rounds))
    seconds = seconds_by_round(outcome)
    cost = [
        _chart("Bytes per round", BYTES, sent, _LOOKS, over=rounds),
        _chart("Time per round", _SECONDS, {"time": seconds}, _LOOKS, over=rounds),
    ]
    return {
        "accuracy": _chart("Accuracy", PERCENT, accuracies, _LOOKS, over=rounds, levels=levels),
        "loss": _chart("Training loss", _LOSS, loss, _LOOKS, over=rounds),
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


def _chart(
    title: str,
    unit: Unit,
    named: Mapping[str, _ByRound],
    looks: Sequence[str] = SERIES,
    *,
    over: Sequence[RoundRecord] = (),
    levels: Mapping[str, float | None] | None = None,
) -> LineChart | None:
    """Draw one line for each name, over all rounds given or else those measured."""
    rounds = sorted({r for values in named.values() for r in values} | {record.number for record in over})
    lines = [
        Series(name, looks[n % len(looks)], [values.get(r) for r in rounds])
        for n, (name, values) in enumerate(named.items())
    ]
    refreshed = [record.number for record in over if record.refreshed]
    return line_chart(title, rounds, lines, unit, levels=levels, refreshed=refreshed)


def group_charts(groups: Mapping[str, Sequence[Outcome]]) -> list[LineChart]:
    """Draw each number of the rounds for all groups of runs, by their labels, on top of each other."""
    zero_shot = {outcome.zero_shot.macro for outcomes in groups.values() for outcome in outcomes}
    common = {_ZERO_SHOT: hundred(zero_shot.pop())} if len(zero_shot) == 1 else None
    charts = [
        _group_chart(
            groups,
            f"Accuracy, {kind.name}",
            partial(_accuracy, kind),
            PERCENT,
            common if kind.name == "macro" else None,
        )
        for kind in ACCURACIES
    ]
    charts.append(_group_chart(groups, "Training loss", partial(_by_round, attrgetter("loss")), _LOSS))
    charts.append(_group_chart(groups, "Pseudo labels that are right", _by_refresh, PERCENT))
    trained = [_drifting(outcomes[0]) for outcomes in groups.values()]
    for name in dict.fromkeys(name for one in trained for name in one):
        if sum(name in one for one in trained) > 1 or len(groups) == 1:  # others: on the page of their run
            for measure in _DRIFT:
                charts.append(_group_chart(groups, f"{measure}, {name}", partial(_drift, name, measure)))
    charts.append(_group_chart(groups, "Bytes sent up per round", partial(_by_round, attrgetter("bytes_up")), BYTES))
    charts.append(_group_chart(groups, "Time per round", seconds_by_round, _SECONDS))
    return [chart for chart in charts if chart]


def _group_chart(
    groups: Mapping[str, Sequence[Outcome]],
    title: str,
    values: Callable[[Outcome], _ByRound],
    unit: Unit | None = None,
    levels: Mapping[str, float | None] | None = None,
) -> LineChart | None:
    """Draw one line per group, the mean over the runs that measured it, with a band of one standard deviation."""
    by_group = []
    for outcomes in groups.values():
        measured = [values(outcome) for outcome in outcomes]
        every = sorted({r for one in measured for r in one})
        by_group.append({r: number for r in every if (number := spread([one.get(r) for one in measured]))})
    rounds = sorted({r for numbers in by_group for r in numbers})
    lines = []
    for look, (label, outcomes), numbers in zip(SERIES, groups.items(), by_group, strict=False):
        means = [numbers[r].mean if r in numbers else None for r in rounds]
        deviations = [numbers[r].std if r in numbers else None for r in rounds] if len(outcomes) > 1 else ()
        lines.append(Series(label, look, means, deviations))
    unit = unit or _drift_unit(number.mean for numbers in by_group for number in numbers.values())
    return line_chart(title, rounds, lines, unit, levels=levels)

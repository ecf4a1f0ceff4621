"""Charts over the rounds of one run, or of groups of runs: values, units and lines."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, pairwise
from operator import attrgetter
from typing import Any

from ..run.record import Accuracies, Drift, Outcome, RoundRecord
from . import formatting as fmt
from .charts import LineChart, Series, Unit, line_chart


@dataclass(frozen=True)
class AccuracyKind:
    """One of the three accuracies: its name (also the CSS class of its line), its meaning, and its value."""

    name: str
    meaning: str
    value_of: Callable[[Accuracies], float | None]


ACCURACIES = (
    AccuracyKind("macro", "the mean of the clients' accuracies, each on its own test images", attrgetter("macro")),
    AccuracyKind("weighted", "the same mean, weighted by each client's number of test images", attrgetter("weighted")),
    AccuracyKind("global", "every client's model on all test images, averaged", attrgetter("everywhere")),
)
STYLES = tuple(f"s{number}" for number in range(1, 9))  # CSS classes of lines: colour, dash and mark
_ACCURACY_STYLES = tuple(kind.name for kind in ACCURACIES)  # CSS classes for a chart of up to three lines
_ByRound = Mapping[int, float]
"""A number by round, from 1; rounds without it are left out."""

PERCENT = Unit(lambda value: fmt.percent(value / 100), lambda values: fmt.tick_texts(values, "%"), (0, 100), min_span=5)
_LOSS = Unit(fmt.loss, include=(0,))
BYTES = Unit(lambda value: fmt.size(round(value)), fmt.size_ticks, include=(0,))
_SECONDS = Unit(fmt.duration, lambda values: fmt.tick_texts(values, "s"), include=(0,))
_RATIO = Unit(fmt.ratio, include=(0,))
COUNT = Unit(lambda value: fmt.count(round(value)))
_ZERO_SHOT = "zero-shot macro"
_DRIFT_MAX = 1e12
_LOG_MIN = 1e-4  # smaller values are drawn at the lower end of a logarithmic axis
_POWERS = Unit(fmt.ratio, fmt.log_ticks, (_LOG_MIN, math.inf), transform=lambda value: math.log10(max(value, _LOG_MIN)))


def to_percent(share: float | None) -> float | None:
    """Convert a share to per cent."""
    return None if share is None else 100 * share


@dataclass(frozen=True)
class Spread:
    """Mean over the runs of a group, and standard deviation over its seeds if it has several."""

    mean: float
    std: float | None = None

    def format(self, format_value: Callable[[float], str]) -> str:
        """Format as `82.7 ± 0.6 %`, with the unit once at the end."""
        if self.std is None:
            return format_value(self.mean)
        number, space, unit = format_value(self.mean).partition(fmt.SPACE)
        deviation, _, its_unit = format_value(self.std).removeprefix("+").partition(fmt.SPACE)
        if self.std and its_unit != unit:
            return f"{format_value(self.mean)} ± {format_value(self.std)}"
        return f"{number} ± {deviation}{space}{unit}"


def spread(values: Sequence[float | None]) -> Spread | None:
    """Return mean and sample standard deviation (n - 1); None without a value."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return Spread(statistics.fmean(present), statistics.stdev(present) if len(present) > 1 else None)


def _by_round(measure: Callable[[RoundRecord], float | None], outcome: Outcome) -> _ByRound:
    """Return the `measure` of each round, without the rounds where it is None."""
    measured = ((record.number, measure(record)) for record in outcome.rounds)
    return {number: float(value) for number, value in measured if value is not None}


def _accuracy(kind: AccuracyKind, outcome: Outcome) -> _ByRound:
    """Return one of the three accuracies by round, in per cent."""
    return _by_round(lambda record: to_percent(kind.value_of(record)), outcome)


def _by_refresh(outcome: Outcome, share: str = "pseudo_label_accuracy") -> _ByRound:
    """Return the attribute `share` of each refresh in per cent by round, without the refreshes where it is None."""
    shares = ((refresh.number, to_percent(getattr(refresh, share))) for refresh in outcome.refreshes)
    return {number: value for number, value in shares if value is not None}


def seconds_by_round(outcome: Outcome) -> _ByRound:
    """Return the seconds of each round from the records, which have the time since the start."""
    since_start = [0.0, *(record.seconds for record in outcome.rounds)]
    durations = (max(0.0, after - before) for before, after in pairwise(since_start))
    return {record.number: seconds for record, seconds in zip(outcome.rounds, durations, strict=True)}


_DRIFT: Mapping[str, Callable[[Drift], float | None]] = {
    "Drift diversity": attrgetter("diversity"),
    "Cosine distance": attrgetter("cosine"),
}


def _drift(name: str, measure: str, outcome: Outcome) -> _ByRound:
    """Return a drift measure of the array `name` by round, without the huge values of updates that nearly cancel."""
    values = _by_round(lambda record: _DRIFT[measure]((record.drift or {}).get(name, Drift())), outcome)
    return {number: value for number, value in values.items() if value <= _DRIFT_MAX}


def _measured_arrays(outcome: Outcome) -> list[str]:
    """Return the names of the arrays whose drift was measured."""
    return list(dict.fromkeys(name for record in outcome.rounds for name in record.drift or {}))


def _drift_unit(values: Iterable[float]) -> Unit:
    """Return a logarithmic unit if the values exceed 2 and span more than a factor of ten, else a linear one."""
    above_zero = [value for value in values if value > 0]
    return _POWERS if above_zero and max(above_zero) > 10 * min(above_zero) and max(above_zero) > 2 else _RATIO


def run_charts(outcome: Outcome) -> dict[str, Any]:
    """Return the charts of one run as values of the template; None or an empty list where no number exists."""
    rounds, untrained = outcome.rounds, outcome.untrained
    levels = {
        _ZERO_SHOT: to_percent(outcome.zero_shot.macro),
        "priors without training, macro": None if untrained is None else to_percent(untrained.macro),
    }
    accuracies = {kind.name: _accuracy(kind, outcome) for kind in ACCURACIES}
    labels = {"pseudo-label accuracy": _by_refresh(outcome)}
    if covered := _by_refresh(outcome, "coverage"):
        labels["candidate sets with the true label"] = covered
    labelling = {
        "images trained on": _by_round(lambda record: _count_ratio(record, "chosen", "images"), outcome),
        "labels unchanged since the last refresh": _by_round(
            lambda record: _count_ratio(record, "unchanged", "compared"), outcome
        ),
    }
    sent = {"up": _by_round(attrgetter("bytes_up"), outcome), "down": _by_round(attrgetter("bytes_down"), outcome)}
    loss = {"loss": _by_round(attrgetter("loss"), outcome)}
    drift = []
    for measure in _DRIFT:
        by_name = {name: _drift(name, measure, outcome) for name in _measured_arrays(outcome)}
        unit = _drift_unit(value for values in by_name.values() for value in values.values())
        drift.append(_chart(measure, unit, by_name, records=rounds))
    seconds = seconds_by_round(outcome)
    cost = [
        _chart("Bytes per round", BYTES, sent, styles=_ACCURACY_STYLES, records=rounds),
        _chart("Time per round", _SECONDS, {"time": seconds}, styles=_ACCURACY_STYLES, records=rounds),
    ]
    return {
        "accuracy": _chart("Accuracy", PERCENT, accuracies, styles=_ACCURACY_STYLES, records=rounds, levels=levels),
        "loss": _chart("Training loss", _LOSS, loss, styles=_ACCURACY_STYLES, records=rounds),
        "labels": _chart("Pseudo-label accuracy", PERCENT, labels, styles=_ACCURACY_STYLES),
        "labelling": _chart("Effect of refreshes", PERCENT, labelling) if all(labelling.values()) else None,
        "drift": [chart for chart in drift if chart],
        "cost": [chart for chart in cost if chart],
        "seconds": seconds,
    }


def _count_ratio(record: RoundRecord, numerator: str, denominator: str) -> float | None:
    """Return a label count of the round in per cent of `denominator`; None without a refresh, or if that count is 0."""
    counts = record.labelling
    if counts is None or not getattr(counts, denominator):
        return None
    return 100 * min(float(getattr(counts, numerator)) / float(getattr(counts, denominator)), 1.0)


def _chart(
    title: str,
    unit: Unit,
    lines: Mapping[str, _ByRound],
    *,
    styles: Sequence[str] = STYLES,
    records: Sequence[RoundRecord] = (),
    levels: Mapping[str, float | None] | None = None,
) -> LineChart | None:
    """Draw one line for each name over all rounds that have a value or are in `records`; None without a value."""
    rounds = sorted({r for values in lines.values() for r in values} | {record.number for record in records})
    series = [
        Series(name, style, [values.get(r) for r in rounds])
        for style, (name, values) in zip(cycle(styles), lines.items(), strict=False)
    ]
    refreshed = [record.number for record in records if record.refreshed]
    return line_chart(title, rounds, series, unit, levels=levels, refreshed=refreshed)


def group_charts(groups: Mapping[str, Sequence[Outcome]]) -> list[LineChart]:
    """Draw one chart over the rounds for each measured quantity, with one line for each group of runs."""
    zero_shot = {outcome.zero_shot.macro for outcomes in groups.values() for outcome in outcomes}
    level = {_ZERO_SHOT: to_percent(zero_shot.pop())} if len(zero_shot) == 1 else None
    charts = [
        _group_chart(
            groups, f"Accuracy, {kind.name}", partial(_accuracy, kind), PERCENT, level if kind.name == "macro" else None
        )
        for kind in ACCURACIES
    ]
    charts.append(_group_chart(groups, "Training loss", partial(_by_round, attrgetter("loss")), _LOSS))
    charts.append(_group_chart(groups, "Pseudo-label accuracy", _by_refresh, PERCENT))
    arrays = Counter(name for outcomes in groups.values() for name in _measured_arrays(outcomes[0]))
    for name, group_count in arrays.items():
        if group_count > 1 or len(groups) == 1:  # an array of one group is on the pages of its runs
            for measure in _DRIFT:
                charts.append(_group_chart(groups, f"{measure}, {name}", partial(_drift, name, measure)))
    charts.append(_group_chart(groups, "Bytes sent up per round", partial(_by_round, attrgetter("bytes_up")), BYTES))
    charts.append(_group_chart(groups, "Time per round", seconds_by_round, _SECONDS))
    return [chart for chart in charts if chart]


def _group_chart(
    groups: Mapping[str, Sequence[Outcome]],
    title: str,
    measure: Callable[[Outcome], _ByRound],
    unit: Unit | None = None,
    levels: Mapping[str, float | None] | None = None,
) -> LineChart | None:
    """Draw each group's mean with a band of one standard deviation over its runs; by default in the unit of a drift."""
    by_group = []
    for outcomes in groups.values():
        measured = [measure(outcome) for outcome in outcomes]
        with_value = sorted({r for by_round in measured for r in by_round})
        by_group.append({r: over_runs for r in with_value if (over_runs := spread([run.get(r) for run in measured]))})
    rounds = sorted({r for spreads in by_group for r in spreads})
    lines = []
    for style, (label, outcomes), spreads in zip(STYLES, groups.items(), by_group, strict=False):
        means = [spreads[r].mean if r in spreads else None for r in rounds]
        deviations = [spreads[r].std if r in spreads else None for r in rounds] if len(outcomes) > 1 else ()
        lines.append(Series(label, style, means, deviations))
    unit = unit or _drift_unit(over_runs.mean for spreads in by_group for over_runs in spreads.values())
    return line_chart(title, rounds, lines, unit, levels=levels)

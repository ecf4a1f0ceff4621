"""Curves over the rounds: their values, units and charts."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
LOOKS = tuple(kind.name for kind in ACCURACIES)  # the same for at most three
ByRound = Mapping[int, float]
"""A number of those rounds that have it, counted from 1."""

PERCENT = Unit(lambda value: words.percent(value / 100), lambda values: words.marks(values, "%"), (0, 100), least=5)
LOSS = Unit(words.loss, include=(0,))
BYTES = Unit(lambda value: words.size(round(value)), words.sizes, include=(0,))
SECONDS = Unit(words.duration, lambda values: words.marks(values, "s"), include=(0,))
RATIO = Unit(words.ratio, include=(0,))
COUNT = Unit(lambda value: words.count(round(value)))
ZERO_SHOT = "zero-shot macro"
ENDLESS = 1e12
TINIEST = 1e-4  # what is smaller stands at the foot of a logarithmic axis
POWERS = Unit(
    words.ratio,
    words.powers,
    (TINIEST, math.inf),
    bend=lambda value: math.log10(max(value, TINIEST)),
)


def hundred(share: float | None) -> float | None:
    return None if share is None else 100 * share


def by_round(outcome: Outcome, value: Callable[[RoundRecord], float | None]) -> ByRound:
    measured = ((record.number, value(record)) for record in outcome.rounds)
    return {number: float(found) for number, found in measured if found is not None}


def accuracy_by_round(kind: AccuracyKind) -> Callable[[Outcome], ByRound]:
    return lambda outcome: by_round(outcome, lambda record: hundred(kind.of(record)))


def loss_by_round(outcome: Outcome) -> ByRound:
    return by_round(outcome, lambda record: record.loss)


def right_by_refresh(outcome: Outcome) -> ByRound:
    return _of_refreshes(outcome, outcome.pseudo_label_accuracy)


def _of_refreshes(outcome: Outcome, shares: Iterable[float | None]) -> ByRound:
    numbered = zip(outcome.refreshes, shares, strict=True)
    return {refresh.round + 1: 100 * share for refresh, share in numbered if share is not None}


def bytes_up_by_round(outcome: Outcome) -> ByRound:
    return by_round(outcome, lambda record: record.bytes_up)


def bytes_down_by_round(outcome: Outcome) -> ByRound:
    return by_round(outcome, lambda record: record.bytes_down)


def seconds_by_round(outcome: Outcome) -> ByRound:
    """Duration of each round; the records have the time since the start."""
    since = [0.0, *(record.seconds for record in outcome.rounds)]
    taken = (max(0.0, after - before) for before, after in pairwise(since))
    return {record.number: seconds for record, seconds in zip(outcome.rounds, taken, strict=True)}


def chosen_share(record: RoundRecord) -> float | None:
    """The share of images selected at this refresh."""
    labelling = record.labelling
    return None if labelling is None else _share(labelling.chosen, labelling.images)


def unchanged_share(record: RoundRecord) -> float | None:
    """The share of labels that this refresh left unchanged."""
    labelling = record.labelling
    return None if labelling is None else _share(labelling.unchanged, labelling.compared)


def _share(part: int, whole: int) -> float | None:
    return max(0, min(part, whole)) / whole if whole > 0 else None


@dataclass(frozen=True)
class DriftMeasure:
    title: str
    of: Callable[[Drift], float | None]


DRIFT = (
    DriftMeasure("Drift diversity", lambda drift: drift.diversity),
    DriftMeasure("Cosine distance", lambda drift: drift.cosine),
)


def drift_by_round(name: str, measure: DriftMeasure) -> Callable[[Outcome], ByRound]:
    """Drift by round, without values beyond any axis: updates that almost cancel diverge."""

    def drift(record: RoundRecord) -> float | None:
        value = measure.of((record.drift or {}).get(name, Drift()))
        return None if value is None or value > ENDLESS else value

    return lambda outcome: by_round(outcome, drift)


def drifting(outcome: Outcome) -> list[str]:
    """The names of the arrays whose drift was measured."""
    return list(dict.fromkeys(name for record in outcome.rounds for name in record.drift or {}))


def drift_unit(values: Iterable[float]) -> Unit:
    """A logarithmic axis where the values span more than a factor of ten."""
    above_zero = [value for value in values if value > 0]
    return POWERS if above_zero and max(above_zero) > 10 * min(above_zero) and max(above_zero) > 2 else RATIO


def chart(
    title: str,
    unit: Unit,
    named: Mapping[str, ByRound],
    looks: Sequence[str] = SERIES,
    *,
    over: Sequence[RoundRecord] = (),
    levels: Mapping[str, float | None] | None = None,
) -> LineChart | None:
    """One line for each name, over all rounds given or else those measured; None when there is nothing to draw."""
    rounds = sorted({r for values in named.values() for r in values} | {record.number for record in over})
    lines = [
        ChartLine(name, looks[n % len(looks)], [values.get(r) for r in rounds])
        for n, (name, values) in enumerate(named.items())
    ]
    refreshed = [record.number for record in over if record.refreshed]
    return line_chart(title, rounds, lines, unit, levels=levels, refreshed=refreshed)


def accuracy_chart(outcome: Outcome) -> LineChart | None:
    named = {kind.name: accuracy_by_round(kind)(outcome) for kind in ACCURACIES}
    untrained = None if outcome.untrained is None else hundred(outcome.untrained.macro)
    levels = {ZERO_SHOT: hundred(outcome.zero_shot.macro), "priors without training, macro": untrained}
    return chart("Accuracy", PERCENT, named, LOOKS, over=outcome.rounds, levels=levels)


def loss_chart(outcome: Outcome) -> LineChart | None:
    return chart("Training loss", LOSS, {"loss": loss_by_round(outcome)}, LOOKS, over=outcome.rounds)


def labelling_by_round(outcome: Outcome) -> dict[str, ByRound]:
    """Shares of selected and of unchanged pseudo labels, which need no labels."""
    return {
        "images trained on": by_round(outcome, lambda record: hundred(chosen_share(record))),
        "labels as at the last refresh": by_round(outcome, lambda record: hundred(unchanged_share(record))),
    }


def labelling_chart(outcome: Outcome) -> LineChart | None:
    """None before the second refresh."""
    named = labelling_by_round(outcome)
    return chart("What refreshes changed", PERCENT, named) if all(named.values()) else None


def labels_chart(outcome: Outcome) -> LineChart | None:
    """Accuracy of the pseudo labels by refresh; of candidate sets also the share that contains the true label."""
    covered = _of_refreshes(outcome, (refresh.coverage for refresh in outcome.refreshes))
    named = {"pseudo labels right": right_by_refresh(outcome)}
    if covered:
        named["sets that hold the truth"] = covered
    return chart("Pseudo labels that are right", PERCENT, named, LOOKS)


def drift_charts(outcome: Outcome) -> list[LineChart]:
    drawn = (_drift_chart(outcome, measure) for measure in DRIFT)
    return [one for one in drawn if one]


def _drift_chart(outcome: Outcome, measure: DriftMeasure) -> LineChart | None:
    named = {name: drift_by_round(name, measure)(outcome) for name in drifting(outcome)}
    unit = drift_unit(value for values in named.values() for value in values.values())
    return chart(measure.title, unit, named, over=outcome.rounds)


def cost_charts(outcome: Outcome) -> list[LineChart]:
    sent = {"up": bytes_up_by_round(outcome), "down": bytes_down_by_round(outcome)}
    drawn = [
        chart("Bytes per round", BYTES, sent, LOOKS, over=outcome.rounds),
        chart("Time per round", SECONDS, {"time": seconds_by_round(outcome)}, LOOKS, over=outcome.rounds),
    ]
    return [one for one in drawn if one]


@dataclass(frozen=True)
class TimeShare:
    """One kind of work, and how long it took in all."""

    name: str
    seconds: float
    share: float


STEPS = {
    "adapt": "estimating priors",
    "estimate": "labelling",
    "select": "selecting",
    "train": "training",
    "evaluate": "evaluating",
}


def time_by_step(outcome: Outcome) -> list[TimeShare]:
    """Wall time by kind of request; the rest is loading, averaging, measuring and writing. Shares never exceed 1."""
    sums = {name: sum(record.seconds_of.get(key, 0.0) for record in outcome.rounds) for key, name in STEPS.items()}
    known = {name: seconds for name, seconds in sums.items() if seconds}
    if not known or not outcome.seconds:
        return []
    whole = max(outcome.seconds, sum(known.values()))
    known["all else"] = whole - sum(known.values())
    return [TimeShare(name, seconds, seconds / whole) for name, seconds in known.items()]

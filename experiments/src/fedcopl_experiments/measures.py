"""What is read from stored runs: one number or one curve for each seed, in percent where it is a share."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError
from fedcopl.run.record import Drift, Outcome, RoundRecord

from .cells import ExperimentCell, seeded
from .run_key import deciding_settings, run_key
from .store import ResultStore, StoredRun

RoundCurve = tuple[tuple[int, float], ...]  # (round counted from 1, value)
NumberOf = Callable[[Outcome], float | None]
CurveOf = Callable[[Outcome], RoundCurve]
NO_DRIFT = Drift()


@dataclass(frozen=True)
class SeedSample:
    """A number over several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Of the sample; unknown for a single seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


class StoredOutcomes:
    """What a store holds, found by settings. It comes from this very program, or from any that stored it."""

    def __init__(self, store: ResultStore, *, any_code: bool = False):
        self._store, self._any_code = store, any_code
        self._found: dict[str, StoredRun] = {}

    def run(self, config: RunConfig) -> StoredRun | None:
        """The run of these settings, if it came to its end."""
        key = run_key(config)
        if key not in self._found:
            stored = self._store.find(key)
            if self._any_code and (stored is None or stored.outcome is None):
                stored = self._latest.get(_question(config))
            if stored is None or stored.outcome is None:
                return None
            self._found[key] = stored
        return self._found[key]

    def outcome(self, config: RunConfig) -> Outcome | None:
        run = self.run(config)
        return None if run is None else run.outcome

    @cached_property
    def _latest(self) -> dict[str, StoredRun]:
        """By their settings alone, the last finished."""
        return {question: run for run in self._store.runs() if (question := _asked(run))}


def _question(config: RunConfig) -> str:
    """The settings that decide a result, whatever program answers; a run keeps only the rounds that it played."""
    from fedcopl.methods import settled  # brings torch

    return json.dumps(deciding_settings(settled(config)), sort_keys=True)


def _asked(run: StoredRun) -> str | None:
    if run.outcome is None:
        return None
    try:
        return _question(RunConfig.from_mapping(run.settings, run.folder))
    except ConfigError:  # by a program that knew other settings
        return None


def read(cell: ExperimentCell, outcomes: StoredOutcomes, seeds: Iterable[int]) -> SeedSample:
    """The cell's number of each seed for which all its runs are there."""
    number = NUMBERS[cell.measure]
    values = (
        _mean_of([_measured(outcomes.outcome(seeded(config, seed)), number) for config in cell.configs])
        for seed in seeds
    )
    return SeedSample(tuple(value for value in values if value is not None))


def read_gain(cell: ExperimentCell, outcomes: StoredOutcomes, seeds: Iterable[int]) -> SeedSample:
    """How much better than the cell's baseline, seed by seed."""
    assert cell.baseline is not None
    number, [config] = NUMBERS[cell.measure], cell.configs
    pairs = (
        [_measured(outcomes.outcome(seeded(run, seed)), number) for run in (config, cell.baseline)] for seed in seeds
    )
    return SeedSample(tuple(ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None))


def read_curves(cell: ExperimentCell, outcomes: StoredOutcomes, seeds: Iterable[int]) -> list[RoundCurve]:
    """The cell's curve of each seed that is there."""
    [config] = cell.configs
    found = (outcomes.outcome(seeded(config, seed)) for seed in seeds)
    curves = [CURVES[cell.measure](outcome) for outcome in found if outcome is not None]
    return [curve for curve in curves if curve]


def _measured(outcome: Outcome | None, number: NumberOf) -> float | None:
    return None if outcome is None else number(outcome)


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _first_labels(outcome: Outcome) -> float | None:
    return percent(next(iter(outcome.pseudo_label_accuracy), None))


def _first_coverage(outcome: Outcome) -> float | None:
    """Of the first candidate sets, how many hold the truth."""
    return percent(next((refresh.coverage for refresh in outcome.refreshes), None))


def _drift_of(record: RoundRecord, name: str, kind: str) -> float | None:
    drift = (record.drift or {}).get(name, NO_DRIFT)
    return {"diversity": drift.diversity, "cosine": drift.cosine}[kind]


def _kilobytes_up(outcome: Outcome) -> float:
    return outcome.bytes_up / max(len(outcome.rounds), 1) / 1000


NUMBERS: Mapping[str, NumberOf] = {
    "final": lambda outcome: percent(outcome.final.macro),
    "zero_shot": lambda outcome: percent(outcome.zero_shot.macro),
    # One model, and every test image at one client: counted by images it is the accuracy on the whole test set,
    # whatever the split. The paper's number is of that kind: 43.24 under all three of its skews.
    "zero_shot_of_all": lambda outcome: percent(outcome.zero_shot.weighted),
    "first_labels": _first_labels,
    "first_coverage": _first_coverage,
    "kilobytes_up": _kilobytes_up,
    "seconds": lambda outcome: outcome.seconds,
}


def _curve(pairs: Iterable[tuple[int, float | None]]) -> RoundCurve:
    return tuple((round + 1, value) for round, value in pairs if value is not None)


def _drift(name: str, kind: str) -> CurveOf:
    return lambda outcome: _curve((record.round, _drift_of(record, name, kind)) for record in outcome.rounds)


CURVES: Mapping[str, CurveOf] = {
    "zero_shot_level": lambda outcome: _curve(
        (record.round, percent(outcome.zero_shot.macro)) for record in outcome.rounds
    ),
    "accuracy": lambda outcome: _curve((record.round, percent(record.macro)) for record in outcome.rounds),
    "labels": lambda outcome: _curve(
        (refresh.round, percent(refresh.pseudo_label_accuracy)) for refresh in outcome.refreshes
    ),
    **{f"{kind}-{prompt}": _drift(prompt, kind) for prompt in ("text", "visual") for kind in ("diversity", "cosine")},
}

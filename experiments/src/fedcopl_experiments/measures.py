"""Measures of stored runs: one number or one curve for each seed, shares in percent."""

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
    """The values of a number over several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation; None for a single seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


class StoredOutcomes:
    """Finds finished runs in a store by their settings, of this version of the code or of any version."""

    def __init__(self, store: ResultStore, *, any_code: bool = False):
        self._store, self._any_code = store, any_code
        self._found: dict[str, StoredRun] = {}

    def run(self, config: RunConfig) -> StoredRun | None:
        """Return the finished run of these settings, or None."""
        key = run_key(config)
        if key not in self._found:
            stored = self._store.find(key)
            if self._any_code and (stored is None or stored.outcome is None):
                stored = self._latest.get(_settings_text(config))
            if stored is None or stored.outcome is None:
                return None
            self._found[key] = stored
        return self._found[key]

    def outcome(self, config: RunConfig) -> Outcome | None:
        run = self.run(config)
        return None if run is None else run.outcome

    @cached_property
    def _latest(self) -> dict[str, StoredRun]:
        """The latest finished run of each settings, of any version."""
        return {text: run for run in self._store.runs() if (text := _settings_text_of(run))}


def _settings_text(config: RunConfig) -> str:
    """Return the deciding settings as text, with the number of rounds that the method executes."""
    from fedcopl.methods import with_effective_rounds  # imports torch

    return json.dumps(deciding_settings(with_effective_rounds(config)), sort_keys=True)


def _settings_text_of(run: StoredRun) -> str | None:
    if run.outcome is None:
        return None
    try:
        return _settings_text(RunConfig.from_mapping(run.settings, run.folder))
    except ConfigError:  # a run of a version with other settings
        return None


def read(cell: ExperimentCell, outcomes: StoredOutcomes, seeds: Iterable[int]) -> SeedSample:
    """Return a cell's number for each seed whose runs are all finished."""
    number = NUMBERS[cell.measure]
    values = (
        _mean_of([_measured(outcomes.outcome(seeded(config, seed)), number) for config in cell.configs])
        for seed in seeds
    )
    return SeedSample(tuple(value for value in values if value is not None))


def read_gain(cell: ExperimentCell, outcomes: StoredOutcomes, seeds: Iterable[int]) -> SeedSample:
    """Return a cell's difference to its baseline, seed by seed."""
    assert cell.baseline is not None
    number, [config] = NUMBERS[cell.measure], cell.configs
    pairs = (
        [_measured(outcomes.outcome(seeded(run, seed)), number) for run in (config, cell.baseline)] for seed in seeds
    )
    return SeedSample(tuple(value - base for value, base in pairs if value is not None and base is not None))


def read_curves(cell: ExperimentCell, outcomes: StoredOutcomes, seeds: Iterable[int]) -> list[RoundCurve]:
    """Return a cell's curve for each finished seed."""
    [config] = cell.configs
    finished = (outcomes.outcome(seeded(config, seed)) for seed in seeds)
    curves = [CURVES[cell.measure](outcome) for outcome in finished if outcome is not None]
    return [curve for curve in curves if curve]


def _measured(outcome: Outcome | None, number: NumberOf) -> float | None:
    return None if outcome is None else number(outcome)


def _mean_of(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present and len(present) == len(values) else None


def percent(share: float | None) -> float | None:
    """Convert a share to percent."""
    return None if share is None else 100 * share


def _first_labels(outcome: Outcome) -> float | None:
    return percent(next(iter(outcome.pseudo_label_accuracy), None))


def _first_coverage(outcome: Outcome) -> float | None:
    """Return the share of the first candidate sets that contain the true label."""
    return percent(next((refresh.coverage for refresh in outcome.refreshes), None))


def _drift_of(record: RoundRecord, name: str, kind: str) -> float | None:
    drift = (record.drift or {}).get(name, NO_DRIFT)
    return {"diversity": drift.diversity, "cosine": drift.cosine}[kind]


def _kilobytes_up(outcome: Outcome) -> float:
    return outcome.bytes_up / max(len(outcome.rounds), 1) / 1000


NUMBERS: Mapping[str, NumberOf] = {
    "final": lambda outcome: percent(outcome.final.macro),
    "zero_shot": lambda outcome: percent(outcome.zero_shot.macro),
    # Weighted by images, this is the accuracy on the whole test set under every partition, as in the paper, which
    # prints 43.24 on DTD under all three skews.
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

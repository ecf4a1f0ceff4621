"""What is read from stored runs: one number or one curve for each seed, in percent where it is a share."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError

from .cells import Cell, seeded
from .run_key import run_key
from .store import ResultStore, StoredRun

Results = Mapping[str, Any]
Curve = tuple[tuple[int, float], ...]  # (round counted from 1, value)


@dataclass(frozen=True)
class Reading:
    """A number over several seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Of the sample; unknown for a single seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


class Shelf:
    """The results of one place, found by settings. They come from this very program, or from any that stored them."""

    def __init__(self, store: ResultStore, *, any_code: bool = False):
        self._store, self._any_code = store, any_code
        self._found: dict[str, StoredRun] = {}

    def run(self, config: RunConfig) -> StoredRun | None:
        """The run of these settings, if it came to its end."""
        key = run_key(config)
        if key not in self._found:
            stored = self._store.find(key)
            if self._any_code and (stored is None or stored.results is None):
                stored = self._latest.get(_question(config))
            if stored is None or stored.results is None:
                return None
            self._found[key] = stored
        return self._found[key]

    def results(self, config: RunConfig) -> Results | None:
        run = self.run(config)
        return None if run is None else run.results

    @cached_property
    def _latest(self) -> dict[str, StoredRun]:
        """By their settings alone, the last finished."""
        return {question: run for run in self._store.runs() if (question := _asked(run))}


def _question(config: RunConfig) -> str:
    """The settings that decide a result, whatever program answers."""
    return json.dumps(config.model_dump(exclude={"name": True, "model": {"memory", "threads"}}), sort_keys=True)


def _asked(run: StoredRun) -> str | None:
    if run.results is None:
        return None
    try:
        return _question(RunConfig.from_mapping(run.settings, run.folder))
    except ConfigError:  # by a program that knew other settings
        return None


def read(cell: Cell, shelf: Shelf, seeds: Iterable[int]) -> Reading:
    """The cell's number of each seed for which all its runs are there."""
    measure = NUMBERS[cell.measure]
    values = (
        _mean_of([_measured(shelf.results(seeded(config, seed)), measure) for config in cell.configs]) for seed in seeds
    )
    return Reading(tuple(value for value in values if value is not None))


def read_gain(cell: Cell, shelf: Shelf, seeds: Iterable[int]) -> Reading:
    """How much better than the cell's baseline, seed by seed."""
    assert cell.baseline is not None
    measure, [config] = NUMBERS[cell.measure], cell.configs
    gains = []
    for seed in seeds:
        pair = [_measured(shelf.results(seeded(run, seed)), measure) for run in (config, cell.baseline)]
        if pair[0] is not None and pair[1] is not None:
            gains.append(pair[0] - pair[1])
    return Reading(tuple(gains))


def read_curves(cell: Cell, shelf: Shelf, seeds: Iterable[int]) -> list[Curve]:
    """The cell's curve of each seed that is there."""
    [config] = cell.configs
    found = (shelf.results(seeded(config, seed)) for seed in seeds)
    curves = [CURVES[cell.measure](results) for results in found if results is not None]
    return [curve for curve in curves if curve]


def _measured(results: Results | None, measure: Callable[[Results], float | None]) -> float | None:
    return None if results is None else measure(results)


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def percent(share: float | None) -> float | None:
    return None if share is None or math.isnan(share) else 100 * share


def _gain(results: Results) -> float | None:
    final, zero_shot = percent(results["final"]["macro"]), percent(results["zero_shot"]["macro"])
    return None if final is None or zero_shot is None else final - zero_shot


def _first_labels(results: Results) -> float | None:
    shares = results["pseudo_label_accuracy"]
    return percent(shares[0]) if shares else None


def _last_labels(results: Results) -> float | None:
    shares = results["pseudo_label_accuracy"]
    return percent(shares[-1]) if shares else None


def _shared_drift(kind: str) -> Callable[[Results], float | None]:
    """Of what the clients share, in hundredths, mean over the rounds in which it was measured."""

    def mean(results: Results) -> float | None:
        drifts = [record["drift"] or {} for record in results["rounds"]]
        values = [drift.get(name, {}).get(kind) for drift in drifts for name in results.get("shared", ())]
        known = [value for value in values if value is not None]
        return 100 * statistics.fmean(known) if known else None

    return mean


def _worst_recall(results: Results) -> float | None:
    """Of the class that the clients' own models find least, in the last round that was measured."""
    measured = [record["recall"] for record in results["rounds"] if record["recall"]]
    known = [share for share in measured[-1] if share is not None] if measured else []
    return percent(min(known)) if known else None


def _kilobytes_up(results: Results) -> float:
    return float(results["bytes_up"]) / len(results["rounds"]) / 1000


NUMBERS: Mapping[str, Callable[[Results], float | None]] = {
    "final": lambda results: percent(results["final"]["macro"]),
    "zero_shot": lambda results: percent(results["zero_shot"]["macro"]),
    "gain": _gain,
    "first_labels": _first_labels,
    "last_labels": _last_labels,
    "images_used": lambda results: float(results["images_used"]),
    "shared_diversity": _shared_drift("diversity"),
    "shared_cosine": _shared_drift("cosine"),
    "worst_recall": _worst_recall,
    "kilobytes_up": _kilobytes_up,
}


def _curve(pairs: Iterable[tuple[int, float | None]]) -> Curve:
    return tuple((round + 1, value) for round, value in pairs if value is not None)


def _drift(prompt: str, kind: str) -> Callable[[Results], Curve]:
    return lambda results: _curve(
        (record["round"], (record["drift"].get(prompt) or {}).get(kind)) for record in results["rounds"]
    )


CURVES: Mapping[str, Callable[[Results], Curve]] = {
    "zero_shot_level": lambda results: _curve(
        (record["round"], percent(results["zero_shot"]["macro"])) for record in results["rounds"]
    ),
    "accuracy": lambda results: _curve((record["round"], percent(record["macro"])) for record in results["rounds"]),
    "labels": lambda results: _curve(
        (record["round"], percent(record["pseudo_label_accuracy"])) for record in results["refreshes"]
    ),
    **{f"{kind}-{prompt}": _drift(prompt, kind) for prompt in ("text", "visual") for kind in ("diversity", "cosine")},
}

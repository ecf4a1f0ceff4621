"""Before anything is played: what is done, how long the rest may take, and what is missing on this machine."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fedcopl.clip.formats.hub import BUILT_IN, RELEASES, WeightsRelease, locate, openai_cache
from fedcopl.config import RunConfig
from fedcopl.data.catalog import load_dataset
from fedcopl.errors import ConfigError, FedCoPLError

from .grid_workers import devices
from .run_key import run_key
from .store import ResultStore, StoredRun

RunKind = tuple[str, str, str]  # backbone, data set, method


@dataclass(frozen=True)
class PlannedRun:
    """One run, and how long it may take."""

    config: RunConfig
    status: str  # "done", "failed before" or "to play"
    seconds: float
    likes: int  # stored runs of like settings that the time rests on; 0: a rough guess


@dataclass(frozen=True)
class GridPlan:
    """All runs, and what they miss."""

    runs: tuple[PlannedRun, ...]
    missing: tuple[str, ...]

    @property
    def to_play(self) -> list[PlannedRun]:
        return [run for run in self.runs if run.status != "done"]

    def seconds(self, jobs: int) -> float:
        return sum(run.seconds for run in self.to_play) / jobs


def make_plan(configs: Sequence[RunConfig], store: ResultStore) -> GridPlan:
    stored = {run.key: run for run in store.runs()}
    clock = Clock(stored.values())
    return GridPlan(tuple(_planned(config, stored, clock) for config in configs), tuple(missing(configs)))


def _planned(config: RunConfig, stored: Mapping[str, StoredRun], clock: "Clock") -> PlannedRun:
    known = stored.get(run_key(config))
    status = "to play" if known is None else "done" if known.is_done else "failed before"
    alike = clock.rates(_kind(config))
    rates = alike or clock.rates(_kind(config)[:2])
    seconds = statistics.median(rates) * _work(config) if rates else rough_seconds(config)
    return PlannedRun(config, status, seconds, len(alike))


class Clock:
    """How long runs take, by those that were timed: of the same method, or at least of the same data."""

    def __init__(self, runs: Iterable[StoredRun]):
        self._rates: dict[tuple[str, ...], list[float]] = {}
        for run in runs:
            with suppress(ConfigError):  # of a program that knew other settings
                if run.is_done:
                    self._note(RunConfig.from_mapping(run.settings, run.folder), run.seconds)

    def _note(self, config: RunConfig, seconds: float) -> None:
        for kind in (_kind(config), _kind(config)[:2]):
            self._rates.setdefault(kind, []).append(seconds / _work(config))

    def rates(self, kind: tuple[str, ...]) -> Sequence[float]:
        """Seconds for a unit of work, in each run of this kind."""
        return self._rates.get(kind, ())


def _kind(config: RunConfig) -> RunKind:
    return config.model.backbone, config.data.source, config.method


def _work(config: RunConfig) -> float:
    """FLOP, by the model of cost."""
    from .expected_cost import expected_cost  # brings torch

    return expected_cost(config).flop


def rough_seconds(config: RunConfig) -> float:
    """Where nothing like it was stored: by the model of cost, and by how fast this machine was just now."""
    from .expected_cost import expected_seconds

    return expected_seconds(config)


def missing(configs: Iterable[RunConfig]) -> Iterator[str]:
    """What these runs need and this machine has not: one line each."""
    configs = list(configs)
    for data in dict.fromkeys(config.data.model_copy(update=SHARED_OUT) for config in configs):
        try:
            load_dataset(data)
        except FedCoPLError as error:
            yield f"data: {error}"
    backbones = dict.fromkeys(config.model.backbone for config in configs)
    for backbone in backbones:
        yield from _missing_model(backbone)
    if not devices() and any(backbone not in BUILT_IN for backbone in backbones):
        yield "GPU: none was found; on a CPU a run of the paper's size takes days"


SHARED_OUT = {"clients": 1, "partition": "iid", "beta": 0.1}  # how a data set is shared out does not matter here


def _missing_model(backbone: str) -> Iterator[str]:
    release = RELEASES.get(backbone)
    if release is None or Path(backbone).exists():
        try:
            locate(backbone)
        except FedCoPLError as error:
            yield f"model: {error}"
    elif not _is_cached(release):
        yield f"model: {backbone} is in no cache; it will be fetched from {release.repository}, or see docs/models.md"
        if find_spec("huggingface_hub") is None:
            yield "extra: pip install 'fedcopl[hub]', to fetch models"


def _is_cached(release: WeightsRelease) -> bool:
    original = release.original and openai_cache() / release.original.name
    needed = (release.weights, release.beside[0])
    return bool(original and original.is_file()) or all((release.snapshot / file).is_file() for file in needed)

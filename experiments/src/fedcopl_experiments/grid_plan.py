"""Before anything is played: what is done, how long the rest may take, and what is missing on this machine."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedcopl.clip.known_models import BUILT_IN, RELEASES, KnownModel, locate
from fedcopl.config import RunConfig
from fedcopl.data.catalog import load_dataset
from fedcopl.errors import ConfigError, FedCoPLError

from .grid_workers import devices
from .run_key import run_key
from .store import ResultStore, StoredRun

if TYPE_CHECKING:
    from fedcopl.simulation.time_estimate import Workload

RunKind = tuple[str, str, str]  # backbone, data set, method
DATA_SETS: Mapping[str, tuple[int, int, int]] = {  # training and test images, classes: docs/data.md
    "dtd": (3760, 1880, 47),
    "resisc45": (6300, 25200, 45),
    "cub200": (5994, 5794, 200),
    "ucf101": (7639, 3783, 101),
    "cifar10": (50000, 10000, 10),
    "cifar100": (50000, 10000, 100),
    "digits": (1198, 599, 10),
}
OTHER_DATA = (10_000, 2_500, 100)


@dataclass(frozen=True)
class PlannedRun:
    """One run, and how long it may take."""

    config: RunConfig
    status: str  # "done", "failed before" or "to play"
    seconds: float | None  # None: unknown, as its model or data are not on this machine
    likes: int  # stored runs of the same kind that the time is based on; 0: measured or unknown


@dataclass(frozen=True)
class GridPlan:
    """All runs, and what they miss."""

    runs: tuple[PlannedRun, ...]
    missing: tuple[str, ...]

    @property
    def to_play(self) -> list[PlannedRun]:
        return [run for run in self.runs if run.status != "done"]

    def seconds(self, jobs: int) -> float:
        """Wall time of the runs whose time is known."""
        return sum(run.seconds or 0.0 for run in self.to_play) / jobs


def make_plan(configs: Sequence[RunConfig], store: ResultStore) -> GridPlan:
    stored = {run.key: run for run in store.runs()}
    clock = Clock(stored.values())
    return GridPlan(tuple(_planned(config, stored, clock) for config in configs), tuple(missing(configs)))


def _planned(config: RunConfig, stored: Mapping[str, StoredRun], clock: "Clock") -> PlannedRun:
    known = stored.get(run_key(config))
    status = "to play" if known is None else "done" if known.is_done else "failed before"
    rates = clock.rates(_kind(config))
    seconds = statistics.median(rates) * _work(config) if rates else clock.measured(config)
    return PlannedRun(config, status, seconds, len(rates))


class Clock:
    """Wall times of runs: by stored runs of the same kind, or by what is measured on this machine."""

    def __init__(self, runs: Iterable[StoredRun]):
        self._rates: dict[RunKind, list[float]] = {}
        self._measured: dict[RunKind, tuple[float, float] | None] = {}
        for run in runs:
            with suppress(ConfigError):  # of a program that knew other settings
                if run.is_done:
                    config = RunConfig.from_mapping(run.settings, run.folder)
                    self._rates.setdefault(_kind(config), []).append(run.seconds / _work(config))

    def rates(self, kind: RunKind) -> Sequence[float]:
        """Seconds for a unit of work, in each run of this kind."""
        return self._rates.get(kind, ())

    def measured(self, config: RunConfig) -> float | None:
        """Seconds by one encoding batch and one training step; None where model or data are not on this machine."""
        kind = _kind(config)
        if kind not in self._measured:
            self._measured[kind] = None if list(missing([config])) else _measure(config)
        rates, work = self._measured[kind], _workload(config)
        return None if rates is None else work.encoded * rates[0] + work.steps * rates[1]


def _kind(config: RunConfig) -> RunKind:
    return config.model.backbone, config.data.source, config.method


def _work(config: RunConfig) -> float:
    """Work in encoded images: a training step costs about three times the encoding of its batch."""
    work = _workload(config)
    return work.encoded + 3 * config.train.batch * work.steps


def _workload(config: RunConfig) -> "Workload":
    from fedcopl.simulation.time_estimate import workload  # imports torch

    train, test, classes = DATA_SETS.get(config.data.source, OTHER_DATA)
    return workload(config, train, test, config.data.clients, classes)


def _measure(config: RunConfig) -> tuple[float, float]:
    from fedcopl.clip.device import threads_of_arithmetic
    from fedcopl.run.build import build_clip
    from fedcopl.simulation.time_estimate import measure_seconds

    clip = build_clip(config.model)
    with threads_of_arithmetic(config.model.threads or 1):
        return measure_seconds(config, clip, load_dataset(config.data))


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
        yield f"model: {backbone} is in no cache; it will be fetched from {release.name}, or see docs/models.md"
        if find_spec("huggingface_hub") is None:
            yield "extra: pip install 'fedcopl[hub]', to fetch models"


def _is_cached(release: KnownModel) -> bool:
    needed = (release.weights, release.other_files[0])
    return bool(release.openai_path and release.openai_path.is_file()) or all(
        (release.snapshot / file).is_file() for file in needed
    )

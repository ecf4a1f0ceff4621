"""Plan of a grid: its finished runs, the expected time of the others, and missing data, models and devices."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedcopl.clip.known_models import BUILT_IN, RELEASES, KnownModel, locate
from fedcopl.config import Data, RunConfig
from fedcopl.data.catalog import load_dataset
from fedcopl.errors import ConfigError, FedCoPLError

from .grid_workers import devices
from .run_key import run_key
from .scales import FEATURES
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
    """One run with its status and expected time."""

    config: RunConfig
    status: str  # "done", "failed before" or "to run"
    seconds: float | None  # None: unknown, because model or data are missing
    similar_runs: int  # stored runs of the same kind behind the estimate; 0: measured or unknown


@dataclass(frozen=True)
class GridPlan:
    """All runs of a grid, and what is missing for them."""

    runs: tuple[PlannedRun, ...]
    missing: tuple[str, ...]

    @property
    def to_run(self) -> list[PlannedRun]:
        return [run for run in self.runs if run.status != "done"]

    def seconds(self, jobs: int) -> float:
        """Return the expected wall time of the runs whose time is known."""
        return sum(run.seconds or 0.0 for run in self.to_run) / jobs


def make_plan(configs: Sequence[RunConfig], store: ResultStore) -> GridPlan:
    stored = {run.key: run for run in store.runs()}
    times = RunTimes(stored.values())
    return GridPlan(tuple(_planned(config, stored, times) for config in configs), tuple(missing(configs)))


def _planned(config: RunConfig, stored: Mapping[str, StoredRun], times: "RunTimes") -> PlannedRun:
    run = stored.get(run_key(config))
    status = "to run" if run is None else "done" if run.is_done else "failed before"
    rates = times.rates(_kind(config))
    seconds = statistics.median(rates) * _work(config) if rates else times.measured(config)
    return PlannedRun(config, status, seconds, len(rates))


class RunTimes:
    """Expected wall times, from stored runs of the same kind or from a measurement on this machine."""

    def __init__(self, runs: Iterable[StoredRun]):
        self._rates: dict[RunKind, list[float]] = {}
        self._measured: dict[RunKind, tuple[float, float] | None] = {}
        for run in runs:
            with suppress(ConfigError):  # a run of a version with other settings
                if run.is_done:
                    config = RunConfig.from_mapping(run.settings, run.folder)
                    self._rates.setdefault(_kind(config), []).append(run.seconds / _work(config))

    def rates(self, kind: RunKind) -> Sequence[float]:
        """Return the seconds per unit of work of each stored run of this kind."""
        return self._rates.get(kind, ())

    def measured(self, config: RunConfig) -> float | None:
        """Estimate the seconds from one encoding batch and one training step; None if model or data are missing."""
        kind = _kind(config)
        if kind not in self._measured:
            self._measured[kind] = None if list(missing([config])) else _measure(config)
        rates, work = self._measured[kind], _workload(config)
        return None if rates is None else work.encoded * rates[0] + work.steps * rates[1]


def _kind(config: RunConfig) -> RunKind:
    return config.model.backbone, config.data.source, config.method


def _work(config: RunConfig) -> float:
    """Return the work in encoded images; a training step costs about three times the encoding of its batch."""
    work = _workload(config)
    return work.encoded + 3 * config.train.batch * work.steps


def _workload(config: RunConfig) -> "Workload":
    from fedcopl.simulation.time_estimate import workload  # imports torch

    train, test, classes = DATA_SETS.get(config.data.source, OTHER_DATA)
    return workload(config, train, test, config.data.clients, classes)


def _measure(config: RunConfig) -> tuple[float, float]:
    from fedcopl.clip.device import limit_threads
    from fedcopl.run.build import build_clip
    from fedcopl.simulation.time_estimate import measure_seconds

    from .stored_features import load_features

    if config.data.source == FEATURES:
        dataset, clip = load_features(Path(config.data.path))
    else:
        dataset, clip = load_dataset(config.data), build_clip(config.model)
    with limit_threads(config.model.threads or 1):
        return measure_seconds(config, clip, dataset)


def missing(configs: Iterable[RunConfig]) -> Iterator[str]:
    """Yield one line for each data set, model or device that these runs need and this machine does not have."""
    configs = list(configs)
    for data in dict.fromkeys(config.data.model_copy(update=NO_PARTITION) for config in configs):
        try:
            _check_data(data)
        except FedCoPLError as error:
            yield f"data: {error}"
    backbones = dict.fromkeys(config.model.backbone for config in configs if config.data.source != FEATURES)
    for backbone in backbones:
        yield from _missing_model(backbone)
    if not devices() and any(backbone not in BUILT_IN for backbone in backbones):
        yield "GPU: none was found; on a CPU a run of the paper's size takes days"


def _check_data(data: Data) -> None:
    """Raise FedCoPLError if the images or features cannot be read."""
    if data.source == FEATURES:
        from .stored_features import load_features  # imports torch

        load_features(Path(data.path))
    else:
        load_dataset(data)


NO_PARTITION = {"clients": 1, "partition": "iid", "beta": 0.1}  # so that each data set is checked once


def _missing_model(backbone: str) -> Iterator[str]:
    release = RELEASES.get(backbone)
    if release is None or Path(backbone).exists():
        try:
            locate(backbone)
        except FedCoPLError as error:
            yield f"model: {error}"
    elif not _is_cached(release):
        yield f"model: {backbone} is not in a cache; it will be downloaded from {release.name}, or see docs/models.md"
        if find_spec("huggingface_hub") is None:
            yield "extra: pip install 'fedcopl[hub]', to download models"


def _is_cached(release: KnownModel) -> bool:
    needed = (release.weights, release.other_files[0])
    return bool(release.openai_path and release.openai_path.is_file()) or all(
        (release.snapshot / file).is_file() for file in needed
    )

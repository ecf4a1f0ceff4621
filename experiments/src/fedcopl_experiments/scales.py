"""Scales of the experiments: the paper's settings, the built-in demo, or one round as a test."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from fedcopl.config import AS_PUBLISHED, RunConfig, read_settings
from fedcopl.data.catalog import SOURCES
from fedcopl.errors import ConfigError
from fedcopl.labelers import LABELERS

from .flat_settings import flat, nested
from .paper_names import CURVE_METHODS

TAUS = (0.1, 0.2, 0.3, 0.4, 0.44, 0.46, 0.48, 0.5, 0.52, 0.54, 0.56, 0.6, 0.7, 0.8, 0.9)  # of the supplement's sweeps
FEW_CLIENTS = {"cub200": 5, "ucf101": 5}  # the paper's other data sets have 10
PAPER_BACKBONE = "ViT-B/32"
DIGITS = "digits"
FEATURES = "features"  # `data.source` of stored features
FEATURES_SUFFIX = ".npz"
DEFAULT_SKEW = "dirichlet-0.1"
NO_CHANGES: Mapping[str, Any] = {}
# How FPL and CPL select images in the paper's tables (experiments/label-rules.md gives the reason), and in the grid.
CONFIDENT_IMAGES: Mapping[str, Any] = {"labels.among": "confident", "labels.cpl_keep_likeliest": True}
ORIGINAL_RULES: Mapping[str, Any] = {"labels.among": "all", "labels.cpl_keep_likeliest": False}
SKEWS: Mapping[str, Mapping[str, Any]] = {
    "dirichlet-0.1": {"data.partition": "dirichlet", "data.beta": 0.1},
    "dirichlet-0.05": {"data.partition": "dirichlet", "data.beta": 0.05},
    "quantity": {"data.partition": "quantity"},
}
SHORT = {"rounds": 4, "train.epochs": 2, "labels.refresh_every": 2}
# For folders of some hundred images, where batches of 64 would be one step per epoch: experiments/photographs.md
FOLDER_SETTINGS = {"train.batch": 8}
MEASURED_EVERY_ROUND = set(CURVE_METHODS.values())


@dataclass(frozen=True)
class ExperimentScale:
    """Settings that all runs share, and the values of each axis of an experiment."""

    name: str
    description: str
    settings: Mapping[str, Any]  # by "section.key"; the others have their defaults
    seeds: int = 3
    client_counts: tuple[int, ...] = (5, 10, 30, 50)  # K
    participation_rates: tuple[float, ...] = (0.5, 0.8, 1.0)  # R
    taus: tuple[float, ...] = TAUS
    labelers: tuple[str, ...] = ()  # of the grid; empty: all registered labelers
    dataset: str = ""  # used instead of the paper's data sets


@cache
def scales() -> Mapping[str, ExperimentScale]:
    """Return all scales by name."""
    # The paper reports only the accuracy `macro`.
    paper = {**AS_PUBLISHED, "evaluation.everywhere": False}
    demo = _demo_settings() | paper
    tiny = demo | {"rounds": 1, "train.epochs": 1, "data.clients": 2, "labels.per_class": 4}
    return {
        "smoke": ExperimentScale(
            "smoke",
            "one round of everything, to test that it works",
            tiny,
            seeds=1,
            client_counts=(2, 3),
            participation_rates=(0.5, 1.0),
            taus=(0.3, 0.5),
            labelers=("copl",),
            dataset=DIGITS,
        ),
        "short": ExperimentScale(
            "short", "the same as demo, with four rounds of two epochs", demo | SHORT, seeds=1, dataset=DIGITS
        ),
        "demo": ExperimentScale("demo", "the built-in model and handwritten digits", demo, dataset=DIGITS),
        "paper": ExperimentScale("paper", "the paper's models, data sets and settings", paper),
    }


def default_settings() -> dict[str, Any]:
    """Return the defaults of the settings that the scales set as published, priors included."""
    defaults = flat(RunConfig().model_dump())
    return {name: defaults[name] for name in AS_PUBLISHED}


def find_scale(name: str) -> ExperimentScale:
    """Return a scale by name; raises ConfigError for an unknown one."""
    if name not in scales():
        raise ConfigError(f"--scale: there is no scale {name!r} (known: {', '.join(scales())})")
    return scales()[name]


def _demo_settings() -> dict[str, Any]:
    with as_file(files("fedcopl") / "demo.toml") as file:
        settings = read_settings(file)
    return {key: value for key, value in flat(settings).items() if key != "name"}


@dataclass(frozen=True)
class ExperimentSetup:
    """A scale with the choices of the command line; it makes the settings of each run."""

    scale: ExperimentScale
    datasets: Sequence[str] = ()  # known names, or names of image folders and feature files in `folder`; empty: all
    backbone: str = ""  # replaces the model of the experiments
    folder: Path = field(default=Path("data"))  # of the data sets
    backbones: Mapping[str, str] = field(default_factory=dict)  # by data set
    methods: Sequence[str] = ()  # of the grid; empty: all
    labelers: Sequence[str] = ()  # of the grid; empty: all

    def check(self) -> None:
        """Raise ConfigError for data sets that are neither known nor in the folder."""
        for name in self.datasets:
            if name not in SOURCES and not (self.folder / name).exists():
                raise ConfigError(
                    f"--dataset: there is no data set {name!r}, and no folder or file of this name in {self.folder} "
                    f"(known: {', '.join(SOURCES)})"
                )
        for name in self.backbones:
            if name not in self.datasets:
                raise ConfigError(f"--backbone: {name}: is not one of the data sets given by --dataset")

    @property
    def is_paper(self) -> bool:
        """Whether tables show the paper's numbers."""
        return self.scale.name == "paper" and not self.backbone and not self.backbones

    @property
    def grid_labelers(self) -> tuple[str, ...]:
        """The labelers of the grid, including those of plug-ins."""
        names = self.scale.labelers or tuple(LABELERS)
        return tuple(name for name in names if not self.labelers or name in self.labelers)

    def columns(self, datasets: Iterable[str]) -> tuple[str, ...]:
        """Return an experiment's data sets among --dataset; at a scale with its own data set, all of --dataset."""
        if self.scale.dataset:
            return tuple(self.datasets) or (self.scale.dataset,)
        return tuple(name for name in datasets if not self.datasets or name in self.datasets)

    def config(
        self,
        dataset: str,
        method: str = "fedcopl",
        labeler: str = "copl",
        skew: str = DEFAULT_SKEW,
        backbone: str = PAPER_BACKBONE,
        changes: Mapping[str, Any] = NO_CHANGES,
        label_rules: Mapping[str, Any] = CONFIDENT_IMAGES,
    ) -> RunConfig:
        """Return the settings of one run.

        Changes that do not change a value are ignored, so that experiments share runs.

        Args:
            dataset: A known data set, or a folder of images or file of features in the folder of data sets.
            method: The method.
            labeler: The labeler.
            skew: A key of `SKEWS`.
            backbone: The model of the experiment, at scale paper.
            changes: Settings of this run, by "section.key".
            label_rules: Settings of FPL and CPL; not used for CoPL.
        """
        rules = NO_CHANGES if labeler == "copl" else label_rules
        unchanged = {
            "data.clients": FEW_CLIENTS.get(dataset, 10),
            "model.backbone": backbone,
            **self.scale.settings,
            **SKEWS[skew],
            **rules,
            **({"model.backbone": self.backbone} if self.backbone else {}),
            "method": method,
            "labeler": labeler,
        }
        source = self._source(dataset)
        complete = flat(RunConfig.from_mapping(nested(unchanged | source), "settings").model_dump())
        changed = {key: value for key, value in changes.items() if complete.get(key) != value}
        is_unchanged = not changed and skew == DEFAULT_SKEW and rules != ORIGINAL_RULES
        every_round = is_unchanged and (method, labeler) in MEASURED_EVERY_ROUND
        always = {
            "name": "-".join([method, labeler, dataset, *_name_parts(changed)]),
            "evaluation.every": 1 if every_round else complete["rounds"],  # most experiments use the last round only
        }
        return RunConfig.from_mapping(nested(unchanged | changed | source | always), "settings")

    def _source(self, dataset: str) -> dict[str, Any]:
        """Return the settings of a data set's images and of its model."""
        path = "" if dataset == DIGITS else str(self.folder / dataset)
        backbone = {"model.backbone": self.backbones[dataset]} if dataset in self.backbones else {}
        if dataset in SOURCES:
            return {"data.source": dataset, "data.path": path, **backbone}
        if dataset.endswith(FEATURES_SUFFIX):
            return {"data.source": FEATURES, "data.path": path, "model.backbone": path}
        return {"data.source": "folder", "data.path": path, **FOLDER_SETTINGS, **backbone}


def _name_parts(changes: Mapping[str, Any]) -> list[str]:
    """Return the changes as parts of a run's name: `aggregate-both`, `no-entropy-filter`."""
    leaves = {key.partition(".")[2].replace("_", "-"): value for key, value in changes.items()}
    return [f"no-{leaf}" if value is False else f"{leaf}-{value}" for leaf, value in leaves.items()]

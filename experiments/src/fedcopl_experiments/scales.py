"""How large the experiments are: exactly the paper's, on the embedded model and digits, or only to see them work."""

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
from .paper_names import LINES

TAUS = (0.1, 0.2, 0.3, 0.4, 0.44, 0.46, 0.48, 0.5, 0.52, 0.54, 0.56, 0.6, 0.7, 0.8, 0.9)  # of the supplement's sweeps
FEW_CLIENTS = {"cub200": 5, "ucf101": 5}  # the paper's other data sets have 10
PAPER_BACKBONE = "ViT-B/32"
EMBEDDED = "digits"
USUAL_SKEW = "dirichlet-0.1"
NO_CHANGES: Mapping[str, Any] = {}
# How the paper's baselines are read where its tables are made anew: experiments/label-readings.md says why.
SURE_FIRST: Mapping[str, Any] = {"labels.among": "sure", "labels.cpl_keep_likeliest": True}
TO_THE_LETTER: Mapping[str, Any] = {"labels.among": "all", "labels.cpl_keep_likeliest": False}
SKEWS: Mapping[str, Mapping[str, Any]] = {
    "dirichlet-0.1": {"data.partition": "dirichlet", "data.beta": 0.1},
    "dirichlet-0.05": {"data.partition": "dirichlet", "data.beta": 0.05},
    "quantity": {"data.partition": "quantity"},
}
SHORT = {"rounds": 4, "train.epochs": 2, "labels.refresh_every": 2}
DRAWN_OVER_ROUNDS = set(LINES.values())


@dataclass(frozen=True)
class ExperimentScale:
    """The settings that all runs have in common, and how far each axis of an experiment goes."""

    name: str
    about: str
    settings: Mapping[str, Any]  # "section.key" -> value, on top of the defaults
    trials: int = 3
    crowds: tuple[int, ...] = (5, 10, 30, 50)  # numbers of clients, K
    rates: tuple[float, ...] = (0.5, 0.8, 1.0)  # of participation, R
    taus: tuple[float, ...] = TAUS
    labelers: tuple[str, ...] = ()  # of our own grid; empty: all there are
    dataset: str = ""  # stands in for all of the paper's; empty where these are used


@cache
def scales() -> Mapping[str, ExperimentScale]:
    """The closed table of scales."""
    # The paper's own method everywhere; and of the three accuracies it has only `macro`.
    paper = {**AS_PUBLISHED, "evaluation.everywhere": False}
    demo = _demo_settings() | paper
    tiny = demo | {"rounds": 1, "train.epochs": 1, "data.clients": 2, "labels.per_class": 4}
    return {
        "smoke": ExperimentScale(
            "smoke",
            "one round of everything, to see it work",
            tiny,
            trials=1,
            crowds=(2, 3),
            rates=(0.5, 1.0),
            taus=(0.3, 0.5),
            labelers=("copl",),
            dataset=EMBEDDED,
        ),
        "short": ExperimentScale(
            "short", "the same as demo, with four rounds of two epochs", demo | SHORT, trials=1, dataset=EMBEDDED
        ),
        "demo": ExperimentScale("demo", "the embedded model and handwritten digits", demo, dataset=EMBEDDED),
        "paper": ExperimentScale("paper", "the paper's models, data sets and settings", paper),
    }


def todays() -> dict[str, Any]:
    """What the program does today where scales follow the paper."""
    usual = flat(RunConfig().model_dump())
    return {name: usual[name] for name in AS_PUBLISHED}


def find_scale(name: str) -> ExperimentScale:
    if name not in scales():
        raise ConfigError(f"--scale: there is no scale {name!r} (known: {', '.join(scales())})")
    return scales()[name]


def _demo_settings() -> dict[str, Any]:
    with as_file(files("fedcopl") / "demo.toml") as file:
        settings = read_settings(file)
    return {key: value for key, value in flat(settings).items() if key != "name"}


def check_datasets(names: Iterable[str]) -> tuple[str, ...]:
    """The data sets that were asked for, if there are such."""
    chosen = tuple(dict.fromkeys(names))
    unknown = [name for name in chosen if name not in SOURCES]
    if unknown:
        raise ConfigError(f"--dataset: there is no data set {unknown[0]!r} (known: {', '.join(SOURCES)})")
    return chosen


@dataclass(frozen=True)
class Stage:
    """A scale with what the user chose on top: all that turns a row and a column into settings."""

    scale: ExperimentScale
    datasets: Sequence[str] = ()  # only these
    backbone: str = ""  # instead of the experiment's own
    folder: Path = field(default=Path("data"))  # where the data sets lie, each in a folder of its name

    @property
    def is_paper(self) -> bool:
        """Whether the paper's numbers may stand beside ours."""
        return self.scale.name == "paper" and not self.backbone

    @property
    def labelers(self) -> tuple[str, ...]:
        """The labelers of our own grid, those of plug-ins included."""
        return self.scale.labelers or tuple(LABELERS)

    def columns(self, wanted: Iterable[str]) -> tuple[str, ...]:
        """The data sets of an experiment that are played; where none of the paper's is, those the user named."""
        if self.scale.dataset:
            return tuple(self.datasets) or (self.scale.dataset,)
        return tuple(name for name in wanted if not self.datasets or name in self.datasets)

    def config(
        self,
        dataset: str,
        method: str = "fedcopl",
        labeler: str = "copl",
        skew: str = USUAL_SKEW,
        backbone: str = PAPER_BACKBONE,
        changes: Mapping[str, Any] = NO_CHANGES,
        reading: Mapping[str, Any] = SURE_FIRST,
    ) -> RunConfig:
        """Settings of one run; `reading` is that of FPL and CPL, and of no concern to CoPL.

        A change to what holds anyway is none, so that experiments share their runs.
        """
        read = NO_CHANGES if labeler == "copl" else reading
        usual = {
            "data.clients": FEW_CLIENTS.get(dataset, 10),
            "model.backbone": backbone,
            **self.scale.settings,
            **SKEWS[skew],
            **read,
            **({"model.backbone": self.backbone} if self.backbone else {}),
            "method": method,
            "labeler": labeler,
            "data.source": dataset,
            "data.path": "" if dataset == EMBEDDED else str(self.folder / dataset),
        }
        complete = flat(RunConfig.from_mapping(nested(usual), "settings").model_dump())
        changed = {key: value for key, value in changes.items() if complete.get(key) != value}
        as_drawn = not changed and skew == USUAL_SKEW and read != TO_THE_LETTER
        is_drawn = as_drawn and (method, labeler) in DRAWN_OVER_ROUNDS
        always = {
            "name": "-".join([method, labeler, dataset, *_words(changed)]),
            "evaluation.every": 1 if is_drawn else complete["rounds"],  # of most runs only the end is of interest
        }
        return RunConfig.from_mapping(nested(usual | changed | always), "settings")


def _words(changes: Mapping[str, Any]) -> list[str]:
    """What is unusual about a run, for its name: `aggregate-both`, `no-entropy-filter`."""
    leaves = {key.partition(".")[2].replace("_", "-"): value for key, value in changes.items()}
    return [f"no-{leaf}" if value is False else f"{leaf}-{value}" for leaf, value in leaves.items()]

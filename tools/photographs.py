"""Run FedCoPL, ablations and other methods on photographs, and write experiments/photographs.md.

.venv/bin/python tools/photographs.py --photo-clip DIR --cifar DIR --done photographs.jsonl --seeds 5

Each finished run is one line of the file `--done` and is not repeated. `--runs 10` adds ten runs and writes the page
with all finished runs; `--runs 0` only writes the page. Ablations run first, at every seed, then other methods. Runs of
another version of the code are ignored. All settings are below; they were fixed before the first run.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from break_training import subset
from fedcopl.config import AS_PUBLISHED, Data, RunConfig, override
from fedcopl.data.catalog import load_dataset
from fedcopl.data.dataset import Dataset
from fedcopl.files import write_text
from fedcopl.run.record import Outcome
from fedcopl.simulation.simulate import simulate
from fedcopl_experiments.run_key import code_version
from photographs_page import page

LABEL_RULES = Path(__file__).parents[1] / "experiments" / "label-rules.md"
TRAIN_EACH, TEST_EACH = 30, 40  # images of each class, sampled for each seed
COMMON = (
    "data.clients=5",
    "data.partition=dirichlet",
    "data.beta=0.1",
    "rounds=4",
    "train.epochs=2",
    "labels.refresh_every=2",
    "train.batch=8",  # an eighth of the default: with 64 this subset would have one step per epoch
    "model.threads=1",
    "evaluation.every=99",
    "evaluation.everywhere=false",
)
NO_PRIORS = ("priors.logit_bias=false", "priors.label_shift=false", "priors.prototypes=false")
RECIPES: Mapping[str, tuple[str, ...]] = {
    "published": tuple(f"{key}={value}" for key, value in AS_PUBLISHED.items() if key != "train.batch"),
    "neutral": ("train.holdout=0", *NO_PRIORS),
    "holdout": NO_PRIORS,
    "default": (),
}
OTHER_METHODS = ("pfedprompt", "fedotp", "pfedmoap", "fedvpt", "local")  # besides FedCoPL and PromptFL
LABELERS = ("fpl", "cpl", "copl")
SWITCHES = ("confidence_filter", "entropy_filter", "global_allocation")
TABLE5 = {
    "-,-,-": (0, 0, 0),
    "-,-,A": (0, 0, 1),
    "-,E,A": (0, 1, 1),
    "C,-,A": (1, 0, 1),
}  # all three: the row of FedCoPL
TABLE6 = ("none", "text", "both")  # visual prompts only: the row of FedCoPL


@dataclass(frozen=True)
class Row:
    """A configuration that runs once per seed; `photographs_page.py` finds it by its name."""

    name: str
    settings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """One run, as a line of the file. Accuracies are macro over the clients, from 0 to 1."""

    row: str
    seed: int
    settings: list[str]
    code: str  # version and hash of the files that decide results
    zero_shot: float
    final: float
    label_accuracy: list[float | None]  # of the selected images, at each refresh
    selected: list[int]  # images at each refresh
    drift: list[dict[str, dict[str, float | None]]]  # at each round, by array: diversity, cosine
    rolled_back: int  # trainings
    low_confidence: int  # trainings skipped, because too few labels are likely to be right
    seconds: float


def ablation_rows() -> Iterator[Row]:
    """Yield FedCoPL, its ablations, and PromptFL."""
    yield Row("zeroshot", ("method=zeroshot", "rounds=1"))
    yield Row("priors", ("method=priors",))
    for recipe, settings in RECIPES.items():
        yield Row(f"fedcopl copl {recipe}", settings)
    yield from _methods(("promptfl",), "neutral")
    for shared in TABLE6:
        yield Row(f"table6 {shared}", (*RECIPES["neutral"], f"sharing.aggregate={shared}"))
    for name, switched in TABLE5.items():
        pairs = (f"labels.{key}={str(bool(on)).lower()}" for key, on in zip(SWITCHES, switched, strict=True))
        yield Row(f"table5 {name}", (*RECIPES["neutral"], *pairs))


def method_rows() -> Iterator[Row]:
    """Yield the other methods, from the neutral initialisation and as published."""
    yield from _methods(OTHER_METHODS, "neutral")
    yield from _methods(("promptfl", *OTHER_METHODS), "published")


def _methods(methods: tuple[str, ...], recipe: str) -> Iterator[Row]:
    for method in methods:
        for labeler in LABELERS:
            pairs = (f"method={method}", f"labeler={labeler}", *RECIPES[recipe])
            yield Row(f"{method} {labeler} {recipe}", pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photo-clip", required=True, help="folder of the model")
    parser.add_argument("--cifar", required=True, help="folder of CIFAR-10")
    parser.add_argument("--done", type=Path, required=True, help="file of finished runs, one JSON line each")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=10**6, help="maximum number of new runs")
    parser.add_argument("--page", type=Path, default=Path("experiments/photographs.md"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(1, arguments.seeds + 1)
    planned = [(row, seed) for rows in (ablation_rows, method_rows) for seed in seeds for row in rows()]
    done = finished(arguments.done)
    missing = [(row, seed) for row, seed in planned if (seed, row.settings) not in done][: arguments.runs]
    dataset = load_dataset(Data(source="cifar10", path=arguments.cifar)) if missing else None
    for row, seed in missing:
        run = run_row(row, seed, subset(dataset, seed, TRAIN_EACH, TEST_EACH), arguments.photo_clip)
        with arguments.done.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(asdict(run))}\n")  # the line before may be incomplete
        print(f"{row.name}, seed {seed}: {run.zero_shot:.3f} -> {run.final:.3f}, {run.seconds:.0f} s", flush=True)
    done = finished(arguments.done)
    runs = [done[seed, row.settings] | {"row": row.name} for row, seed in planned if (seed, row.settings) in done]
    if not runs:
        sys.exit(f"{arguments.done}: has no run of this code, so no page is written; add runs with --runs 10")
    label_rules = LABEL_RULES.read_text(encoding="utf-8")
    write_text(arguments.page, page(runs, COMMON, (TRAIN_EACH, TEST_EACH), label_rules))
    print(f"{arguments.page}: {len(runs)} of {len(planned)} runs", flush=True)


def finished(path: Path) -> dict[tuple[int, tuple[str, ...]], dict[str, Any]]:
    """Return the runs of a file that this version of the code made, by seed and settings."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    runs = {}
    for line in lines:
        with suppress(json.JSONDecodeError):  # an empty line, or one that an interrupted run left incomplete
            run = json.loads(line)
            if run["code"] == code_version():
                runs[run["seed"], tuple(run["settings"])] = run
    return runs


def run_row(row: Row, seed: int, dataset: Dataset, model: str) -> Finished:
    pairs = [*COMMON, f"model.backbone={model}", f"seed={seed}", *row.settings]
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.from_mapping(override({}, pairs), row.name)
        return summary(row, seed, simulate(config, Path(folder) / "run", dataset=dataset))


def summary(row: Row, seed: int, outcome: Outcome) -> Finished:
    checks = [record.holdout for record in outcome.rounds if record.holdout is not None]
    return Finished(
        row=row.name,
        seed=seed,
        settings=list(row.settings),
        code=code_version(),
        zero_shot=outcome.zero_shot.macro,
        final=outcome.final.macro,
        label_accuracy=list(outcome.pseudo_label_accuracy),
        selected=[refresh.images for refresh in outcome.refreshes],
        drift=[
            {name: asdict(drift) for name, drift in record.drift.items()} for record in outcome.rounds if record.drift
        ],
        rolled_back=int(sum(check.trainings_rolled_back for check in checks)),
        low_confidence=int(sum(check.low_confidence for check in checks)),
        seconds=outcome.seconds,
    )


if __name__ == "__main__":
    main()

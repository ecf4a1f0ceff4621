"""Play FedCoPL, what it is made of and what it is compared with on photographs, and write experiments/photographs.md.

.venv/bin/python tools/photographs.py --photo-clip DIR --cifar DIR --done photographs.jsonl --seeds 5

A finished run is one line of the file `--done` and is not run again, so that a slow machine can do it in parts:
`--runs 10` plays ten more and writes the page with what there is. What FedCoPL is made of comes first, at every seed,
then what it is compared with. `--runs 0` only writes the page. A run of other code is no finished run: numbers of two
programs are never mixed. All settings are below; they were fixed before the first run.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from break_training import some
from fedcopl.config import AS_PUBLISHED, Data, RunConfig, override
from fedcopl.data.catalog import load_dataset
from fedcopl.data.dataset import Dataset
from fedcopl.files import write_text
from fedcopl.rng import stream
from fedcopl.run.record import Outcome
from fedcopl.simulation.simulate import simulate
from fedcopl_experiments.run_key import code_version
from photographs_page import page

READINGS = Path(__file__).parents[1] / "experiments" / "label-readings.md"
TRAIN_EACH, TEST_EACH = 30, 40  # images of each class, drawn anew for each seed
COMMON = (
    "data.clients=5",
    "data.partition=dirichlet",
    "data.beta=0.1",
    "rounds=4",
    "train.epochs=2",
    "labels.refresh_every=2",
    "train.batch=8",  # a subset of a hundredth has batches of an eighth, or there would be one step an epoch
    "model.threads=1",
    "evaluation.every=99",
    "evaluation.everywhere=false",
)
NO_PRIORS = ("priors.logit_bias=false", "priors.label_shift=false", "priors.prototypes=false")
RECIPES: Mapping[str, tuple[str, ...]] = {
    "published": tuple(f"{key}={value}" for key, value in AS_PUBLISHED.items() if key != "train.batch"),
    "quiet": ("train.holdout=0", *NO_PRIORS),
    "guard": NO_PRIORS,
    "default": (),
}
OTHERS = ("pfedprompt", "fedotp", "pfedmoap", "fedvpt", "local")  # than FedCoPL and PromptFL
LABELERS = ("fpl", "cpl", "copl")
SWITCHES = ("confidence_filter", "entropy_filter", "global_allocation")
TABLE5 = {"-,-,-": (0, 0, 0), "-,-,A": (0, 0, 1), "-,E,A": (0, 1, 1), "C,-,A": (1, 0, 1)}  # and all three: FedCoPL
TABLE6 = ("none", "text", "both")  # and the visual prompts alone: FedCoPL


@dataclass(frozen=True)
class Row:
    """One kind of run; the name is what the page looks it up by."""

    name: str
    settings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What is kept of one run: a line of the file. Accuracies are macro over the clients, as shares."""

    row: str
    seed: int
    settings: list[str]
    code: str  # version and hash of the files that decide results
    zero_shot: float
    final: float
    labels: list[float | None]  # of each refresh, the share of chosen labels that are right
    chosen: list[int]  # of each refresh, images
    drift: list[dict[str, dict[str, float | None]]]  # of each round and array: diversity, cosine
    undone: int  # trainings that the clients' guards took back
    doubtful: int  # trainings left out, because too few labels are likely to be right
    seconds: float


def own_rows() -> Iterator[Row]:
    """FedCoPL, what it is made of, and PromptFL: what tells most."""
    yield Row("zeroshot", ("method=zeroshot", "rounds=1"))
    yield Row("priors", ("method=priors",))
    for recipe, settings in RECIPES.items():
        yield Row(f"fedcopl copl {recipe}", settings)
    yield from _methods(("promptfl",), "quiet")
    for shared in TABLE6:
        yield Row(f"table6 {shared}", (*RECIPES["quiet"], f"sharing.aggregate={shared}"))
    for name, switched in TABLE5.items():
        pairs = (f"labels.{key}={str(bool(on)).lower()}" for key, on in zip(SWITCHES, switched, strict=True))
        yield Row(f"table5 {name}", (*RECIPES["quiet"], *pairs))


def other_rows() -> Iterator[Row]:
    """What FedCoPL is compared with, and everything as published."""
    yield from _methods(OTHERS, "quiet")
    yield from _methods(("promptfl", *OTHERS), "published")


def _methods(methods: tuple[str, ...], recipe: str) -> Iterator[Row]:
    for method in methods:
        for labeler in LABELERS:
            pairs = (f"method={method}", f"labeler={labeler}", *RECIPES[recipe])
            yield Row(f"{method} {labeler} {recipe}", pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photo-clip", required=True, help="folder of the model")
    parser.add_argument("--cifar", required=True, help="folder that holds cifar-10-batches-bin")
    parser.add_argument("--done", type=Path, required=True, help="file of finished runs, one JSON line each")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=10**6, help="play at most so many now")
    parser.add_argument("--page", type=Path, default=Path("experiments/photographs.md"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(1, arguments.seeds + 1)
    wanted = [(row, seed) for part in (own_rows, other_rows) for seed in seeds for row in part()]
    known = finished(arguments.done)
    missing = [(row, seed) for row, seed in wanted if (seed, row.settings) not in known]
    whole = load_dataset(Data(source="cifar10", path=arguments.cifar)) if missing[: arguments.runs] else None
    for row, seed in missing[: arguments.runs]:
        one = play(row, seed, subset(whole, seed, TRAIN_EACH, TEST_EACH), arguments.photo_clip)
        with arguments.done.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(asdict(one))}\n")  # after what a stop may have cut off
        print(f"{row.name}, seed {seed}: {one.zero_shot:.3f} -> {one.final:.3f}, {one.seconds:.0f} s", flush=True)
    done = finished(arguments.done)
    kept = [done[seed, row.settings] | {"row": row.name} for row, seed in wanted if (seed, row.settings) in done]
    if not kept:
        sys.exit(f"{arguments.done}: holds no run of this code, so there is no page to write; play some with --runs 10")
    readings = READINGS.read_text(encoding="utf-8")
    write_text(arguments.page, page(kept, COMMON, (TRAIN_EACH, TEST_EACH), readings))
    print(f"{arguments.page}: {len(kept)} of {len(wanted)} runs", flush=True)


def finished(path: Path) -> dict[tuple[int, tuple[str, ...]], dict[str, Any]]:
    """The runs of the file that this very code ran, by what was run."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    runs = [run for run in map(_read, lines) if run is not None and run.get("code") == code_version()]
    return {(run["seed"], tuple(run["settings"])): run for run in runs}


def _read(line: str) -> dict[str, Any] | None:
    """A line that a stop cut off is no run."""
    try:
        run: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return run


def subset(whole: Dataset, seed: int, train_each: int, test_each: int) -> Dataset:
    """So many images of each class; another seed has others."""
    rng = stream(seed, "some photographs")
    return replace(whole, train=some(whole.train, train_each, rng), test=some(whole.test, test_each, rng))


def play(row: Row, seed: int, dataset: Dataset, model: str) -> Finished:
    pairs = [*COMMON, f"model.backbone={model}", f"seed={seed}", *row.settings]
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.from_mapping(override({}, pairs), row.name)
        return summary(row, seed, simulate(config, Path(folder) / "run", dataset=dataset))


def summary(row: Row, seed: int, outcome: Outcome) -> Finished:
    guards = [record.holdout for record in outcome.rounds if record.holdout is not None]
    return Finished(
        row=row.name,
        seed=seed,
        settings=list(row.settings),
        code=code_version(),
        zero_shot=outcome.zero_shot.macro,
        final=outcome.final.macro,
        labels=list(outcome.pseudo_label_accuracy),
        chosen=[refresh.images for refresh in outcome.refreshes],
        drift=[
            {name: asdict(drift) for name, drift in record.drift.items()} for record in outcome.rounds if record.drift
        ],
        undone=int(sum(guard.trainings_rolled_back for guard in guards)),
        doubtful=int(sum(guard.low_confidence for guard in guards)),
        seconds=outcome.seconds,
    )


if __name__ == "__main__":
    main()

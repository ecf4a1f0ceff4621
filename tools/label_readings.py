"""Write experiments/label-readings.md: rules of FPL and CPL compared with the pseudo labels of the paper's table 9.

    .venv/bin/python tools/priors_features.py --photo-clip ../shared/models/photo-clip --cifar /tmp/cifar
    .venv/bin/python tools/label_readings.py --features /tmp/priors

Posteriors are simulated: of as many images and classes as the paper's data sets, right as often as its zero-shot CLIP,
and calibrated. With --features also those of photo-clip on CIFAR-10 and glyph-clip on distorted letters.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcopl.algorithm import FloatArray, IntArray
from fedcopl.algorithm.allocate import quota
from fedcopl.algorithm.estimate import estimate
from fedcopl.algorithm.partition import dirichlet, quantity
from fedcopl.algorithm.select import Selection, select
from fedcopl.labelers.base import confident_images
from fedcopl.labelers.cpl import CPL_LEVELS, CPL_USUAL, candidate_sets, match, select_candidates
from fedcopl.labelers.fpl import select_top
from fedcopl_experiments.paper_names import BLOCKS, TITLES
from fedcopl_experiments.paper_numbers import paper_tables
from fedcopl_experiments.scales import FEW_CLIENTS, SKEWS

PAGE = Path(__file__).parents[1] / "experiments" / "label-readings.md"
SEEDS = (1, 2, 3)
TAU = 0.5  # of the sure images
MANY = 10**9  # a capacity that nothing reaches
TRIED = 4000  # images to find the noise by
SIZES = {"dtd": 3760, "resisc45": 6300, "cub200": 5994, "ucf101": 7639, "cifar10": 50000, "cifar100": 50000}
CLASSES = {"dtd": 47, "resisc45": 45, "cub200": 200, "ucf101": 101, "cifar10": 10, "cifar100": 100}


@dataclass(frozen=True)
class Split:
    """What the clients of one skew hold: log-probabilities and, to count with, the truth."""

    beliefs: Sequence[FloatArray]
    truth: Sequence[IntArray]
    levels: tuple[float, float]  # CPL's alpha and beta

    @property
    def images(self) -> int:
        return sum(map(len, self.truth))

    def counted(self, chosen: Sequence[Selection], by: str = "label") -> float:
        """Per cent of the chosen images whose label is right, or whose set of candidates holds the truth."""
        right = [_right(one, truth[one.index], by) for one, truth in zip(chosen, self.truth, strict=True)]
        return 100 * float(np.concatenate(right).mean())


def _right(chosen: Selection, truth: IntArray, by: str) -> np.ndarray:
    if by == "label":
        return chosen.label == truth
    assert chosen.candidates is not None
    return chosen.candidates[np.arange(len(truth)), truth] > 0


Choose = Callable[[Split], list[Selection]]


@dataclass(frozen=True)
class Reading:
    """One way to understand a baseline, and how its labels are counted."""

    name: str
    choose: Choose
    by: str = "label"

    def accuracy(self, split: Split) -> float:
        return split.counted(self.choose(split), self.by)


def each(rule: Callable[[FloatArray], Selection]) -> Choose:
    """A rule that every client follows alone."""
    return lambda split: [rule(belief) for belief in split.beliefs]


def together(rule: Callable[[FloatArray], Selection]) -> Choose:
    """A rule over all clients' images at once."""

    def choose(split: Split) -> list[Selection]:
        chosen, begin = rule(np.concatenate(split.beliefs)), 0
        parts = []
        for belief in split.beliefs:
            mine = (begin <= chosen.index) & (chosen.index < begin + len(belief))
            parts.append(Selection(chosen.index[mine] - begin, chosen.label[mine]))
            begin += len(belief)
        return parts

    return choose


def sure(belief: FloatArray) -> IntArray:
    return confident_images(belief, TAU)


def even_share(belief: FloatArray) -> int:
    """n_k / C, as GRIP's last capacity."""
    return max(1, len(belief) // belief.shape[1])


def half_of_each_class(belief: FloatArray) -> Selection:
    predicted = np.bincount(belief.argmax(axis=1), minlength=belief.shape[1])
    return select(belief, -(-predicted // 2))


def copl(split: Split) -> list[Selection]:
    counts = [estimate(belief, confidence_quantile=TAU, entropy_quantile=TAU) for belief in split.beliefs]
    total = np.sum(counts, axis=0)
    allowed = [quota(count, total, len(counts), refresh_index=0) for count in counts]
    return [select(belief, row) for belief, row in zip(split.beliefs, allowed, strict=True)]


def cpl(capacity: int, *, keep_likeliest: bool = False, only_sure: bool = False) -> Choose:
    def choose(split: Split) -> list[Selection]:
        return [
            select_candidates(
                belief,
                *split.levels,
                capacity,
                keep_likeliest=keep_likeliest,
                among=sure(belief) if only_sure else None,
            )
            for belief in split.beliefs
        ]

    return choose


def cpl_ranked_over_all(split: Split) -> list[Selection]:
    """The classes rank the images of all clients together, which no message lets them do."""
    sets, begin, chosen = candidate_sets(np.concatenate(split.beliefs), *split.levels), 0, []
    for belief in split.beliefs:
        among, mine = sure(belief), sets[begin : begin + len(belief)]
        matched = match(belief[among], mine[among], 16)
        chosen.append(matched._replace(index=among[matched.index]))
        begin += len(belief)
    return chosen


FPL = (
    Reading("each client, 16 of each class among those predicted as it", each(lambda p: select_top(p, 16))),
    Reading("each client, 16 of each class among all", each(lambda p: select_top(p, 16, "column"))),
    Reading("each client, the authors' leaderboards of 16", each(lambda p: select_top(p, 16, "leaderboard"))),
    Reading("each client, 1 of each class", each(lambda p: select_top(p, 1))),
    Reading("each client, n/C of each class", each(lambda p: select_top(p, even_share(p)))),
    Reading("each client, the more confident half of each class", each(half_of_each_class)),
    Reading("all clients together, 16 of each class", together(lambda p: select_top(p, 16))),
    Reading("each client, its more confident half, all of it", each(lambda p: select_top(p, MANY, among=sure(p)))),
    Reading(
        "each client, its more confident half, n/C of each class",
        each(lambda p: select_top(p, even_share(p), among=sure(p))),
    ),
    Reading(
        "**each client, its more confident half, 16 of each class**", each(lambda p: select_top(p, 16, among=sure(p)))
    ),
)
CPL = (
    Reading("each client, capacity 16, the class given", cpl(16)),
    Reading("the same, sets that contain the true label", cpl(16), "set"),
    Reading("each client, no capacity, sets that contain the true label", cpl(MANY), "set"),
    Reading("each client, its more confident half, capacity 16, sets", cpl(16, only_sure=True), "set"),
    Reading("the most probable class kept, capacity 16, sets", cpl(16, keep_likeliest=True), "set"),
    Reading("its more confident half, classes rank over all clients, capacity 16, sets", cpl_ranked_over_all, "set"),
    Reading(
        "its more confident half, the most probable class kept, capacity 16, the class given",
        cpl(16, keep_likeliest=True, only_sure=True),
    ),
    Reading(
        "**its more confident half, the most probable class kept, capacity 16, sets**",
        cpl(16, keep_likeliest=True, only_sure=True),
        "set",
    ),
)
ZERO_SHOT = Reading("zero-shot", each(lambda p: select_top(p, MANY)))
COPL = Reading("CoPL", copl)
FOUND = {"FPL": FPL[-1], "CPL": CPL[-1], "CoPL": COPL}


def simulated(dataset: str, seed: int) -> tuple[FloatArray, IntArray]:
    """log p of every image of a made-up data set, and its classes."""
    rng = np.random.default_rng([seed, *map(ord, dataset)])
    classes, images = CLASSES[dataset], SIZES[dataset]
    right = zero_shot_of(dataset)
    kinds = rng.normal(size=(max(2, classes // 5), 64))[np.arange(classes) % max(2, classes // 5)]
    centres = 0.8 * kinds + 0.6 * rng.normal(size=(classes, 64))  # classes of one kind are alike
    texts = centres + 0.175 * rng.normal(size=centres.shape)  # how the model sees them leans a little
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    truth = rng.permutation(np.arange(images) % classes)
    clear, noise = rng.gamma(4, 0.25, size=(images, 1)), rng.normal(size=(images, 64))  # some images are clearer

    def cosines(level: float, some: slice) -> FloatArray:
        features = clear[some] * centres[truth[some]] + level * noise[some]
        found: FloatArray = features @ texts.T / np.linalg.norm(features, axis=1, keepdims=True)
        return found

    few, all_ = slice(0, TRIED), slice(None)
    level = bisect(lambda x: right - float((cosines(x, few).argmax(axis=1) == truth[few]).mean()), 0.02, 20)
    angles = cosines(level, few)
    scale = bisect(lambda x: float(np.exp(log_softmax(x * angles)).max(axis=1).mean()) - right, 0.5, 500)
    return log_softmax(scale * cosines(level, all_)), truth


def bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function is zero, on a scale of ratios."""
    for _ in range(25):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return low


def log_softmax(logits: FloatArray) -> FloatArray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def zero_shot_of(dataset: str) -> float:
    number = paper_tables()["table2"].find(("CLIP", "-"), (TITLES[dataset],))
    assert number is not None
    return number.value / 100


def split_by(
    skew: str, belief: FloatArray, truth: IntArray, clients: int, levels: tuple[float, float], seed: int
) -> Split:
    rng, classes = np.random.default_rng([seed, clients]), belief.shape[1]
    none, beta = np.zeros(0, np.int64), SKEWS[skew].get("data.beta")
    if beta is None:
        parts = quantity(truth, none, classes, clients, rng).train
    else:
        parts = dirichlet(truth, none, classes, clients, rng, beta=beta).train
    return Split([belief[part] for part in parts], [truth[part] for part in parts], levels)


def simulated_splits(dataset: str) -> Iterator[tuple[str, Split]]:
    """(skew, split) of every seed."""
    for seed in SEEDS:
        belief, truth = simulated(dataset, seed)
        for skew in SKEWS:
            yield skew, split_by(skew, belief, truth, FEW_CLIENTS.get(dataset, 10), CPL_LEVELS[dataset], seed)


def measured_splits(file: Path) -> Iterator[tuple[str, Split]]:
    """The same of features that a real model gave, ten clients."""
    with np.load(file) as kept:
        belief = log_softmax(float(kept["scale"]) * (kept["train"] @ kept["text"].T).astype(np.float64))
        truth = kept["train_y"].astype(np.int64)
    for seed in SEEDS:
        for skew in SKEWS:
            yield skew, split_by(skew, belief, truth, 10, CPL_LEVELS.get(file.stem, CPL_USUAL), seed)


Cells = dict[str, dict[tuple[str, str], float]]  # rule -> (data, skew) -> percent, mean over the seeds


def accuracies(splits: dict[str, Callable[[], Iterator[tuple[str, Split]]]]) -> Cells:
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for dataset, make in splits.items():
        for skew, split in make():
            for reading in (ZERO_SHOT, COPL, *FPL, *CPL):
                found.setdefault(reading.name, {}).setdefault((dataset, skew), []).append(reading.accuracy(split))
    return {name: {key: float(np.mean(seeds)) for key, seeds in cells.items()} for name, cells in found.items()}


def printed(labeler: str, dataset: str, skew: str) -> float:
    number = paper_tables()["table9"].find((labeler,), (TITLES[dataset],), BLOCKS[skew])
    assert number is not None
    return number.value


def readings_table(cells: Cells) -> str:
    """Return all rules over all cells: difference to zero-shot and to the chosen FPL, and distance to the paper."""
    keys = list(cells[ZERO_SHOT.name])
    fpl = cells[FPL[-1].name]
    rows = [
        "| | rule | above zero-shot, mean | above zero-shot, cells | above the chosen FPL, cells "
        "| distance to the paper, mean |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for labeler, readings in (("FPL", FPL), ("CPL", CPL)):
        for reading in readings:
            mine = cells[reading.name]
            gains = [mine[key] - cells[ZERO_SHOT.name][key] for key in keys]
            over = f"{sum(mine[key] > fpl[key] for key in keys)} of {len(keys)}" if labeler == "CPL" else ""
            far = np.mean([abs(mine[key] - printed(labeler, *key)) for key in keys])
            above = f"{sum(gain > 0 for gain in gains)} of {len(keys)}"
            rows.append(f"| {labeler} | {reading.name} | {np.mean(gains):+.1f} | {above} | {over} | {far:.1f} |")
    return "\n".join(rows)


def cells_table(cells: Cells) -> str:
    """Return the chosen rules cell by cell, with the paper's numbers in brackets."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in cells[ZERO_SHOT.name]))
    rows = [f"| | {' | '.join(TITLES[name] for name in datasets)} |", "|---|" + "---|" * len(datasets)]
    for skew in SKEWS:
        rows.append(f"| {BLOCKS[skew]}: zero-shot | " + " | ".join(_one(cells, ZERO_SHOT, d, skew) for d in datasets))
        rows[-1] += " |"
        for labeler, reading in FOUND.items():
            numbers = [f"{_one(cells, reading, d, skew)} ({printed(labeler, d, skew):.1f})" for d in datasets]
            rows.append(f"| {labeler} | {' | '.join(numbers)} |")
    return "\n".join(rows)


def _one(cells: Cells, reading: Reading, dataset: str, skew: str) -> str:
    return f"{cells[reading.name][dataset, skew]:.1f}"


def measured_table(cells: Cells) -> str:
    """Return the results of real models: zero-shot, both baselines by the original and the chosen rule, CoPL."""
    keys = list(cells[ZERO_SHOT.name])
    shown = (ZERO_SHOT, FPL[0], CPL[0], *FOUND.values())
    names = ("zero-shot", "FPL, original rule", "CPL, original rule", "FPL, chosen rule", "CPL, chosen rule", "CoPL")
    rows = [f"| model and images | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for dataset, skew in keys:
        numbers = (_one(cells, reading, dataset, skew) for reading in shown)
        rows.append(f"| {MEASURED[dataset]}, {skew} | {' | '.join(numbers)} |")
    return "\n".join(rows)


MEASURED = {"cifar10": "photo-clip, CIFAR-10", "letters": "glyph-clip, distorted letters"}


def between_markers(page: str, name: str, text: str) -> str:
    pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
    assert re.search(pattern, page, re.S), f"{PAGE}: no place for {name}"
    return re.sub(pattern, lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page, flags=re.S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=Path, help="folder that priors_features.py wrote")
    features = parser.parse_args().features
    made = accuracies({name: lambda name=name: simulated_splits(name) for name in SIZES})
    page = PAGE.read_text(encoding="utf-8")
    page = between_markers(page, "readings", readings_table(made))
    page = between_markers(page, "cells", cells_table(made))
    if features:
        real = accuracies({name: lambda name=name: measured_splits(features / f"{name}.npz") for name in MEASURED})
        page = between_markers(page, "measured", measured_table(real))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Write experiments/label-rules.md: rules of FPL and CPL compared with the pseudo labels of the paper's table 9.

    .venv/bin/python tools/label_rules.py [--features FOLDER]

Posteriors are simulated, with the numbers of images and classes of the paper's data sets, calibrated, and with the
accuracy of its zero-shot CLIP. With --features the rules are also applied to two files of real features: cifar10.npz,
written by `python -m fedcopl_experiments.priors_study encode`, and letters.npz, written by `letters_features.py`.
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
from fedcopl.priors.posterior import log_softmax
from fedcopl_experiments.paper_names import BLOCKS, TITLES
from fedcopl_experiments.paper_numbers import paper_tables
from fedcopl_experiments.scales import FEW_CLIENTS, SKEWS

PAGE = Path(__file__).parents[1] / "experiments" / "label-rules.md"
SEEDS = (1, 2, 3)
TAU = 0.5  # quantile of confidence above which an image may be labelled
UNLIMITED = 10**9  # capacity of a class
TUNING_IMAGES = 4000  # on which noise and temperature of the simulation are fitted
SIZES = {"dtd": 3760, "resisc45": 6300, "cub200": 5994, "ucf101": 7639, "cifar10": 50000, "cifar100": 50000}
CLASSES = {"dtd": 47, "resisc45": 45, "cub200": 200, "ucf101": 101, "cifar10": 10, "cifar100": 100}


@dataclass(frozen=True)
class Split:
    """Log-probabilities (n_k, C) and labels (n_k,) of each client; labels only measure accuracy."""

    log_probs: Sequence[FloatArray]
    labels: Sequence[IntArray]
    levels: tuple[float, float]  # CPL's alpha and beta


Select = Callable[[Split], list[Selection]]


@dataclass(frozen=True)
class Rule:
    """A rule that selects pseudo labels at each client, and how its accuracy is counted."""

    name: str
    select: Select
    count_sets: bool = False  # True: a candidate set that contains the label is right

    def accuracy(self, split: Split) -> float:
        """Return the share of selected images whose pseudo label or candidate set is right, in %."""
        correct = []
        for selection, labels in zip(self.select(split), split.labels, strict=True):
            true_labels = labels[selection.index]
            if self.count_sets:
                assert selection.candidates is not None
                correct.append(selection.candidates[np.arange(len(true_labels)), true_labels] > 0)
            else:
                correct.append(selection.label == true_labels)
        return 100 * float(np.concatenate(correct).mean())


def at_each_client(rule: Callable[[FloatArray], Selection]) -> Select:
    """Apply a rule to the images of each client separately."""
    return lambda split: [rule(log_probs) for log_probs in split.log_probs]


def pooled(rule: Callable[[FloatArray], Selection]) -> Select:
    """Apply a rule to the images of all clients together."""

    def select_pooled(split: Split) -> list[Selection]:
        selection, begin = rule(np.concatenate(split.log_probs)), 0
        selections = []
        for log_probs in split.log_probs:
            inside = (begin <= selection.index) & (selection.index < begin + len(log_probs))
            selections.append(Selection(selection.index[inside] - begin, selection.label[inside]))
            begin += len(log_probs)
        return selections

    return select_pooled


def confident(log_probs: FloatArray) -> IntArray:
    return confident_images(log_probs, TAU)


def images_per_class(log_probs: FloatArray) -> int:
    """Return n_k / C, the last capacity of GRIP."""
    return max(1, len(log_probs) // log_probs.shape[1])


def half_of_each_class(log_probs: FloatArray) -> Selection:
    predicted = np.bincount(log_probs.argmax(axis=1), minlength=log_probs.shape[1])
    return select(log_probs, -(-predicted // 2))


def copl(split: Split) -> list[Selection]:
    counts = [estimate(log_probs, confidence_quantile=TAU, entropy_quantile=TAU) for log_probs in split.log_probs]
    total = np.sum(counts, axis=0)
    quotas = [quota(count, total, len(counts), refresh_index=0) for count in counts]
    return [select(log_probs, row) for log_probs, row in zip(split.log_probs, quotas, strict=True)]


def cpl(capacity: int, *, keep_likeliest: bool = False, only_confident: bool = False) -> Select:
    def select_cpl(split: Split) -> list[Selection]:
        return [
            select_candidates(
                log_probs,
                *split.levels,
                capacity,
                keep_likeliest=keep_likeliest,
                among=confident(log_probs) if only_confident else None,
            )
            for log_probs in split.log_probs
        ]

    return select_cpl


def cpl_with_pooled_ranks(split: Split) -> list[Selection]:
    """Rank the images of all clients together for each class; no message of the protocol makes this possible."""
    sets, begin, selections = candidate_sets(np.concatenate(split.log_probs), *split.levels), 0, []
    for log_probs in split.log_probs:
        among, client_sets = confident(log_probs), sets[begin : begin + len(log_probs)]
        matched = match(log_probs[among], client_sets[among], 16)
        selections.append(matched._replace(index=among[matched.index]))
        begin += len(log_probs)
    return selections


FPL = (
    Rule("each client, 16 images of each predicted class", at_each_client(lambda p: select_top(p, 16))),
    Rule("each client, the 16 likeliest images of each class", at_each_client(lambda p: select_top(p, 16, "column"))),
    Rule("each client, the authors' leaderboards of 16", at_each_client(lambda p: select_top(p, 16, "leaderboard"))),
    Rule("each client, 1 of each class", at_each_client(lambda p: select_top(p, 1))),
    Rule("each client, n/C of each class", at_each_client(lambda p: select_top(p, images_per_class(p)))),
    Rule("each client, the more confident half of each class", at_each_client(half_of_each_class)),
    Rule("all clients together, 16 of each class", pooled(lambda p: select_top(p, 16))),
    Rule(
        "each client, all images of its more confident half",
        at_each_client(lambda p: select_top(p, UNLIMITED, among=confident(p))),
    ),
    Rule(
        "each client, its more confident half, n/C of each class",
        at_each_client(lambda p: select_top(p, images_per_class(p), among=confident(p))),
    ),
    Rule(
        "**each client, its more confident half, 16 of each class**",
        at_each_client(lambda p: select_top(p, 16, among=confident(p))),
    ),
)
CPL = (
    Rule("each client, capacity 16, the assigned class", cpl(16)),
    Rule("each client, capacity 16, sets that contain the true label", cpl(16), True),
    Rule("each client, no capacity, sets that contain the true label", cpl(UNLIMITED), True),
    Rule("each client, its more confident half, capacity 16, sets", cpl(16, only_confident=True), True),
    Rule("the most probable class kept, capacity 16, sets", cpl(16, keep_likeliest=True), True),
    Rule("its more confident half, classes rank over all clients, capacity 16, sets", cpl_with_pooled_ranks, True),
    Rule(
        "its more confident half, the most probable class kept, capacity 16, the assigned class",
        cpl(16, keep_likeliest=True, only_confident=True),
    ),
    Rule(
        "**its more confident half, the most probable class kept, capacity 16, sets**",
        cpl(16, keep_likeliest=True, only_confident=True),
        True,
    ),
)
ZERO_SHOT = Rule("zero-shot", at_each_client(lambda p: select_top(p, UNLIMITED)))
CHOSEN = {"FPL": FPL[-1], "CPL": CPL[-1], "CoPL": Rule("CoPL", copl)}


def simulated(dataset: str, seed: int) -> tuple[FloatArray, IntArray]:
    """Return log-probabilities (n, C) and labels of a simulated data set."""
    rng = np.random.default_rng([seed, *map(ord, dataset)])
    classes, images = CLASSES[dataset], SIZES[dataset]
    accuracy = zero_shot_accuracy(dataset)
    groups = rng.normal(size=(max(2, classes // 5), 64))[np.arange(classes) % max(2, classes // 5)]
    centres = 0.8 * groups + 0.6 * rng.normal(size=(classes, 64))  # classes of one group are similar
    texts = centres + 0.175 * rng.normal(size=centres.shape)  # the classifier is slightly biased
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    labels = rng.permutation(np.arange(images) % classes)
    signal, noise = rng.gamma(4, 0.25, size=(images, 1)), rng.normal(size=(images, 64))  # images differ in difficulty

    def cosines(level: float, rows: slice) -> FloatArray:
        features = signal[rows] * centres[labels[rows]] + level * noise[rows]
        result: FloatArray = features @ texts.T / np.linalg.norm(features, axis=1, keepdims=True)
        return result

    few = slice(0, TUNING_IMAGES)
    level = bisect(lambda x: accuracy - float((cosines(x, few).argmax(axis=1) == labels[few]).mean()), 0.02, 20)
    tuning = cosines(level, few)
    scale = bisect(lambda x: float(np.exp(log_softmax(x * tuning)).max(axis=1).mean()) - accuracy, 0.5, 500)
    return log_softmax(scale * cosines(level, slice(None))), labels


def bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the zero of an increasing function, by bisection on a logarithmic scale."""
    for _ in range(25):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return low


def zero_shot_accuracy(dataset: str) -> float:
    number = paper_tables()["table2"].find(("CLIP", "-"), (TITLES[dataset],))
    assert number is not None
    return number.value / 100


def split_by(
    skew: str, log_probs: FloatArray, labels: IntArray, clients: int, levels: tuple[float, float], seed: int
) -> Split:
    rng, classes = np.random.default_rng([seed, clients]), log_probs.shape[1]
    none, beta = np.zeros(0, np.int64), SKEWS[skew].get("data.beta")
    if beta is None:
        parts = quantity(labels, none, classes, clients, rng).train
    else:
        parts = dirichlet(labels, none, classes, clients, rng, beta=beta).train
    return Split([log_probs[part] for part in parts], [labels[part] for part in parts], levels)


def simulated_splits(dataset: str) -> Iterator[tuple[str, Split]]:
    """Yield (skew, split) for each seed and skew of a simulated data set."""
    for seed in SEEDS:
        log_probs, labels = simulated(dataset, seed)
        for skew in SKEWS:
            yield skew, split_by(skew, log_probs, labels, FEW_CLIENTS.get(dataset, 10), CPL_LEVELS[dataset], seed)


def measured_splits(file: Path) -> Iterator[tuple[str, Split]]:
    """Yield (skew, split) for each seed and skew of a file of features, with ten clients."""
    with np.load(file) as stored:
        log_probs = log_softmax(float(stored["scale"]) * (stored["train"] @ stored["text"].T).astype(np.float64))
        labels = stored["train_y"].astype(np.int64)
    for seed in SEEDS:
        for skew in SKEWS:
            yield skew, split_by(skew, log_probs, labels, 10, CPL_LEVELS.get(file.stem, CPL_USUAL), seed)


Cells = dict[str, dict[tuple[str, str], float]]  # rule -> (data set, skew) -> accuracy in %, mean over the seeds


def accuracies(splits: dict[str, Callable[[], Iterator[tuple[str, Split]]]]) -> Cells:
    values: dict[str, dict[tuple[str, str], list[float]]] = {}
    for dataset, make in splits.items():
        for skew, split in make():
            for rule in (ZERO_SHOT, CHOSEN["CoPL"], *FPL, *CPL):
                values.setdefault(rule.name, {}).setdefault((dataset, skew), []).append(rule.accuracy(split))
    return {name: {key: float(np.mean(seeds)) for key, seeds in cells.items()} for name, cells in values.items()}


def paper_accuracy(labeler: str, dataset: str, skew: str) -> float:
    number = paper_tables()["table9"].find((labeler,), (TITLES[dataset],), BLOCKS[skew])
    assert number is not None
    return number.value


def rules_table(cells: Cells) -> str:
    """Return all rules over all cells: difference to zero-shot and to the chosen FPL, and distance to the paper."""
    keys = list(cells[ZERO_SHOT.name])
    fpl = cells[FPL[-1].name]
    rows = [
        "| | rule | above zero-shot, mean | above zero-shot, cells | above the chosen FPL, cells "
        "| distance to the paper, mean |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for labeler, rules in (("FPL", FPL), ("CPL", CPL)):
        for rule in rules:
            accuracy = cells[rule.name]
            gains = [accuracy[key] - cells[ZERO_SHOT.name][key] for key in keys]
            above_fpl = f"{sum(accuracy[key] > fpl[key] for key in keys)} of {len(keys)}" if labeler == "CPL" else ""
            distance = np.mean([abs(accuracy[key] - paper_accuracy(labeler, *key)) for key in keys])
            above = f"{sum(gain > 0 for gain in gains)} of {len(keys)}"
            rows.append(f"| {labeler} | {rule.name} | {np.mean(gains):+.1f} | {above} | {above_fpl} | {distance:.1f} |")
    return "\n".join(rows)


def cells_table(cells: Cells) -> str:
    """Return the chosen rules cell by cell, with the paper's numbers in brackets."""
    datasets = list(dict.fromkeys(dataset for dataset, _ in cells[ZERO_SHOT.name]))
    rows = [f"| | {' | '.join(TITLES[name] for name in datasets)} |", "|---|" + "---|" * len(datasets)]
    for skew in SKEWS:
        numbers = [_cell(cells, ZERO_SHOT, dataset, skew) for dataset in datasets]
        rows.append(f"| {BLOCKS[skew]}: zero-shot | {' | '.join(numbers)} |")
        for labeler, rule in CHOSEN.items():
            numbers = [f"{_cell(cells, rule, d, skew)} ({paper_accuracy(labeler, d, skew):.1f})" for d in datasets]
            rows.append(f"| {labeler} | {' | '.join(numbers)} |")
    return "\n".join(rows)


def _cell(cells: Cells, rule: Rule, dataset: str, skew: str) -> str:
    return f"{cells[rule.name][dataset, skew]:.1f}"


def measured_table(cells: Cells) -> str:
    """Return the results of real models: zero-shot, both baselines by the original and the chosen rule, CoPL."""
    keys = list(cells[ZERO_SHOT.name])
    rules = (ZERO_SHOT, FPL[0], CPL[0], *CHOSEN.values())
    names = ("zero-shot", "FPL, original rule", "CPL, original rule", "FPL, chosen rule", "CPL, chosen rule", "CoPL")
    rows = [f"| model and images | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for dataset, skew in keys:
        numbers = (_cell(cells, rule, dataset, skew) for rule in rules)
        rows.append(f"| {MEASURED[dataset]}, {skew} | {' | '.join(numbers)} |")
    return "\n".join(rows)


MEASURED = {"cifar10": "photo-clip, CIFAR-10", "letters": "glyph-clip, distorted letters"}


def between_markers(page: str, name: str, text: str) -> str:
    pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
    assert re.search(pattern, page, re.S), f"the page has no markers for the table {name}"
    return re.sub(pattern, lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page, flags=re.S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=Path, help="folder of cifar10.npz and letters.npz")
    features = parser.parse_args().features
    cells = accuracies({name: lambda name=name: simulated_splits(name) for name in SIZES})
    page = PAGE.read_text(encoding="utf-8")
    page = between_markers(page, "rules", rules_table(cells))
    page = between_markers(page, "cells", cells_table(cells))
    if features:
        real = accuracies({name: lambda name=name: measured_splits(features / f"{name}.npz") for name in MEASURED})
        page = between_markers(page, "measured", measured_table(real))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

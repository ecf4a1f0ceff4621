"""What cooperative priors are worth, and when, from cached frozen features.

    .venv/bin/python tools/priors_features.py                                # once
    .venv/bin/python tools/priors_study.py --only digits --seeds 5           # every detail, on the terminal
    .venv/bin/python tools/priors_study.py --page docs/priors-study.md       # the page of digits and CIFAR-10

Macro is the mean over the clients of the accuracy on their own test images, everything estimated on training images;
`global` asks every client's images of one model without site prior. Settings are text s, tau, calm g, sure h, then how
many exchanges, how many numbers one client sent, and whether training would follow. Confidence and
accuracy are on training images.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedcopl.algorithm import partition
from fedcopl.algorithm.allocate import allocate
from fedcopl.algorithm.balance import even_mix, is_balanced, predicted_mix, rebalanced
from fedcopl.algorithm.estimate import estimate
from fedcopl.algorithm.evidence import expected_right, is_worth_training
from fedcopl.algorithm.priors import (
    Explained,
    Learned,
    Reading,
    View,
    clustered_by,
    explained_by_sites,
    learn,
    looked_at,
    predicted_by,
    shown_by_sites,
)
from fedcopl.algorithm.prototypes import ClassSums, FeatureSums, Prototypes, feature_sums
from fedcopl.algorithm.select import select
from fedcopl.algorithm.site_prior import likelihood_ratios, site_mix
from fedcopl.rng import stream

SPLITS = ("0.05", "0.1", "0.5", "1", "iid", "quantity")
TAIL = 10.0


@dataclass(frozen=True)
class Site:
    train: np.ndarray
    train_log_probs: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_log_probs: np.ndarray
    test_labels: np.ndarray


@dataclass(frozen=True)
class Images:
    """Frozen features with labels, and the classes' text features."""

    train: np.ndarray
    train_y: np.ndarray
    test: np.ndarray
    test_y: np.ndarray
    text: np.ndarray
    scale: float

    def log_probs(self, features: np.ndarray) -> np.ndarray:
        logits = self.scale * features @ self.text.T
        logits = logits - logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


class InProcess:
    """All clients in one process; counts exchanges and numbers sent by one client."""

    def __init__(self, sites: Sequence[Site], *, full: bool = True):
        self.sites, self.full = sites, full
        self.views = [View.of(site.train_log_probs) for site in sites]
        self.own: list[np.ndarray] = []
        self.exchanges = self.numbers = 0

    def features(self) -> FeatureSums:
        sums = [feature_sums(site.train, full=self.full) for site in self.sites]
        return self._total(sums, 1 + sums[0].total.size + sums[0].square.size)

    def predicted(self, readings: Sequence[Reading]) -> np.ndarray:
        sums = [predicted_by(view, readings) for view in self.views]
        return self._total(sums, sums[0].size)

    def explained(self, readings: Sequence[Reading]) -> Explained:
        sums = [explained_by_sites(View.of_sites([view]), readings)[0] for view in self.views]
        return self._total(sums, sums[0].evidence.size * 2 + sums[0].held.size + 1)

    def classes_of(self, reading: Reading) -> ClassSums:
        shown = [_shown(view, site.train, reading) for view, site in zip(self.views, self.sites, strict=True)]
        self.own = [own for _, own in shown]
        sums = [told for told, _ in shown]
        return self._total(sums, sums[0].images.size + sums[0].total.size)

    def clusters_of(self, reading: Reading) -> ClassSums:
        shown = [clustered_by(view, site.train, reading) for view, site in zip(self.views, self.sites, strict=True)]
        self.own = [own for _, own in shown]
        return self._total([sums for sums, _ in shown], shown[0][0].images.size + shown[0][0].total.size)

    def look_at(self, prototypes: Prototypes) -> None:
        each = zip(self.views, self.sites, self.own, strict=True)
        self.views = [looked_at(view, site.train, prototypes, own) for view, site, own in each]

    def _total(self, sums, numbers: int):
        self.exchanges += 1
        self.numbers += numbers
        return sum(sums[1:], start=sums[0])


def _shown(view: View, features: np.ndarray, reading: Reading) -> tuple[ClassSums, np.ndarray]:
    """Of one site."""
    sums, own = shown_by_sites(View.of_sites([view]), features[None], reading)
    return ClassSums(sums.images[0], sums.total[0]), own[0]


def load(folder: Path, name: str) -> Images:
    with np.load(folder / f"{name}.npz") as stored:
        arrays = {key: stored[key].astype(np.float64 if stored[key].dtype.kind == "f" else np.int64) for key in stored}
    return Images(**{**arrays, "scale": float(arrays["scale"])})


def subset(images: Images, train: int | None, test: int | None, seed: int, classes: Sequence[int] = ()) -> Images:
    """Some of the images, drawn anew for each seed, perhaps of some classes only."""
    rng = np.random.default_rng([seed, 7])
    if classes:
        names = np.full(len(images.text), -1)
        names[list(classes)] = np.arange(len(classes))
        kept, tested = names[images.train_y] >= 0, names[images.test_y] >= 0
        images = Images(
            images.train[kept],
            names[images.train_y[kept]],
            images.test[tested],
            names[images.test_y[tested]],
            images.text[list(classes)],
            images.scale,
        )
    some = rng.permutation(len(images.train))[:train] if train else np.arange(len(images.train))
    asked = rng.permutation(len(images.test))[:test] if test else np.arange(len(images.test))
    return replace(
        images,
        train=images.train[some],
        train_y=images.train_y[some],
        test=images.test[asked],
        test_y=images.test_y[asked],
    )


def long_tail(images: Images, seed: int) -> Images:
    """Classes in an order drawn by lot, each smaller than the one before, the last a tenth of the first."""
    order = np.random.default_rng([seed, 8]).permutation(len(images.text))
    kept = TAIL ** (-np.argsort(order) / (len(order) - 1))
    train, test = _fewer(images.train_y, kept), _fewer(images.test_y, kept)
    return replace(
        images,
        train=images.train[train],
        train_y=images.train_y[train],
        test=images.test[test],
        test_y=images.test_y[test],
    )


def _fewer(labels: np.ndarray, kept: np.ndarray) -> np.ndarray:
    places = [np.flatnonzero(labels == c) for c in range(len(kept))]
    return np.sort(np.concatenate([p[: max(1, round(share * len(p)))] for p, share in zip(places, kept, strict=True)]))


def made_up(images: Images, seed: int, classes: int, each: int, apart: float, noise: float, scale: float) -> Images:
    """A set of more classes: made-up class means with the real spread of real images around their true means.

    `apart`: the means' size, in units of the real ones'. `noise`: that of the text features' errors, in the same units.
    """
    rng = np.random.default_rng([seed, classes, each])
    features, labels = np.concatenate([images.train, images.test]), np.concatenate([images.train_y, images.test_y])
    means = np.stack([features[labels == c].mean(axis=0) for c in range(len(images.text))])
    spread = features - means[labels]
    values, axes = np.linalg.eigh(np.cov(spread.T))
    shape = (axes * np.sqrt(np.maximum(values, 0))).T
    size = math.sqrt(np.trace(np.cov(means.T))) * apart

    def directions() -> np.ndarray:
        drawn = rng.standard_normal((classes, len(values))) @ shape
        return size * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        label = np.repeat(np.arange(classes), count)
        return _unit(means.mean(axis=0) + centres[label] + spread[rng.integers(len(spread), size=len(label))]), label

    centres = directions()
    train, test = draw(each), draw(10)
    return Images(*train, *test, _unit(centres + noise * directions()), scale)


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def share_out(images: Images, how: str, seed: int, clients: int = 5) -> list[Site]:
    """The product's own splits."""
    given = images.train_y, images.test_y, len(images.text), clients, stream(seed, "partition")
    named: dict[str, Callable[..., partition.Partition]] = {"iid": partition.iid, "quantity": partition.quantity}
    parts = named[how](*given) if how in named else partition.dirichlet(*given, beta=float(how))
    return [
        Site(
            images.train[train],
            images.log_probs(images.train[train]),
            images.train_y[train],
            images.test[test],
            images.log_probs(images.test[test]),
            images.test_y[test],
        )
        for train, test in zip(parts.train, parts.test, strict=True)
    ]


@dataclass(frozen=True)
class Row:
    name: str
    macro: float
    everywhere: float  # `global`
    confidence: float = math.nan
    accuracy: float = math.nan
    chosen_right: float = math.nan
    expected: float = math.nan
    note: str = ""


def rows(sites: Sequence[Site], known_mix: np.ndarray | None = None) -> Iterator[Row]:
    classes = sites[0].train_log_probs.shape[1]
    zero, bias = np.zeros(classes), balance_only(sites)
    yield text_row("zero-shot", sites, zero, None)
    yield text_row("balance only", sites, bias, None)
    yield text_row("site prior only, a = 0", sites, zero, 0.0)
    yield text_row("balance + prior, a = 0", sites, bias, 0.0)
    yield learned_row("balance + prior, rules", sites, prototypes=False)
    yield learned_row("all three, rules", sites, prototypes=True)
    yield learned_row("all three, spread as one number", sites, prototypes=True, full=False)
    yield learned_row("balance + prototypes, no prior", sites, prototypes=True, site_prior=False)
    if known_mix is not None:
        yield learned_row("all three, mix known", sites, prototypes=True, known_mix=known_mix)


def balance_only(sites: Sequence[Site]) -> np.ndarray:
    mix = even_mix(sites[0].train_log_probs.shape[1])
    bias = np.zeros_like(mix)
    for _ in range(10):
        predicted = sum(predicted_mix(site.train_log_probs, bias, mix) for site in sites)
        if is_balanced(predicted, mix):
            break
        bias = rebalanced(bias, predicted, mix)
    return bias


def text_row(name: str, sites: Sequence[Site], bias: np.ndarray, strength: float | None) -> Row:
    mix = even_mix(len(bias))
    learned = Learned(Reading(bias, mix), None, False)
    if strength is None:
        return scored(name, sites, learned, [mix for _ in sites])
    ratios = [likelihood_ratios(site.train_log_probs, bias, mix) for site in sites]
    return scored(name, sites, learned, [site_mix(each, mix, strength) for each in ratios])


class WithoutPriors(InProcess):
    """Every site takes the mix of all for its own."""

    def explained(self, readings: Sequence[Reading]) -> Explained:
        told = super().explained(readings)
        return replace(told, evidence=np.zeros_like(told.evidence))

    def classes_of(self, reading: Reading) -> ClassSums:
        self.own = [np.exp(view.posteriors(reading, reading.mix)) for view in self.views]
        each = zip(self.own, self.sites, strict=True)
        sums = [ClassSums(own.sum(axis=0), own.T @ site.train) for own, site in each]
        return self._total(sums, sums[0].images.size + sums[0].total.size)


def learned_row(
    name: str,
    sites: Sequence[Site],
    *,
    prototypes: bool,
    full: bool = True,
    site_prior: bool = True,
    known_mix: np.ndarray | None = None,
) -> Row:
    federation = (InProcess if site_prior else WithoutPriors)(sites, full=full)
    classes = sites[0].train_log_probs.shape[1]
    learned = learn(federation, classes, known_mix=known_mix, prototypes=prototypes)
    views, reading = federation.views, learned.reading
    mixes = [view.site_prior(reading).mix if site_prior else reading.mix for view in views]
    # The last distances still leave out each image's own share, as they must on training images.
    posteriors = [view.posteriors(reading, mix) for view, mix in zip(views, mixes, strict=True)]
    note = f"{reading.text:g}/{reading.tempering:g}/{reading.calm:g}/{reading.sure:g}"
    note += f"{' uneven' if learned.is_uneven else ''} {federation.exchanges}x {federation.numbers}"
    return scored(name, sites, learned, mixes, posteriors, note)


def scored(
    name: str,
    sites: Sequence[Site],
    learned: Learned,
    mixes: Sequence[np.ndarray],
    posteriors: Sequence[np.ndarray] | None = None,
    note: str = "",
) -> Row:
    def accuracy(mix_of: Sequence[np.ndarray]) -> float:
        answers = [
            learned.answers(site.test_log_probs, site.test, mix) for site, mix in zip(sites, mix_of, strict=True)
        ]
        right = [(a.argmax(1) == site.test_labels).mean() for a, site in zip(answers, sites, strict=True) if len(a)]
        return 100 * float(np.mean(right))

    if posteriors is None:
        each = zip(sites, mixes, strict=True)
        posteriors = [learned.answers(site.train_log_probs, site.train, mix) for site, mix in each]
    truth, rows_ = np.concatenate([site.train_labels for site in sites]), np.concatenate(posteriors)
    chosen = [select(p, q) for p, q in zip(posteriors, allocate(_counts(posteriors)), strict=True)]
    each = list(zip(chosen, sites, posteriors, strict=True))
    right = sum(int((site.train_labels[c.index] == c.label).sum()) for c, site, _ in each)
    told, total = sum(expected_right(p, c.index, c.label) for c, _, p in each), sum(len(c.index) for c in chosen)
    return Row(
        name,
        accuracy(mixes),
        accuracy([learned.reading.mix for _ in sites]),
        100 * float(np.exp(rows_.max(axis=1)).mean()),
        100 * float((rows_.argmax(axis=1) == truth).mean()),
        100 * right / total,
        100 * told / total,
        note + (" train" if is_worth_training(told, total) else ""),
    )


def _counts(posteriors: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack([estimate(p, confidence_quantile=0.5, entropy_quantile=0.5) for p in posteriors])


def sets(folder: Path) -> Iterator[tuple[str, Callable[[int], Images]]]:
    yield "digits, glyph-clip (1198/599)", lambda seed: load(folder, "digits")
    yield "CIFAR-10, photo-clip (600/400)", lambda seed: subset(load(folder, "cifar10"), 600, 400, seed)
    yield "CIFAR-10, photo-clip (2000/1000)", lambda seed: subset(load(folder, "cifar10"), 2000, 1000, seed)
    yield "CIFAR-10, 20 images a class (200/400)", lambda seed: subset(load(folder, "cifar10"), 200, 400, seed)
    yield (
        "CIFAR-10, animals only (400/400)",
        lambda seed: subset(load(folder, "cifar10"), 400, 400, seed, (2, 3, 4, 5, 6, 7)),
    )
    yield "letters and digits, printed and spoilt, 36 classes (720/900)", lambda seed: letters(folder, 720, seed)
    yield "letters and digits, 8 images a class (288/900)", lambda seed: letters(folder, 288, seed)
    for setting in (
        (30, 20, 0.5, 1.2, 15.0),
        (30, 20, 0.5, 1.2, 60.0),
        (30, 8, 0.6, 1.2, 30.0),
        (100, 10, 0.6, 1.0, 20.0),
        (200, 8, 0.7, 1.0, 25.0),
    ):
        title = "made up: {} classes of {}, apart {:g}, text noise {:g}, scale {:g}".format(*setting)
        yield title, lambda seed, s=setting: made_up(load(folder, "cifar10"), seed, *s)


def letters(folder: Path, train: int, seed: int) -> Images:
    return subset(load(folder, "letters"), train, 900, seed)


def table(title: str, make: Callable[[int], Images], split: str, seeds: int, *, tailed: bool = False) -> None:
    every: list[list[Row]] = []
    for seed in range(1, seeds + 1):
        images = long_tail(make(seed), seed) if tailed else make(seed)
        mix = np.bincount(images.train_y, minlength=len(images.text)) / len(images.train_y) if tailed else None
        every.append(list(rows(share_out(images, split, seed), mix)))
    tail = ", long tail 10:1" if tailed else ""
    print(f"\n**{title}, split {split}{tail}** ({seeds} seeds)\n")
    print("| | macro | by seed | global | confidence : accuracy | chosen: expected : right | settings |")
    print("|---|---:|---|---:|---|---|---|")
    for same in zip(*every, strict=True):
        mean = {
            f: np.mean([getattr(row, f) for row in same]) for f in ("macro", "everywhere", "confidence", "accuracy")
        }
        right, told = (np.mean([getattr(row, f) for row in same]) for f in ("chosen_right", "expected"))
        print(
            f"| {same[0].name} | {mean['macro']:.1f} | {' '.join(f'{row.macro:.1f}' for row in same)} "
            f"| {mean['everywhere']:.1f} | {mean['confidence']:.0f} : {mean['accuracy']:.0f} "
            f"| {told:.0f} : {right:.0f} | {'; '.join(row.note for row in same)} |",
            flush=True,
        )


PAGE = """# Priors: the study

Made by `tools/priors_study.py --page` on frozen features: {seeds} seeds, five clients. Macro accuracy in %, mean and
standard deviation over the seeds; everything is learnt from training images without a label and measured on test
images. Digits: the demo's own images, glyph-clip. CIFAR-10: 600 training and 400 test images drawn anew for each seed,
photo-clip. *Tail*: classes from 10 to 1, in training and test images alike. The rules were set on seeds 1 to 3, those
for sites that do not differ on seeds 21 to 23 and 6 to 8; [priors](priors.md) says what was seen when.

"balance + prior": no prototypes; with the strength a = 0, and with a and the sharpness of text chosen by evidence.
"uneven": in how many seeds the classes were found not to be equally common.

"""
COLUMNS = ("zero-shot", "balance only", "balance + prior, a = 0", "balance + prior, rules", "all three, rules")
ASKED = ("0.05", "0.1", "0.5", "1", "iid", "quantity", "0.1 tail", "1 tail", "iid tail")


def page(folder: Path, seeds: int) -> str:
    """The compact tables, one for each of the two sets."""
    parts = [PAGE.format(seeds=seeds)]
    for title, make in list(sets(folder))[:2]:
        head = " | ".join(("split", *COLUMNS, "`global`", "uneven"))
        parts.append(f"## {title}\n\n| {head} |\n|{'---|' * (len(COLUMNS) + 3)}\n")
        parts += [compact(make, split, seeds) for split in ASKED]
        parts.append("\n")
    return "".join(parts)


def compact(make: Callable[[int], Images], split: str, seeds: int) -> str:
    """One line of the page."""
    how, *tailed = split.split()
    every = []
    for seed in range(1, seeds + 1):
        images = long_tail(make(seed), seed) if tailed else make(seed)
        found = {row.name: row for row in rows(share_out(images, how, seed))}
        every.append([found[name] for name in COLUMNS])
    cells = [
        f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"
        for values in zip(*([row.macro for row in one] for one in every), strict=True)
    ]
    whole = np.mean([one[-1].everywhere for one in every])
    uneven = sum("uneven" in one[-1].note for one in every)
    print(split, *cells, flush=True)
    return f"| {split} | {' | '.join(cells)} | {whole:.1f} | {uneven} of {seeds} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=Path, default=Path("/tmp/priors"))
    parser.add_argument("--only", default="", help="part of a set's name")
    parser.add_argument("--splits", nargs="*", default=[*SPLITS, "tail"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--page", type=Path, help="write the page of digits and CIFAR-10 here")
    arguments = parser.parse_args()
    if arguments.page:
        arguments.page.write_text(page(arguments.features, arguments.seeds).rstrip("\n") + "\n")
        return
    for title, make in sets(arguments.features):
        if arguments.only not in title:
            continue
        for split in arguments.splits:
            if split == "tail":
                table(title, make, "0.1", arguments.seeds, tailed=True)
            else:
                table(title, make, split, arguments.seeds)


if __name__ == "__main__":
    main()

"""Train with harmful settings and wrong labels; print a table of what the hold-out check rolled back.

.venv/bin/python tools/break_training.py --photo-clip ../shared/models/photo-clip --cifar /tmp/cifar --seed 1

Accuracies are macro over the clients' test images, in %: of zero-shot CLIP, of the untrained initial prompts, and of
the final models. The hold-out check never sees them.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedcopl.algorithm.select import Selection
from fedcopl.clip.frozen_clip import Clip, load_clip
from fedcopl.config import AS_PUBLISHED, Data, RunConfig, override
from fedcopl.data.catalog import load_dataset
from fedcopl.data.dataset import Dataset, ImageSet
from fedcopl.federation.learner import Learner
from fedcopl.federation.server import is_finished, run_round
from fedcopl.rng import stream
from fedcopl.run import build
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.simulation.assemble import assemble
from fedcopl.simulation.simulate import LocalTransport

RATES = ("0.001", "0.01", "0.1", "1", "10")
WRONG_SHARE = 0.8  # of the labels
COMMON = (
    "data.clients=5",
    "model.threads=1",
    "evaluation.every=99",
    "evaluation.everywhere=false",
    "priors.logit_bias=false",
    "priors.label_shift=false",
    "priors.prototypes=false",
)
HEAD = (
    "| data | variant | zero-shot | initial | final | final - zero-shot | rolled back | averages rolled back "
    "| clients reset |"
)


@dataclass(frozen=True)
class Variant:
    """A harmful setting, label noise or encoder."""

    name: str
    settings: tuple[str, ...] = ()
    learner: Callable[[Learner, int], Learner] = lambda learner, _: learner
    clip: Callable[[Clip], Clip] = lambda clip: clip
    train_each: int = 0  # training images of each class at each client; 0: all


@dataclass(frozen=True)
class NoisyLabels:
    """A learner with label noise: for most images a random other class replaces the predicted one."""

    learner: Learner
    number: int
    images: int

    def __getattr__(self, name: str) -> object:
        return getattr(self.learner, name)

    def _with_noise(self, labels: np.ndarray, index: np.ndarray, classes: int) -> np.ndarray:
        rng = stream(0, "wrong labels", self.number)
        is_wrong, shift = rng.random(self.images) < WRONG_SHARE, rng.integers(1, classes, self.images)
        return np.where(is_wrong[index], (labels + shift[index]) % classes, labels)


class NoisyTraining(NoisyLabels):
    """Label noise in training only; the predictions of the learner are unchanged."""

    def train(self, prompts, selection, round, lr_factor=1.0, adjustment=None):
        noisy = Selection(selection.index, self._with_noise(selection.label, selection.index, 10))
        return self.learner.train(prompts, noisy, round, lr_factor, adjustment)


class NoisyPredictions(NoisyLabels):
    """Label noise in all predictions of the learner: at each refresh and in the hold-out check."""

    def log_probabilities(self, prompts):
        log_probs = self.learner.log_probabilities(prompts)
        best = log_probs.argmax(axis=1)
        rows = np.arange(len(best))
        noisy = self._with_noise(best, rows, log_probs.shape[1])
        swapped = log_probs.copy()
        swapped[rows, best], swapped[rows, noisy] = log_probs[rows, noisy], log_probs[rows, best]
        return swapped


def noisy(kind: type[NoisyLabels]) -> Callable[[Learner, int], Learner]:
    return lambda learner, number: kind(learner, number, len(learner.images))


def with_random_weights(clip: Clip) -> Clip:
    """Replace every array of weights by normal random numbers with its mean and standard deviation."""
    generator = torch.Generator().manual_seed(0)
    for value in clip.parameters():
        if value.numel() > 1:
            value.copy_(value.mean() + value.std() * torch.randn(value.shape, generator=generator))
    return clip


VARIANTS = (
    Variant("default settings"),
    *(Variant(f"learning rate {rate}", (f"train.lr={rate}",)) for rate in RATES),
    Variant("learning rate 1, no clipping", ("train.lr=1", "train.clip_norm=0")),
    Variant(
        "as published, with the check",
        tuple(f"{key}={value}" for key, value in AS_PUBLISHED.items() if key != "train.holdout"),
    ),
    Variant("one image a class", train_each=1),
    Variant("80 % wrong labels in training", learner=noisy(NoisyTraining)),
    Variant("80 % wrong reference predictions", learner=noisy(NoisyPredictions)),
    Variant("ten times the epochs", ("train.epochs={ten}",)),
    Variant("an encoder with random weights", clip=with_random_weights),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photo-clip", default="../shared/models/photo-clip")
    parser.add_argument("--cifar", default="", help="folder of CIFAR-10; without it only the digits are used")
    parser.add_argument("--no-digits", dest="digits", action="store_false")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="run only the variants whose name contains this text")
    parser.add_argument("settings", nargs="*", help="settings of all variants, as key=value")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{HEAD}\n|{'---|' * (HEAD.count('|') - 1)}", flush=True)
    photos = [lambda seed: photographs(arguments.cifar, arguments.photo_clip, seed)] if arguments.cifar else []
    for load in [digits, *photos] if arguments.digits else photos:
        dataset, settings, epochs = load(arguments.seed)
        for variant in (variant for variant in VARIANTS if arguments.only in variant.name):
            own = [pair.format(ten=10 * epochs) for pair in variant.settings]
            pairs = [*COMMON, *settings, f"seed={arguments.seed}", *arguments.settings, *own]
            print(row(dataset, variant, pairs), flush=True)


def digits(seed: int) -> tuple[Dataset, list[str], int]:
    return load_dataset(Data(source="digits")), ["rounds=6", "train.epochs=3", "labels.refresh_every=3"], 3


def photographs(path: str, model: str, seed: int) -> tuple[Dataset, list[str], int]:
    dataset = subset(load_dataset(Data(source="cifar10", path=path)), seed, 30, 40)
    settings = [f"model.backbone={model}", "rounds=4", "train.epochs=2", "labels.refresh_every=2", "train.batch=32"]
    return dataset, settings, 2


def subset(dataset: Dataset, seed: int, train_each: int, test_each: int) -> Dataset:
    """Sample training and test images of each class; another seed gives other images."""
    rng = stream(seed, "some photographs")
    train, test = sample(dataset.train, train_each, rng), sample(dataset.test, test_each, rng)
    return replace(dataset, train=train, test=test)


def sample(images: ImageSet, each: int, rng: np.random.Generator) -> ImageSet:
    """Sample `each` images of each class."""
    classes = (np.flatnonzero(images.labels == label) for label in np.unique(images.labels))
    sampled = np.concatenate([rng.choice(members, each, replace=False) for members in classes])
    return images.without(set(range(len(images))) - set(sampled.tolist()))


def row(dataset: Dataset, variant: Variant, pairs: list[str]) -> str:
    """Run a variant; return its row of the table."""
    if variant.train_each:
        dataset = replace(dataset, train=sample(dataset.train, 5 * variant.train_each, stream(0, "few")))
        pairs = [*pairs, "data.partition=iid"]
    build.load_clip = lambda *arguments, **options: variant.clip(load_clip(*arguments, **options))
    simulation = assemble(RunConfig.from_mapping(override({}, pairs), "break"), ProgressReporter(), dataset)
    clients = {
        name: replace(client, learner=variant.learner(client.learner, number))
        for number, (name, client) in enumerate(simulation.clients.items())
    }
    federation, reports = LocalTransport(clients), []
    state = simulation.server
    while not is_finished(simulation.config, state):
        state, report = run_round(simulation.config, federation, state)
        reports.append(report)
    test_sets = [client.test_set for client in clients.values()]
    zero_shot, initial = (
        macro(test_set.score(prompts) for test_set in test_sets) for prompts in (None, simulation.audit.start)
    )
    final = macro(reports[-1].scores.values())
    rolled_back = int(sum(report.checks.trainings_rolled_back for report in reports))
    was_reset = sum(state.holdout.was_reset for state in federation.states.values())
    cells = [dataset.name, variant.name, *(f"{value:.1f}" for value in (zero_shot, initial, final))]
    cells += [
        f"{final - zero_shot:+.1f}",
        f"{rolled_back} of {5 * len(reports)}",
        sum(report.server_rolled_back for report in reports),
        f"{was_reset} of 5",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def macro(scores) -> float:
    return 100 * float(np.mean([correct / examples for correct, examples in scores if examples]))


if __name__ == "__main__":
    main()

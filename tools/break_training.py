"""Try to break the training, and print what the guard made of it as a table.

.venv/bin/python tools/break_training.py --photo-clip ../shared/models/photo-clip --cifar /tmp/cifar --seed 1

Accuracies are macro over the clients' test images, in points: plain zero-shot CLIP, the first prompts untrained, and
what the sites answer with at the end. The guard never sees them.
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
from fedcopl.run.progress_reporter import SilentReporter
from fedcopl.simulation.assemble import assemble
from fedcopl.simulation.simulate import LocalTransport

RATES = ("0.001", "0.01", "0.1", "1", "10")
WRONG = 0.8
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
class Attempt:
    """One way to break it."""

    name: str
    settings: tuple[str, ...] = ()
    learner: Callable[[Learner, int], Learner] = lambda learner, _: learner
    clip: Callable[[Clip], Clip] = lambda clip: clip
    each: int = 0  # training images of each class at each client; 0: all


@dataclass(frozen=True)
class Misled:
    """A learner whose labels are wrong: a class at random instead of the chosen one, for most images."""

    learner: Learner
    number: int
    images: int

    def __getattr__(self, name: str) -> object:
        return getattr(self.learner, name)

    def _spoilt(self, labels: np.ndarray, index: np.ndarray, classes: int) -> np.ndarray:
        rng = stream(0, "wrong labels", self.number)
        is_wrong, by = rng.random(self.images) < WRONG, rng.integers(1, classes, self.images)
        return np.where(is_wrong[index], (labels + by[index]) % classes, labels)


class WrongInTraining(Misled):
    """The site knows better than what it trains on."""

    def train(self, prompts, selection, round, lr_factor=1.0, beside=None):
        spoilt = Selection(selection.index, self._spoilt(selection.label, selection.index, 10))
        return self.learner.train(prompts, spoilt, round, lr_factor, beside)


class WrongReference(Misled):
    """The site itself believes the wrong classes, at every refresh."""

    def log_probabilities(self, prompts):
        believed = self.learner.log_probabilities(prompts)
        best = believed.argmax(axis=1)
        rows, spoilt = np.arange(len(best)), self._spoilt(best, np.arange(len(best)), believed.shape[1])
        swapped = believed.copy()
        swapped[rows, best], swapped[rows, spoilt] = believed[rows, spoilt], believed[rows, best]
        return swapped


def wrong(kind: type[Misled]) -> Callable[[Learner, int], Learner]:
    return lambda learner, number: kind(learner, number, len(learner.images))


def without_knowledge(clip: Clip) -> Clip:
    """The same tower with every array of weights drawn anew, of the same mean and spread."""
    generator = torch.Generator().manual_seed(0)
    for value in clip.parameters():
        if value.numel() > 1:
            value.copy_(value.mean() + value.std() * torch.randn(value.shape, generator=generator))
    return clip


ATTEMPTS = (
    Attempt("default settings"),
    *(Attempt(f"learning rate {rate}", (f"train.lr={rate}",)) for rate in RATES),
    Attempt("learning rate 1, no clipping", ("train.lr=1", "train.clip_norm=0")),
    Attempt(
        "as published, with the check",
        tuple(f"{key}={value}" for key, value in AS_PUBLISHED.items() if "held" not in key),
    ),
    Attempt("one image a class", each=1),
    Attempt("80 % wrong labels in training", learner=wrong(WrongInTraining)),
    Attempt("80 % wrong reference predictions", learner=wrong(WrongReference)),
    Attempt("ten times the epochs", ("train.epochs={ten}",)),
    Attempt("an encoder with random weights", clip=without_knowledge),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photo-clip", default="../shared/models/photo-clip")
    parser.add_argument("--cifar", default="", help="folder of CIFAR-10; without it only the digits are tried")
    parser.add_argument("--no-digits", dest="digits", action="store_false")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of the name of what to try")
    parser.add_argument("settings", nargs="*", help="settings for all, as key=value")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{HEAD}\n|{'---|' * (HEAD.count('|') - 1)}", flush=True)
    photos = [lambda seed: photographs(arguments.cifar, arguments.photo_clip, seed)] if arguments.cifar else []
    for kind in [digits, *photos] if arguments.digits else photos:
        dataset, settings, epochs = kind(arguments.seed)
        for attempt in (attempt for attempt in ATTEMPTS if arguments.only in attempt.name):
            chosen = [pair.format(ten=10 * epochs) for pair in attempt.settings]
            pairs = [*COMMON, *settings, f"seed={arguments.seed}", *arguments.settings, *chosen]
            print(row(dataset, attempt, pairs), flush=True)


def digits(seed: int) -> tuple[Dataset, list[str], int]:
    return load_dataset(Data(source="digits")), ["rounds=6", "train.epochs=3", "labels.refresh_every=3"], 3


def photographs(path: str, model: str, seed: int) -> tuple[Dataset, list[str], int]:
    whole, rng = load_dataset(Data(source="cifar10", path=path)), stream(seed, "some photographs")
    parts = {
        name: some(part, count, rng) for name, part, count in (("train", whole.train, 30), ("test", whole.test, 40))
    }
    settings = [f"model.backbone={model}", "rounds=4", "train.epochs=2", "labels.refresh_every=2", "train.batch=32"]
    return replace(whole, **parts), settings, 2


def some(part: ImageSet, each: int, rng: np.random.Generator) -> ImageSet:
    """So many images of each class."""
    of_class = (np.flatnonzero(part.labels == label) for label in np.unique(part.labels))
    kept = np.sort(np.concatenate([rng.choice(members, each, replace=False) for members in of_class]))
    return part.without(set(range(len(part))) - set(kept.tolist()))


def row(dataset: Dataset, attempt: Attempt, pairs: list[str]) -> str:
    if attempt.each:
        dataset = replace(dataset, train=some(dataset.train, 5 * attempt.each, stream(0, "few")))
        pairs = [*pairs, "data.partition=iid"]
    build.load_clip = lambda *given, **named: attempt.clip(load_clip(*given, **named))
    simulation = assemble(RunConfig.from_mapping(override({}, pairs), "break"), SilentReporter(), dataset)
    clients = {
        name: replace(client, learner=attempt.learner(client.learner, number))
        for number, (name, client) in enumerate(simulation.clients.items())
    }
    federation, reports = LocalTransport(clients), []
    state = simulation.server
    while not is_finished(simulation.config, state):
        state, report = run_round(simulation.config, federation, state)
        reports.append(report)
    test_sets = [client.test_set for client in clients.values()]
    zero, first = (
        macro(test_set.score(prompts) for test_set in test_sets) for prompts in (None, simulation.audit.start)
    )
    end = macro(reports[-1].scores.values())
    rolled_back = int(sum(report.checks.trainings_rolled_back for report in reports))
    was_reset = sum(state.holdout.was_reset for state in federation.states.values())
    cells = [dataset.name, attempt.name, *(f"{value:.1f}" for value in (zero, first, end)), f"{end - zero:+.1f}"]
    cells += [
        f"{rolled_back} of {5 * len(reports)}",
        sum(report.server_rolled_back for report in reports),
        f"{was_reset} of 5",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def macro(scores) -> float:
    return 100 * float(np.mean([correct / examples for correct, examples in scores if examples]))


if __name__ == "__main__":
    main()

"""The guard: whether training harmed, told without a label by images that were never trained on.

A site keeps every fifth of its images out of its training. Of these, the ones it chose (it was sure of them) are its
own exam, and what it answered before training is the key. Training that has learnt something from the others makes the
model surer of these answers; training that ruins the model, or labels that cannot be learnt from one image for another,
make it less sure. Every number here is a sum over images, so that sites can add theirs up in secret.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import BoolArray, FloatArray, IntArray

Harm = Literal["", "not finite", "less sure", "other answers", "cannot be learnt", "other mix", "against the priors"]
"""What is wrong, "" for nothing."""

SLACK = 0.01  # nats an image: what a loss may rise by without meaning anything
FEWEST_AGREE = 0.5  # of the exam after training: labels that cannot be told of unseen images are no knowledge
MOST_CONTRADICTED = 0.1  # of the exam's answers may change, and one in any case
MOST_DOUBTED = 0.02  # of the images not trained on may be wrong for it by the priors, and one in any case
MOST_SHIFTED = 0.5  # total variation between the mixes of classes answered before and after
LARGEST_LOSS = 1000.0  # nats an image: more is not told from this, so that sums stay numbers
SLOWER, RECOVERS = 0.5, 2**0.25  # a site's learning rate after a round that harmed, and after one that did not


class Evidence(NamedTuple):
    """How well a model answers a site's exam. Sums over the images, fit to be added up over sites."""

    images: float = 0.0
    loss: float = 0.0  # sum of -log p of the answers of the key
    agreed: float = 0.0  # images answered as in the key


@dataclass(frozen=True)
class HoldoutVerdict:
    """What the guard found, and by which numbers."""

    harm: Harm
    before: Evidence
    after: Evidence
    shift: float  # total variation between the mixes of answers


@dataclass(frozen=True)
class HoldoutMemory:
    """What a site's guard remembers between rounds. Never sent."""

    trusted: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # the last good model; none: where all began
    standing: FloatArray | None = None  # what it says about the exam, (n, C), until the exam changes
    lr_factor: float = 1.0  # factor on the learning rate
    arrival: HoldoutVerdict | None = None  # on the last average that came
    training: HoldoutVerdict | None = None  # on the last round's own training
    gave_up: bool = False  # at the end the model contradicted most of the site's first sure answers


def evenly_spaced(count: int, most: int) -> IntArray:
    """Numbers from 0 to count - 1, all of them or so many.

    >>> evenly_spaced(3, 5).tolist(), evenly_spaced(9, 5).tolist()
    ([0, 1, 2], [0, 2, 4, 6, 8])
    """
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.int64))


def holdout(images: int, share: float) -> BoolArray:
    """Which images are for the exam, (n,): at even distances, so that images sorted by class are all represented."""
    passed = np.floor(np.arange(images + 1) * share + 1e-9)
    test_set: BoolArray = np.diff(passed) > 0
    return test_set


def evidence(log_probs: FloatArray, key: IntArray) -> Evidence:
    """Of a model that says log_probs, (n, C), about images whose answers are in the key, (n,)."""
    loss = np.minimum(-log_probs[np.arange(len(key)), key], LARGEST_LOSS).sum()
    return Evidence(float(len(key)), float(loss), float((log_probs.argmax(axis=1) == key).sum()))


def judge(before: FloatArray, after: FloatArray, key: IntArray) -> HoldoutVerdict:
    """Whether a model that says `after` is worse than the one that said `before`, both (n, C), n > 0."""
    old = evidence(before, key)
    if not np.isfinite(after).all():
        return HoldoutVerdict("not finite", old, Evidence(old.images, LARGEST_LOSS * old.images, 0.0), 1.0)
    new, shift = evidence(after, key), mix_shift(before, after)
    return HoldoutVerdict(_harm(old, new, shift), old, new, shift)


def judge_training(before: FloatArray, after: FloatArray, key: IntArray) -> HoldoutVerdict:
    """The same, and whether what was trained on can be learnt at all."""
    verdict = judge(before, after, key)
    if not verdict.harm and verdict.after.agreed < FEWEST_AGREE * verdict.after.images:
        return HoldoutVerdict("cannot be learnt", verdict.before, verdict.after, verdict.shift)
    return verdict


def doubt(believed: FloatArray, answers: IntArray) -> float:
    """How many images fewer are right with these answers, by calibrated posteriors log p~, (n, C): >= 0.

    >>> round(doubt(np.log([[0.9, 0.1], [0.5, 0.5], [0.3, 0.7], [0.2, 0.8]]), np.array([0, 1, 0, 1])), 9)
    0.4
    """
    chances = np.exp(believed)
    return float((chances.max(axis=1, initial=0.0) - chances[np.arange(len(answers)), answers]).sum())


def is_against_priors(believed: FloatArray, answers: IntArray) -> bool:
    """Whether that is more than training may cost."""
    return doubt(believed, answers) > max(1.0, MOST_DOUBTED * len(answers))


def _harm(old: Evidence, new: Evidence, shift: float) -> Harm:
    if is_less_confident(old, new):
        return "less sure"
    if new.agreed < old.agreed - max(1.0, MOST_CONTRADICTED * old.images):
        return "other answers"
    return "other mix" if shift > MOST_SHIFTED else ""


def is_less_confident(old: Evidence, new: Evidence) -> bool:
    """Of one site, or of all sites together."""
    return not new.loss <= old.loss + SLACK * old.images


def rise(old: Evidence, new: Evidence) -> float:
    """By how much the loss is beyond what means nothing; negative: it is not."""
    return new.loss - old.loss - SLACK * old.images


def mix_shift(before: FloatArray, after: FloatArray) -> float:
    """Total variation between the shares of the classes answered: 0 the same mix, 1 nothing in common."""
    classes = before.shape[1]
    class_priors = [np.bincount(said.argmax(axis=1), minlength=classes) / len(said) for said in (before, after)]
    return float(np.abs(class_priors[0] - class_priors[1]).sum() / 2)


def next_lr_factor(lr_factor: float, harmed: bool) -> float:
    """The factor on a site's learning rate: halved by a round that harmed, regained in four that did not."""
    return lr_factor * SLOWER if harmed else min(lr_factor * RECOVERS, 1.0)

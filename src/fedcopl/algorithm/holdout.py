"""The hold-out check: whether training harmed, measured without labels on images that were never trained on.

A client keeps every fifth of its images out of training. Those among them that it selected are its holdout; its own
pseudo labels before training are their reference labels. Training that learnt something from the other images makes the
model more confident of these labels; training that ruins the model, or labels that do not generalise from one image to
another, make it less confident. Every number here is a sum over images, so that secure aggregation can add them up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import BoolArray, FloatArray, IntArray

Harm = Literal[
    "", "not finite", "less confident", "changed predictions", "no generalisation", "class shift", "against the priors"
]
"""Why a model is harmful; "" if it is not."""

_SLACK = 0.01  # nats per image: a smaller rise of the loss is no harm
MIN_AGREEMENT = 0.5  # of the holdout after training: labels that do not generalise are not worth training on
_MAX_CHANGED = 0.1  # of the predictions on the holdout may change, and one in any case
_MAX_EXPECTED_LOSS = 0.02  # of the images not trained on may become wrong by the priors, and one in any case
_MAX_SHIFT = 0.5  # total variation between the predicted class shares before and after
LARGEST_LOSS = 1000.0  # nats per image: losses are clipped to this, so that sums stay finite
_LR_DECAY, _LR_RECOVERY = 0.5, 2**0.25  # of a client's learning rate, after a round that harmed and one that did not


class Evidence(NamedTuple):
    """Fit of a model to the holdout, as sums over images that can be added over clients."""

    images: float = 0.0
    loss: float = 0.0  # sum of -log p of the reference labels
    agreed: float = 0.0  # images predicted as their reference label


@dataclass(frozen=True)
class HoldoutVerdict:
    """The outcome of comparing a model with the one before it on the holdout."""

    harm: Harm
    before: Evidence
    after: Evidence
    shift: float  # total variation between predicted class shares


@dataclass(frozen=True)
class HoldoutState:
    """State of a client's hold-out check between rounds. It is never sent."""

    accepted: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # the last good model; none: the first one
    log_probs: FloatArray | None = None  # of the holdout by that model, (n, C), until the holdout changes
    lr_factor: float = 1.0  # factor on the learning rate
    average: HoldoutVerdict | None = None  # on the last average that was received
    training: HoldoutVerdict | None = None  # on the last round's own training
    was_reset: bool = False  # at the end the model contradicted most of the first holdout's labels


def evenly_spaced(count: int, limit: int) -> IntArray:
    """Return at most `limit` indices below count, at even distances.

    >>> evenly_spaced(3, 5).tolist(), evenly_spaced(9, 5).tolist()
    ([0, 1, 2], [0, 2, 4, 6, 8])
    """
    return np.unique(np.linspace(0, count - 1, min(limit, count)).round().astype(np.int64))


def holdout(images: int, share: float) -> BoolArray:
    """Return which images are held out, (n,): at even distances, so that images sorted by class are all represented."""
    passed = np.floor(np.arange(images + 1) * share + 1e-9)
    held_out: BoolArray = np.diff(passed) > 0
    return held_out


def evidence(log_probs: FloatArray, labels: IntArray) -> Evidence:
    """Return how well log-probabilities, (n, C), fit the reference labels, (n,)."""
    loss = np.minimum(-log_probs[np.arange(len(labels)), labels], LARGEST_LOSS).sum()
    return Evidence(float(len(labels)), float(loss), float((log_probs.argmax(axis=1) == labels).sum()))


def compare_models(before: FloatArray, after: FloatArray, labels: IntArray) -> HoldoutVerdict:
    """Compare the log-probabilities of two models on the holdout, both (n, C), n > 0."""
    old = evidence(before, labels)
    if not np.isfinite(after).all():
        return HoldoutVerdict("not finite", old, Evidence(old.images, LARGEST_LOSS * old.images, 0.0), 1.0)
    new, shift = evidence(after, labels), _prediction_shift(before, after)
    return HoldoutVerdict(_harm(old, new, shift), old, new, shift)


def compare_training(before: FloatArray, after: FloatArray, labels: IntArray) -> HoldoutVerdict:
    """Compare a model with itself before training; also check that the pseudo labels generalise at all."""
    verdict = compare_models(before, after, labels)
    if not verdict.harm and verdict.after.agreed < MIN_AGREEMENT * verdict.after.images:
        return replace(verdict, harm="no generalisation")
    return verdict


def _expected_loss(posteriors: FloatArray, predictions: IntArray) -> float:
    """Return how many images fewer are expected right with these predictions, by log-posteriors, (n, C).

    >>> round(_expected_loss(np.log([[0.9, 0.1], [0.5, 0.5], [0.3, 0.7], [0.2, 0.8]]), np.array([0, 1, 0, 1])), 9)
    0.4
    """
    probabilities = np.exp(posteriors)
    chosen = probabilities[np.arange(len(predictions)), predictions]
    return float((probabilities.max(axis=1, initial=0.0) - chosen).sum())


def is_against_priors(posteriors: FloatArray, predictions: IntArray) -> bool:
    """Return whether predictions contradict the priors on more images than training may cost."""
    return _expected_loss(posteriors, predictions) > max(1.0, _MAX_EXPECTED_LOSS * len(predictions))


def _harm(old: Evidence, new: Evidence, shift: float) -> Harm:
    if is_less_confident(old, new):
        return "less confident"
    if new.agreed < old.agreed - max(1.0, _MAX_CHANGED * old.images):
        return "changed predictions"
    return "class shift" if shift > _MAX_SHIFT else ""


def is_less_confident(old: Evidence, new: Evidence) -> bool:
    """Return whether the loss on the holdout rose, of one client or of all together."""
    return not new.loss <= old.loss + _SLACK * old.images


def rise(old: Evidence, new: Evidence) -> float:
    """Return how far the loss rose beyond the slack; negative if it did not."""
    return new.loss - old.loss - _SLACK * old.images


def _prediction_shift(before: FloatArray, after: FloatArray) -> float:
    """Return the total variation between the shares of predicted classes: 0 for equal shares, at most 1."""
    classes = before.shape[1]
    shares = [
        np.bincount(log_probs.argmax(axis=1), minlength=classes) / len(log_probs) for log_probs in (before, after)
    ]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def next_lr_factor(lr_factor: float, harmed: bool) -> float:
    """Return the factor on a client's learning rate: halved by a harmful round, recovered in four that are not."""
    return lr_factor * _LR_DECAY if harmed else min(lr_factor * _LR_RECOVERY, 1.0)

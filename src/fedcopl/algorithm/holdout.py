"""The hold-out check: detects harmful training without labels, on images that are never trained on.

A client keeps every fifth image out of training. The selected images among them are its holdout, with the pseudo labels
from before the training as reference labels. Useful training makes the model more confident of these labels; harmful
training, or pseudo labels that do not generalise to other images, make it less confident. All evidence is a sum over
images, so that secure aggregation can add it up.
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
"""The reason why a model is harmful; "" if it is not."""

_SLACK = 0.01  # nats per image by which the loss may rise
MIN_AGREEMENT = 0.5  # share of the holdout that must be predicted as its reference label after training
_MAX_CHANGED = 0.1  # share of the predictions on the holdout that may change; one always may
_MAX_EXTRA_ERRORS = 0.02  # share of the images not trained on that may become wrong by the priors; one always may
_MAX_SHIFT = 0.5  # maximum total variation between the predicted class shares before and after
LARGEST_LOSS = 1000.0  # nats per image, to which losses are clipped so that sums stay finite
_LR_DECAY, _LR_RECOVERY = 0.5, 2**0.25  # of a client's learning rate, after a harmful round and after any other


class Evidence(NamedTuple):
    """The fit of a model to the holdout, as sums over images, which can be added over clients."""

    images: float = 0.0
    loss: float = 0.0  # sum of -log p of the reference labels, in nats
    agreed: float = 0.0  # number of images predicted as their reference label


@dataclass(frozen=True)
class HoldoutVerdict:
    """The result of comparing a model with the previous one on the holdout."""

    harm: Harm
    before: Evidence
    after: Evidence
    shift: float  # total variation between predicted class shares


@dataclass(frozen=True)
class HoldoutState:
    """The state of a client's hold-out check between rounds; it is never sent."""

    accepted: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # last harmless model; empty: the initial one
    log_probs: FloatArray | None = None  # of the holdout by `accepted`, (n, C); None: not yet computed
    lr_factor: float = 1.0  # factor on the learning rate
    average: HoldoutVerdict | None = None  # on the last average that the client received
    training: HoldoutVerdict | None = None  # on the client's last training
    was_reset: bool = False  # to its initial arrays: the final model contradicted most labels of the first holdout


def evenly_spaced(count: int, limit: int) -> IntArray:
    """Return at most `limit` evenly spaced indices below `count`.

    >>> evenly_spaced(3, 5).tolist(), evenly_spaced(9, 5).tolist()
    ([0, 1, 2], [0, 2, 4, 6, 8])
    """
    return np.unique(np.linspace(0, count - 1, min(limit, count)).round().astype(np.int64))


def is_held_out(images: int, share: float) -> BoolArray:
    """Return whether each image is held out, (n,): evenly spaced, because images are often sorted by class."""
    held_out_before = np.floor(np.arange(images + 1) * share + 1e-9)
    held_out: BoolArray = np.diff(held_out_before) > 0
    return held_out


def evidence(log_probs: FloatArray, labels: IntArray) -> Evidence:
    """Return how well log-probabilities, (n, C), fit the reference labels, (n,)."""
    loss = np.minimum(-log_probs[np.arange(len(labels)), labels], LARGEST_LOSS).sum()
    return Evidence(float(len(labels)), float(loss), float((log_probs.argmax(axis=1) == labels).sum()))


def compare_models(before: FloatArray, after: FloatArray, labels: IntArray) -> HoldoutVerdict:
    """Compare the log-probabilities, (n, C), n > 0, of a model on the holdout with those of the model before it."""
    old = evidence(before, labels)
    if not np.isfinite(after).all():
        return HoldoutVerdict("not finite", old, Evidence(old.images, LARGEST_LOSS * old.images, 0.0), 1.0)
    new, shift = evidence(after, labels), _prediction_shift(before, after)
    return HoldoutVerdict(_harm(old, new, shift), old, new, shift)


def compare_training(before: FloatArray, after: FloatArray, labels: IntArray) -> HoldoutVerdict:
    """Compare a model with the one before its training, and check that pseudo labels generalise to the holdout."""
    verdict = compare_models(before, after, labels)
    if not verdict.harm and verdict.after.agreed < MIN_AGREEMENT * verdict.after.images:
        return replace(verdict, harm="no generalisation")
    return verdict


def _extra_errors(log_posteriors: FloatArray, predictions: IntArray) -> float:
    """Return the expected number of errors of predictions, (n,), by log-posteriors, (n, C), minus the least possible.

    >>> round(_extra_errors(np.log([[0.9, 0.1], [0.5, 0.5], [0.3, 0.7], [0.2, 0.8]]), np.array([0, 1, 0, 1])), 9)
    0.4
    """
    posteriors = np.exp(log_posteriors)
    of_predictions = posteriors[np.arange(len(predictions)), predictions]
    return float((posteriors.max(axis=1, initial=0.0) - of_predictions).sum())


def is_against_priors(log_posteriors: FloatArray, predictions: IntArray) -> bool:
    """Return whether predictions, (n,), have more extra errors by log-posteriors, (n, C), than training may cause."""
    return _extra_errors(log_posteriors, predictions) > max(1.0, _MAX_EXTRA_ERRORS * len(predictions))


def _harm(old: Evidence, new: Evidence, shift: float) -> Harm:
    """Return the reason why a new model is harmful, by its evidence and the shift of its predictions."""
    if is_less_confident(old, new):
        return "less confident"
    if new.agreed < old.agreed - max(1.0, _MAX_CHANGED * old.images):
        return "changed predictions"
    return "class shift" if shift > _MAX_SHIFT else ""


def is_less_confident(old: Evidence, new: Evidence) -> bool:
    """Return whether the loss on the holdout rose by more than the slack or is NaN; also for sums over clients."""
    return not new.loss <= old.loss + _SLACK * old.images


def loss_rise(old: Evidence, new: Evidence) -> float:
    """Return the rise of the loss on the holdout minus the slack, in nats."""
    return new.loss - old.loss - _SLACK * old.images


def _prediction_shift(before: FloatArray, after: FloatArray) -> float:
    """Return the total variation, from 0 to 1, between the shares of the classes that two models predict."""
    counts = (np.bincount(log_probs.argmax(axis=1), minlength=before.shape[1]) for log_probs in (before, after))
    old, new = (count / len(before) for count in counts)
    return float(np.abs(old - new).sum() / 2)


def next_lr_factor(lr_factor: float, harmed: bool) -> float:
    """Return the next factor on a client's learning rate: half after harm; four harmless rounds double it, up to 1."""
    return lr_factor * _LR_DECAY if harmed else min(lr_factor * _LR_RECOVERY, 1.0)

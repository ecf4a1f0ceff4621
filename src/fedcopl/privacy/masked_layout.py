"""Layout of a masked reply: 64-bit words (integers modulo 2^64), in the same order at every client.

    counts    one word per class, in steps of 2^-16
    priors    the sums of a step, in steps of 2^-32
    training  examples, images with a loss, loss times these images, batches, the six `HoldoutSums`, then
              examples x prompt, in steps of 2^-32

With n clients in a sum, a client refuses to send a word above 2^62 / n, so that no sum overflows. Sums of counts are
exact. The error of the prompts' average is at most 2^-33 n / (sum of the examples) before rounding to float32, so at
most 2^-33 if every client has an image to train on.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CannotReply
from ..messages import Shared
from ..plurals import counted

COUNT_BITS, PROMPT_BITS = 16, 32
LARGEST_PROMPT = 2.0**15  # absolute value in a prompt; typical values are about 1
_TOTALS = 4  # words: examples, images with a loss, loss times these images, batches
Words = NDArray[np.uint64]
Values = NDArray[np.float64]


class HoldoutSums(NamedTuple):
    """Sums of the clients' hold-out checks; all 0 without a holdout."""

    images: float = 0.0  # held-out images on which the received average was compared with the last accepted model
    loss_before: float = 0.0  # summed loss of the accepted model on them
    loss_after: float = 0.0  # summed loss of the average on them
    averages_rolled_back: float = 0.0  # clients that keep their last model instead of the average
    trainings_rolled_back: float = 0.0  # clients that discarded their own training
    low_confidence: float = 0.0  # clients that did not train, because too few pseudo labels are likely to be right


NO_HOLDOUT_SUMS = HoldoutSums()
_HEAD = _TOTALS + len(HoldoutSums._fields)  # words before the prompts


@dataclass(frozen=True)
class Training:
    """The outcome of a client's training."""

    shared: Mapping[str, NDArray[Any]]  # the trained prompts that are averaged
    examples: int  # the weight in the average
    loss: float  # nan: not sent
    checks: HoldoutSums = NO_HOLDOUT_SUMS


@dataclass(frozen=True)
class TrainingSum:
    """The sum of all clients' training, at the server."""

    clients: tuple[str, ...]  # that replied
    examples: int  # images of the clients that send a loss
    batches: int  # of one epoch, over these clients
    loss: float  # mean over `examples`; nan: no client sends a loss
    mean: Shared | None  # the average of the prompts (Eq. 4); None: no client had images to train on
    checks: HoldoutSums = NO_HOLDOUT_SUMS
    updates: Mapping[str, Shared] = field(default_factory=dict)  # trained prompts by client; empty with masks
    holdouts: tuple[HoldoutSums, ...] = ()  # of each client, if there are enough to outvote a Byzantine one


class InvalidMaskedUpdate(Exception):
    """A sum that honest clients cannot produce."""


def encode_counts(counts: Values, clients: int) -> Words:
    return _encode(np.ldexp(counts, COUNT_BITS), clients)


def decode_counts(total: Words) -> NDArray[np.int64]:
    """Decode the class counts T, (C,), rounded and clipped at 0, because noise is fractional and may be negative."""
    return np.maximum(np.rint(_decode(total, COUNT_BITS)), 0).astype(np.int64)


def encode_sums(values: Values, clients: int) -> Words:
    return _encode(np.ldexp(values, PROMPT_BITS), clients)


def decode_sums(total: Words) -> Values:
    return _decode(total, PROMPT_BITS)


def training_size(shared: Shared) -> int:
    """Return the number of words in a masked reply to `Train`."""
    return _HEAD + sum(prompt.size for prompt in shared.values())


def encode_training(training: Training, batch: int, clients: int) -> Words:
    """Encode a client's training; its prompts are multiplied by its examples, for the weighted mean of Eq. 4."""
    prompts = flatten(training.shared)
    if not np.abs(prompts).max(initial=0.0) <= LARGEST_PROMPT:  # also when not a number
        raise CannotReply(f"a prompt has a value beyond {LARGEST_PROMPT:g}: training diverged, try a lower train.lr")
    with_loss = 0 if math.isnan(training.loss) else training.examples
    loss = training.loss if with_loss else 0.0
    head = np.ldexp([training.examples, with_loss, loss, batches_of(with_loss, batch)], PROMPT_BITS)
    head[2] *= with_loss  # the loss is summed over images
    checks = np.ldexp(training.checks, PROMPT_BITS)
    return _encode(np.concatenate([head, checks, training.examples * np.ldexp(prompts, PROMPT_BITS)]), clients)


def decode_training(total: Words, sent: Shared, clients: tuple[str, ...]) -> TrainingSum:
    """Decode the sum of all clients' words; `sent` has the names and shapes of the prompts."""
    values = _decode(total, PROMPT_BITS)
    examples, with_loss, loss, batches = values[:_TOTALS]
    if min(examples, with_loss, batches) < 0 or examples != round(examples):
        raise InvalidMaskedUpdate("the sum of the image counts is not a non-negative integer")
    mean = values[_HEAD:] / max(examples, 1)
    if np.abs(mean).max(initial=0.0) > LARGEST_PROMPT:
        raise InvalidMaskedUpdate(f"the average of the prompts is beyond {LARGEST_PROMPT:g}")
    mean_loss = float(loss / with_loss) if with_loss else math.nan
    average, checks = unflatten(mean, sent) if examples else None, HoldoutSums(*map(float, values[_TOTALS:_HEAD]))
    return TrainingSum(clients, int(with_loss), int(batches), mean_loss, average, checks)


def batches_of(examples: int, batch: int) -> int:
    return -(-examples // batch)


def flatten(prompts: Mapping[str, NDArray[Any]]) -> Values:
    """Flatten all prompts into one vector, in the order of their names."""
    rows = [prompts[name].astype(np.float64).ravel() for name in sorted(prompts)]
    return np.concatenate([np.zeros(0), *rows])


def unflatten(values: Values, like: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Invert `flatten`, with the names, shapes and dtypes of `like`."""
    start, prompts = 0, {}
    for name in sorted(like):
        prompts[name] = values[start : start + like[name].size].reshape(like[name].shape).astype(like[name].dtype)
        start += like[name].size
    return {name: prompts[name] for name in like}


def _encode(steps: Values, clients: int) -> Words:
    """Return numbers of steps of the grid as words; CannotReply if a sum of such words over clients could overflow."""
    largest = 2**62 // clients
    if not np.abs(steps).max(initial=0.0) <= largest:
        raise CannotReply(
            f"values are too large to be summed over {counted(clients, 'client')}: the sum might overflow"
        )
    return np.rint(steps).astype(np.int64).view(np.uint64)


def _decode(total: Words, bits: int) -> Values:
    return np.ldexp(total.view(np.int64).astype(np.float64), -bits)

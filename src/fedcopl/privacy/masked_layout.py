"""Layout of a masked reply: integers modulo 2^64, in the same order at every client.

    counts    one word per class, in steps of 2^-16
    priors    the sums of a step, in steps of 2^-32
    training  examples, images the loss is of, that loss times them, batches, six sums of the hold-out check, then
              examples x prompt, in steps of 2^-32

A client checks its own numbers so that no sum can overflow: with n clients in it, none may be above 2^62 / n. Counts
are summed exactly. The average of the prompts is wrong by at most 2^-33 n / (sum of the examples), and then rounded to
float32; so wherever every client has an image to train on, by at most 2^-33.
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
LARGEST_PROMPT = 2.0**15  # of any value in a prompt; typical values are about 1
_COUNTED = 4  # words of examples, loss and batches
Words = NDArray[np.uint64]
Values = NDArray[np.float64]


class HoldoutSums(NamedTuple):
    """The outcome of clients' hold-out checks in sums that can be added up; all 0 where there was nothing to check."""

    images: float = 0.0  # of the holdout, on which the received average was compared with the last accepted model
    loss_before: float = 0.0  # sum over them, by the accepted model
    loss_after: float = 0.0  # and by the average
    averages_rolled_back: float = 0.0  # clients that keep the model they had
    trainings_rolled_back: float = 0.0  # clients that discarded their own training
    low_confidence: float = 0.0  # clients that trained nothing, because too few of their labels are likely to be right


NO_HOLDOUT_SUMS = HoldoutSums()
_HEAD = _COUNTED + len(HoldoutSums._fields)  # words before the prompts


@dataclass(frozen=True)
class Training:
    """The outcome of a client's training."""

    shared: Mapping[str, NDArray[Any]]  # the prompts after it
    examples: int  # the weight in the average
    loss: float  # nan: not sent
    checks: HoldoutSums = NO_HOLDOUT_SUMS


@dataclass(frozen=True)
class TrainingSum:
    """The training of all clients, as the server sees it."""

    clients: tuple[str, ...]
    examples: int  # of the clients that send a loss
    batches: int
    loss: float
    mean: Shared | None  # the average of the prompts (Eq. 4); None: no client had images to train on
    checks: HoldoutSums = NO_HOLDOUT_SUMS
    updates: Mapping[str, Shared] = field(default_factory=dict)  # of each client, without secure aggregation
    holdouts: tuple[HoldoutSums, ...] = ()  # of each client, where there are enough to outvote a Byzantine one


class InvalidMaskedUpdate(Exception):
    """A sum that no honest clients can have."""


def count_words(counts: Values, clients: int) -> Words:
    return _words(np.ldexp(counts, COUNT_BITS), clients)


def totals_of(total: Words) -> NDArray[np.int64]:
    """Return T, rounded and clipped at 0: noise is fractional and may be negative."""
    return np.maximum(np.rint(_values(total, COUNT_BITS)), 0).astype(np.int64)


def adapted_words(values: Values, clients: int) -> Words:
    return _words(np.ldexp(values, PROMPT_BITS), clients)


def adapted_sums(total: Words) -> Values:
    return _values(total, PROMPT_BITS)


def training_size(shared: Shared) -> int:
    return _HEAD + sum(prompt.size for prompt in shared.values())


def training_words(training: Training, batch: int, clients: int) -> Words:
    """Encode a training, weighted by its examples, so that the sum over the clients is that of Eq. 4."""
    prompts = flat(training.shared)
    if not np.abs(prompts).max(initial=0.0) <= LARGEST_PROMPT:  # also when not a number
        raise CannotReply(f"a prompt has a value beyond {LARGEST_PROMPT:g}: training diverged, try a lower train.lr")
    with_loss = 0 if math.isnan(training.loss) else training.examples
    head = np.ldexp(
        [training.examples, with_loss, training.loss if with_loss else 0.0, batches_of(with_loss, batch)], PROMPT_BITS
    )
    head[2] *= with_loss
    checks = np.ldexp(training.checks, PROMPT_BITS)
    return _words(np.concatenate([head, checks, training.examples * np.ldexp(prompts, PROMPT_BITS)]), clients)


def training_sum(total: Words, sent: Shared, clients: tuple[str, ...]) -> TrainingSum:
    """Decode the sum of all clients' words; the prompts get the names and shapes of those sent."""
    values = _values(total, PROMPT_BITS)
    examples, with_loss, loss, batches = values[:_COUNTED]
    if min(examples, with_loss, batches) < 0 or examples != round(examples):
        raise InvalidMaskedUpdate("the sum of the image counts is not a non-negative integer")
    mean = values[_HEAD:] / max(examples, 1)
    if np.abs(mean).max(initial=0.0) > LARGEST_PROMPT:
        raise InvalidMaskedUpdate(f"the average of the prompts is beyond {LARGEST_PROMPT:g}")
    mean_loss = float(loss / with_loss) if with_loss else math.nan
    average, checks = shaped(mean, sent) if examples else None, HoldoutSums(*map(float, values[_COUNTED:_HEAD]))
    return TrainingSum(clients, int(with_loss), int(batches), mean_loss, average, checks)


def batches_of(examples: int, batch: int) -> int:
    return -(-examples // batch)


def flat(prompts: Mapping[str, NDArray[Any]]) -> Values:
    """Flatten all prompts into one vector, in the order of their names."""
    rows = [prompts[name].astype(np.float64).ravel() for name in sorted(prompts)]
    return np.concatenate([np.zeros(0), *rows])


def shaped(values: Values, like: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Invert `flat`, with the shapes and dtypes of `like`."""
    names = sorted(like)
    parts = np.split(values, np.cumsum([like[name].size for name in names])[:-1])
    cut = {name: part.reshape(like[name].shape) for name, part in zip(names, parts, strict=True)} if names else {}
    return {name: cut[name].astype(like[name].dtype) for name in like}


def _words(steps: Values, clients: int) -> Words:
    largest = 2**62 // clients
    if not np.abs(steps).max(initial=0.0) <= largest:
        raise CannotReply(
            f"values are too large to be summed over {counted(clients, 'client')}: the sum might overflow"
        )
    return np.rint(steps).astype(np.int64).view(np.uint64)


def _values(total: Words, bits: int) -> Values:
    return np.ldexp(total.view(np.int64).astype(np.float64), -bits)

"""Why a question must not be answered: what a server sends is looked at before it touches anything of a client's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithm.evidence import SHARPNESSES, TEMPERINGS
from ..messages import Adapt, Ask, Estimate, Evaluate, Select, Shared, Train
from ..privacy.masked_layout import LARGEST_PROMPT

MOST_READINGS = 1 + max(len(SHARPNESSES), len(TEMPERINGS))  # that one question of the priors holds
LARGEST_NUMBER = 1e15  # of any number that the server learnt for the priors
LARGEST_TOTAL = 2**62  # of counts, over all classes and clients


@dataclass(frozen=True)
class Expected:
    """What a client knows of the questions of its run before the first one comes."""

    prompts: Shared  # those that are averaged, in their shapes
    classes: int  # C
    width: int  # d, numbers of an image feature
    experts: int = 0  # at most so many other clients' prompts come with a `Train`


def what_is_wrong_with(ask: Ask, expected: Expected) -> str | None:
    """The first reason, or None."""
    match ask:
        case Estimate(shared=shared) | Evaluate(shared=Mapping() as shared):
            wrong = _wrong_prompts(shared, expected.prompts)
        case Train():
            wrong = _wrong_training(ask, expected)
        case Select(totals=totals):
            wrong = _wrong_totals(totals, ask.clients, expected.classes)
        case Adapt():
            wrong = _wrong_adaptation(ask, expected)
        case _:
            wrong = iter(())  # keys and shares are looked at where they are used
    return next(wrong, None)


def _wrong_prompts(shared: Shared, known: Shared) -> Iterator[str]:
    if set(shared) != set(known):
        yield f"it comes with the prompts {sorted(shared)!r:.80}; in this run they are {sorted(known)}"
        return
    for name, value in shared.items():
        if value.shape != known[name].shape or value.dtype != known[name].dtype:
            yield f"prompt {name} is {value.dtype}{value.shape} instead of {known[name].dtype}{known[name].shape}"
        elif not np.isfinite(value).all():
            yield f"prompt {name} is not finite"
        elif np.abs(value).max(initial=0.0) > LARGEST_PROMPT:
            yield f"prompt {name} has a value beyond {LARGEST_PROMPT:g}"


def _wrong_training(ask: Train, expected: Expected) -> Iterator[str]:
    yield from _wrong_prompts(ask.shared, expected.prompts)
    if len(ask.experts) > expected.experts:
        yield f"it comes with {len(ask.experts)} other clients' prompts; in this run there are {expected.experts}"
    for expert in ask.experts:
        yield from _wrong_prompts(expert, expected.prompts)


def _wrong_totals(totals: NDArray[np.int64] | None, clients: int, classes: int) -> Iterator[str]:
    if clients < 1:
        yield f"its sums are over {clients} clients"
    if totals is None:
        return
    if totals.shape != (classes,):
        yield f"its totals are not one number for each of {classes} classes"
    elif (totals < 0).any() or totals.astype(np.float64).sum() > LARGEST_TOTAL:
        yield "its totals are no numbers of images"


def _wrong_adaptation(ask: Adapt, expected: Expected) -> Iterator[str]:
    if ask.width != expected.width:
        yield f"it speaks of features of {ask.width} numbers; this model's have {expected.width}"
    if len(ask.readings) > MOST_READINGS:
        yield f"it holds {len(ask.readings)} readings; no step of the priors has more than {MOST_READINGS}"
    if len(ask.readings) != 1 and ask.wanted in ("classes", "clusters", "keep"):
        yield f"it holds {len(ask.readings)} readings where there is one"
    for reading in ask.readings:
        yield from _wrong_reading(reading, expected, with_prototypes=ask.wanted == "keep")
    if ask.prototypes:
        yield from _wrong_arrays(ask.prototypes, _prototype_shapes(expected))


def _wrong_reading(
    reading: Mapping[str, NDArray[np.float64]], expected: Expected, *, with_prototypes: bool
) -> Iterator[str]:
    shapes: dict[str, tuple[int, ...]] = {"bias": (expected.classes,), "mix": (expected.classes,), "numbers": (5,)}
    if with_prototypes and set(reading) != set(shapes):
        shapes |= _prototype_shapes(expected)
    yield from _wrong_arrays(reading, shapes)
    if "mix" in reading and (reading["mix"] < 0).any():
        yield "a mix of classes is below 0"
    if "numbers" in reading and (reading["numbers"] < 0).any():
        yield "a number of a reading is below 0"


def _prototype_shapes(expected: Expected) -> dict[str, tuple[int, ...]]:
    classes, width = expected.classes, expected.width
    return {"images": (classes,), "total": (classes, width), "whiten": (width, width)}


def _wrong_arrays(arrays: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    if set(arrays) != set(shapes):
        yield f"it holds {sorted(arrays)!r:.80} instead of {sorted(shapes)}"
        return
    for name, value in arrays.items():
        if value.shape != shapes[name]:
            yield f"{name} is of shape {value.shape} instead of {shapes[name]}"
        elif not np.abs(value).max(initial=0.0) <= LARGEST_NUMBER:  # also when not a number
            yield f"{name} is not finite, or beyond {LARGEST_NUMBER:g}"

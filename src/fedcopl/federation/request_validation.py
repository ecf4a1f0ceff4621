"""Why a question must not be answered: what a server sends is looked at before it touches anything of a client's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..messages import Adapt, Estimate, Evaluate, Request, Select, Shared, Train
from ..plurals import counted
from ..privacy.masked_layout import LARGEST_PROMPT

MAX_TOTALS = 100  # steps of the priors whose totals one request can hold
MIN_SHARE = 1e-4  # of a uniform share, that every class has in a known class prior
LARGEST_NUMBER = 1e15  # of any total for the priors
LARGEST_TOTAL = 2**62  # of counts, over all classes and clients


@dataclass(frozen=True)
class Expected:
    """What a client knows of the questions of its run before the first one comes."""

    prompts: Shared  # those that are averaged, in their shapes
    classes: int  # C
    width: int  # d, numbers of an image feature
    experts: int = 0  # at most so many other clients' prompts come with a `Train`


def validate_request(request: Request, expected: Expected) -> str | None:
    """The first reason, or None."""
    match request:
        case Estimate(shared=shared) | Evaluate(shared=Mapping() as shared):
            wrong = _wrong_prompts(shared, expected.prompts)
        case Train():
            wrong = _wrong_training(request, expected)
        case Select(totals=totals):
            wrong = _wrong_totals(totals, request.clients, expected.classes)
        case Adapt():
            wrong = _wrong_adaptation(request, expected)
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


def _wrong_training(request: Train, expected: Expected) -> Iterator[str]:
    yield from _wrong_prompts(request.shared, expected.prompts)
    if len(request.experts) > expected.experts:
        others = counted(len(request.experts), "other client")
        yield f"it comes with the prompts of {others}; in this run there are {expected.experts}"
    for expert in request.experts:
        yield from _wrong_prompts(expert, expected.prompts)


def _wrong_totals(totals: NDArray[np.int64] | None, clients: int, classes: int) -> Iterator[str]:
    if clients < 1:
        yield f"its sums are over {counted(clients, 'client')}"
    if totals is None:
        return
    if totals.shape != (classes,):
        yield f"its totals are not one number for each of {classes} classes"
    elif (totals < 0).any() or totals.astype(np.float64).sum() > LARGEST_TOTAL:
        yield "its totals are no numbers of images"


def _wrong_adaptation(request: Adapt, expected: Expected) -> Iterator[str]:
    """Sizes and contents of totals are checked where they are used, against the client's own part in them."""
    prior = request.class_prior
    if len(request.totals) > MAX_TOTALS or any(
        total.ndim != 1 or total.dtype != np.float64 for total in request.totals
    ):
        yield "its totals are not those of steps of the priors"
    if any(not np.abs(total).max(initial=0.0) <= LARGEST_NUMBER for total in request.totals):  # also when not a number
        yield f"its totals are not finite, or beyond {LARGEST_NUMBER:g}"
    if prior is not None and (prior.shape != (expected.classes,) or not _is_class_prior(prior)):
        yield "its class prior is not a positive share for each class"


def _is_class_prior(shares: NDArray[np.float64]) -> bool:
    fine = np.isfinite(shares).all() and abs(shares.sum() - 1) < 1e-6
    return bool(fine and shares.min() >= MIN_SHARE / len(shares))

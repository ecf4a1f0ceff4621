"""Validation of each reply and request, before anything is computed from them.

The server cannot see images. It checks that a reply has the requested form, and that its numbers agree with those that
the client reported before: the number of images does not change, no more images are confident, selected or trained on,
and its sums for the priors are possible for that number of images. A client checks shapes and values of each request;
`prior_estimation` checks the totals of the priors against the client's own sums.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithm.holdout import LARGEST_LOSS
from ..config import RunConfig
from ..labelers import choose_labeler
from ..messages import (
    REPLY_TO,
    Adapt,
    Adapted,
    Estimate,
    Estimated,
    Evaluate,
    Evaluated,
    KeyShares,
    PublicKeys,
    Reply,
    Request,
    Select,
    Selected,
    Shared,
    ShareKeys,
    Train,
    Trained,
    Unmask,
    Unmasked,
)
from ..plurals import counted
from ..priors.estimation import Estimation
from ..priors.validation import SLACK, images_of, validate_sums
from ..privacy.mask_session import KEYS, SEALED, SHARE
from ..privacy.masked_layout import LARGEST_PROMPT, HoldoutSums, training_size

_MAX_IMAGES = 2**31  # images of one client, also the largest loss; `algorithm.allocate` is exact for such sums
_MAX_SUM = 1e12  # L2 norm of a client's sums for a step of the priors
_MAX_VOUCHER = 1000  # bytes of a public key and a signature
_MAX_REASON = 300  # characters: a reason may quote names that the client sent
_MAX_STEPS = 100  # steps of the priors whose totals one request can have
_MAX_TOTAL = 1e15  # absolute value of a total for the priors
_MAX_COUNT = 2**62  # sum of the counts over all classes and clients
_MIN_SHARE = 1e-4  # smallest share in a class prior, relative to the uniform share
_DEFAULT = RunConfig()


@dataclass(frozen=True)
class ReportedCounts:
    """Numbers of images that a client has reported in this run; None: not reported."""

    images: int | None = None  # n_k
    confident: int | None = None  # sum of the last counts u_k
    selected: int | None = None  # at the last refresh
    tested: int | None = None  # test images

    def updated(self, request: Request, reply: Reply, estimation: Estimation | None = None) -> "ReportedCounts":
        """Return the counts including those of a valid reply."""
        match request, reply:
            case Adapt(step=0), Adapted(sums=sums) if sums is not None and self.images is None and estimation:
                return replace(self, images=images_of(estimation.steps[0], sums, estimation.settings.classes))
            case _, Estimated(counts=counts) if counts is not None:
                return replace(self, confident=int(counts.sum()))
            case _, Selected(images=images, examples=selected) if images is not None:
                return replace(self, images=images, selected=selected)
            case _, Evaluated(examples=tested) if tested:
                return replace(self, tested=tested)
        return self


NOTHING_REPORTED = ReportedCounts()


def validate_reply(
    request: Request,
    reply: Reply,
    classes: int,
    config: RunConfig = _DEFAULT,
    reported: ReportedCounts = NOTHING_REPORTED,
    estimation: Estimation | None = None,
) -> str | None:
    """Return why a reply must not be used; None if it is valid.

    Args:
        classes: C.
        config: The settings of the run; with noise, counts may be negative and cannot be compared.
        reported: The client's earlier reports.
        estimation: The prior estimation with the steps so far.
    """
    reasons = _invalid_form(request, reply, classes, config.privacy.noise_multiplier > 0, estimation)
    reason = next(reasons, None) or next(_inconsistent(request, reply, classes, config, reported, estimation), None)
    return reason and reason[:_MAX_REASON]


def _invalid_form(
    request: Request, reply: Reply, classes: int, has_noise: bool, estimation: Estimation | None
) -> Iterator[str]:
    """Yield errors in the type, shape and values of a reply, without reference to earlier replies."""
    if type(reply) is not REPLY_TO[type(request)]:
        yield f"replied to {type(request).__name__} with {type(reply).__name__}"
        return
    size = 0  # number of requested sums or masked integers
    if isinstance(request, Adapt) and estimation is not None and request.step < len(estimation.steps):
        size = estimation.size(request.step)
    match request, reply:
        case ((Adapt() | Estimate() | Train()), (Adapted() | Estimated() | Trained())) if (
            request.peers or reply.masked is not None
        ):
            if isinstance(request, Estimate | Train):
                size = classes if isinstance(request, Estimate) else training_size(request.shared)
            yield from _invalid_masked(reply.masked, size, bool(request.peers))
        case Train(), Trained():
            yield from _invalid_training(request, reply)
        case Adapt(), Adapted(sums=sums):
            if sums is None and size:
                yield "does not send the requested sums"
            elif sums is not None and (sums.shape != (size,) or sums.dtype != np.float64):
                yield f"its sums are not {size} numbers"
            elif sums is not None and not sums @ sums < _MAX_SUM**2:  # also when not a number
                yield "its sums are not finite or too large"
        case _, Estimated(counts=counts) if counts is not None:
            yield from _invalid_counts(counts, classes, has_noise)
        case _, Evaluated(correct=correct, examples=examples):
            yield from _invalid_image_counts(examples, correct)
            if correct > examples:
                yield "reports more correct predictions than test images"
        case _, Selected(images=images, examples=selected, unchanged=unchanged):
            parts = [count for count in (selected, unchanged) if count is not None]
            if images is None and parts:
                yield "reports selected or unchanged images, but not how many images it has"
            if images is not None:
                yield from _invalid_image_counts(images, *parts)
                if max(parts, default=0) > images:
                    yield "reports more selected or unchanged images than it has"
        case _:
            yield from _invalid_keys(request, reply)


def _invalid_keys(request: Request, reply: Reply) -> Iterator[str]:
    match request, reply:
        case _, PublicKeys(keys=keys, voucher=voucher):
            from ..privacy.masking import are_valid_public_keys  # brings cryptography, which is an extra

            if len(keys) != KEYS or not are_valid_public_keys(keys):
                yield "its keys are not three public keys"
            if len(voucher) > _MAX_VOUCHER:
                yield f"its voucher is longer than {_MAX_VOUCHER} bytes"
        case ShareKeys(keys=recipients), KeyShares(sealed=sealed):
            yield from _invalid_shares(sealed, set(recipients), SEALED)
            if len(sealed) != len(recipients):
                yield "shares are missing"
        case Unmask(sealed=members), Unmasked(shares=shares):
            yield from _invalid_shares(shares, set(members), SHARE)


def _invalid_masked(masked: NDArray[Any] | None, size: int, was_requested: bool) -> Iterator[str]:
    if not was_requested:
        yield "sent a masked reply to a request without secure aggregation"
    elif masked is None or masked.dtype != np.uint64 or masked.shape != (size,):
        yield f"its masked reply is not {size} integers"


def _invalid_shares(shares: Mapping[str, bytes], recipients: set[str], size: int) -> Iterator[str]:
    if not set(shares) <= recipients or any(len(share) != size for share in shares.values()):
        yield "its shares are not those requested"


def _invalid_training(request: Train, reply: Trained) -> Iterator[str]:
    if set(reply.shared) != set(request.shared):
        yield f"sent the prompts {sorted(reply.shared)} instead of {sorted(request.shared)}"
        return
    for reason in _invalid_prompts(reply.shared, request.shared):  # "instead of": the shape or dtype is wrong
        yield reason if "instead of" in reason else f"{reason}: training diverged, try a lower train.lr"
    yield from _invalid_image_counts(reply.examples)
    if not isinstance(reply.loss, float):
        yield f"{reply.loss!r} is not a loss"
    elif abs(reply.loss) > _MAX_IMAGES:  # nan: there was nothing to train on, or the loss is not sent
        yield f"its loss is {reply.loss:g}: training diverged, try a lower train.lr"
    if len(reply.checks) not in (0, len(HoldoutSums._fields)):
        yield f"sent {len(reply.checks)} sums of its hold-out check instead of {len(HoldoutSums._fields)}"
    elif not all(isinstance(number, float) and 0 <= number <= _MAX_IMAGES for number in reply.checks):
        yield "the sums of its hold-out check are not possible sums of losses and images"


def _invalid_counts(counts: NDArray[Any], classes: int, has_noise: bool) -> Iterator[str]:
    if counts.shape != (classes,) or not np.issubdtype(counts.dtype, np.integer):
        yield f"counts are not one whole number for each of {classes} classes"
    elif np.abs(counts.astype(np.float64)).sum() > _MAX_IMAGES:
        yield f"counts are of more than {_MAX_IMAGES:,} images"
    elif (counts < 0).any() and not has_noise:
        yield "counts are negative"


def _invalid_image_counts(*numbers: object) -> Iterator[str]:
    for number in numbers:
        if not isinstance(number, int) or number < 0:
            yield f"{number!r} is not a number of images"
        elif number > _MAX_IMAGES:
            yield f"reports more than {_MAX_IMAGES:,} images"


def _inconsistent(
    request: Request,
    reply: Reply,
    classes: int,
    config: RunConfig,
    reported: ReportedCounts,
    estimation: Estimation | None,
) -> Iterator[str]:
    """Yield each contradiction to the client's earlier reports; with noise, image counts cannot be compared."""
    if config.privacy.noise_multiplier:
        if isinstance(reply, Trained) and reply.masked is None and reply.examples > 1:
            yield "its weight is above 1, but with noise all clients weigh the same"
        return
    match request, reply:
        case Adapt(), Adapted(sums=sums) if sums is not None and estimation is not None:
            step, settings, images = estimation.steps[request.step], estimation.settings, reported.images
            if images is None and not request.step:
                images = images_of(step, sums, classes)
            if reason := validate_sums(step, sums, settings.classes, settings.width, images):
                yield reason
        case _, Estimated(counts=counts) if counts is not None:
            yield from _too_many("is confident of {:,} images", int(counts.sum()), "has {:,}", reported.images)
        case _, Selected(images=images) if images is not None:
            if reported.images not in (None, images):
                yield f"has {counted(images, 'image')}, but reported {reported.images:,} before"
            yield from _too_many("was confident of {:,} images", reported.confident or 0, "has {:,}", images)
        case _, Trained(examples=examples, checks=checks):
            labels = choose_labeler(config).labels_per_image(classes)
            limit = None if reported.selected is None else reported.selected * labels
            yield from _too_many("trained on {:,} images", examples, "selected {:,}", limit)
            if checks:
                yield from _impossible_holdout(HoldoutSums(*checks), limit)
        case _, Evaluated(examples=tested) if tested and reported.tested not in (None, tested):
            yield f"tested {counted(tested, 'image')}, but {reported.tested:,} before"


def _too_many(claim: str, number: int, report: str, limit: int | None) -> Iterator[str]:
    """Yield an error if a number of images exceeds `limit`, which the client reported; None: not reported."""
    if limit is not None and number > limit:
        yield f"{claim.format(number)}, but {report.format(limit)} by its own reports"


def _impossible_holdout(sums: HoldoutSums, limit: int | None) -> Iterator[str]:
    if limit is not None and sums.images > limit:
        yield f"its holdout has {counted(sums.images, 'image')}, but it selected {limit:,} by its own reports"
    if max(sums.loss_before, sums.loss_after) > LARGEST_LOSS * sums.images * (1 + SLACK):
        yield "the losses on its holdout are too large for the number of images"
    if not {sums.averages_rolled_back, sums.trainings_rolled_back, sums.low_confidence} <= {0.0, 1.0}:
        yield "a count of clients in its hold-out check is neither 0 nor 1"


@dataclass(frozen=True)
class Expected:
    """Shapes and sizes of all requests of a run."""

    prompts: Shared  # the averaged prompts in their shapes
    classes: int  # C
    experts: int = 0  # maximum number of other clients' prompts in a `Train` request


def validate_request(request: Request, expected: Expected) -> str | None:
    """Return why a request must be refused; None if it is valid. Keys and shares are checked where they are used."""
    return next(_invalid_request(request, expected), None)


def _invalid_request(request: Request, expected: Expected) -> Iterator[str]:
    match request:
        case Estimate(shared=shared) | Evaluate(shared=Mapping() as shared):
            yield from _invalid_prompts(shared, expected.prompts)
        case Train():
            yield from _invalid_prompts(request.shared, expected.prompts)
            if len(request.experts) > expected.experts:
                others = counted(len(request.experts), "other client")
                yield f"it has the prompts of {others}; in this run there are at most {expected.experts}"
            for expert in request.experts:
                yield from _invalid_prompts(expert, expected.prompts)
        case Select(totals=totals, clients=clients):
            if clients < 1:
                yield f"its sums are over {counted(clients, 'client')}"
            if totals is not None and totals.shape != (expected.classes,):
                yield f"its totals are not one number for each of {expected.classes} classes"
            elif totals is not None and ((totals < 0).any() or totals.astype(np.float64).sum() > _MAX_COUNT):
                yield "its totals are not possible numbers of images"
        case Adapt(totals=steps, class_prior=prior):
            if len(steps) > _MAX_STEPS or any(total.ndim != 1 or total.dtype != np.float64 for total in steps):
                yield f"its totals for the priors are more than {_MAX_STEPS}, or not vectors of float64"
            if any(not np.abs(total).max(initial=0.0) <= _MAX_TOTAL for total in steps):  # also when not a number
                yield f"its totals for the priors are not finite, or beyond {_MAX_TOTAL:g}"
            if prior is not None and not _is_class_prior(prior, expected.classes):
                yield "its class prior is not a positive share for each class"


def _invalid_prompts(prompts: Shared, expected: Shared) -> Iterator[str]:
    if set(prompts) != set(expected):
        yield f"the prompts are {sorted(prompts)!r:.80}; in this run they are {sorted(expected)}"
        return
    for name, value in prompts.items():
        like = expected[name]
        if value.shape != like.shape or value.dtype != like.dtype:
            yield f"prompt {name} is {value.dtype}{value.shape} instead of {like.dtype}{like.shape}"
        elif not np.isfinite(value).all():
            yield f"prompt {name} is not finite"
        elif np.abs(value).max(initial=0.0) > LARGEST_PROMPT:
            yield f"prompt {name} has a value beyond {LARGEST_PROMPT:g}"


def _is_class_prior(shares: NDArray[np.float64], classes: int) -> bool:
    if shares.shape != (classes,) or not np.isfinite(shares).all():
        return False
    return bool(abs(shares.sum() - 1) < 1e-6 and shares.min() >= _MIN_SHARE / classes)

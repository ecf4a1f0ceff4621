"""Why a reply must not be used: one client's rubbish must not spoil the average."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..messages import (
    REPLY_TO,
    Adapt,
    Adapted,
    Estimate,
    Estimated,
    Evaluated,
    Introduced,
    Reply,
    Request,
    Selected,
    Shared,
    SharedOut,
    ShareOut,
    Train,
    Trained,
    Unmask,
    Unmasked,
)
from ..priors.estimation import Estimation
from ..privacy.mask_session import KEYS, SEALED, SHARE
from ..privacy.masked_layout import LARGEST_PROMPT, Checks, training_size

MOST = 2**31  # images of one client, and of a loss; `algorithm.allocate` is exact for sums of that size
LARGEST_SUM = 1e12  # length of all numbers together that a site tells for a step of the priors
LONGEST_VOUCHER = 1000  # bytes: a public key and a signature
LONGEST = 300  # letters of a reason: names in it are somebody else's


def validate_reply(
    request: Request, reply: Reply, classes: int, *, has_noise: bool = False, estimation: Estimation | None = None
) -> str | None:
    """The reason, or None. Where the clients add noise, their counts may be below 0."""
    sums = _sums_of(request, estimation)
    wrong = _wrong(request, reply, classes, has_noise, sums)
    return wrong and wrong[:LONGEST]


def _sums_of(request: Request, estimation: Estimation | None) -> int:
    """How many sums a request of the priors asks for."""
    requests = isinstance(request, Adapt) and estimation is not None and request.step < len(estimation.steps)
    return estimation.size(request.step) if requests and estimation is not None and isinstance(request, Adapt) else 0


def _wrong(request: Request, reply: Reply, classes: int, has_noise: bool, sums_asked: int) -> str | None:
    if type(reply) is not REPLY_TO[type(request)]:
        return f"answered {type(request).__name__} with {type(reply).__name__}"
    match request, reply:
        case ((Adapt() | Estimate() | Train()), (Adapted() | Estimated() | Trained())) if (
            request.peers or reply.masked is not None
        ):
            return _wrong_masked(request, reply, classes, sums_asked)
        case Train(shared=sent), Trained(shared=back, examples=examples, loss=loss, checks=checks):
            return _wrong_prompts(sent, back) or _wrong_count(examples) or _wrong_loss(loss) or _wrong_checks(checks)
        case Adapt(), Adapted(sums=sums):
            return _wrong_sums(sums, sums_asked)
        case _, Estimated(counts=counts):
            return None if counts is None else _wrong_counts(counts, classes, has_noise)
        case _, Evaluated(correct=correct, examples=examples):
            return _wrong_counted(examples, correct) or (None if correct <= examples else "more right than there are")
        case _, Selected():
            return _wrong_choice(reply)
    return _wrong_keys(request, reply)


def is_masked(request: Adapt | Estimate | Train, reply: Adapted | Estimated | Trained) -> bool:
    return bool(request.peers) or reply.masked is not None


def _wrong_sums(sums: NDArray[Any] | None, size: int) -> str | None:
    if sums is None:
        return "does not tell the sums it was asked for" if size else None
    if sums.shape != (size,) or sums.dtype != np.float64:
        return f"its sums are not {size} numbers"
    return None if sums @ sums < LARGEST_SUM**2 else "its sums are no numbers of images"


def _masked_size(request: Adapt | Estimate | Train, classes: int, sums_asked: int) -> int:
    match request:
        case Adapt():
            return sums_asked
        case Estimate():
            return classes
        case Train():
            return training_size(request.shared)


def _wrong_masked(
    request: Adapt | Estimate | Train, reply: Adapted | Estimated | Trained, classes: int, sums_asked: int
) -> str | None:
    size = _masked_size(request, classes, sums_asked)
    masked = reply.masked
    if not request.peers:
        return "sent a masked answer that nobody asked for"
    if masked is None or masked.dtype != np.uint64 or masked.shape != (size,):
        return f"its masked answer is not {size} whole numbers"
    return None


def _wrong_keys(request: Request, reply: Reply) -> str | None:
    match request, reply:
        case _, Introduced(keys=keys, voucher=voucher):
            return _wrong_public(keys) or ("its voucher is none" if len(voucher) > LONGEST_VOUCHER else None)
        case ShareOut(keys=asked), SharedOut(sealed=sealed):
            return _wrong_pieces(sealed, asked, SEALED) or (None if len(sealed) == len(asked) else "shares are missing")
        case Unmask(survivors=survivors, dropped=lost), Unmasked(shares=shares):
            return _wrong_pieces(shares, (*survivors, *lost), SHARE)
    return None


def _wrong_public(keys: bytes) -> str | None:
    from ..privacy.masking import are_public  # brings cryptography, which is an extra

    return None if len(keys) == KEYS and are_public(keys) else "its keys are not three public keys"


def _wrong_pieces(pieces: Mapping[str, bytes], asked: Any, size: int) -> str | None:
    strange = not set(pieces) <= set(asked) or any(len(piece) != size for piece in pieces.values())
    return "its shares are not those that were asked for" if strange else None


def _wrong_prompts(sent: Shared, back: Shared) -> str | None:
    if set(back) != set(sent):
        return f"sent the prompts {sorted(back)} instead of {sorted(sent)}"
    for name, value in back.items():
        if value.shape != sent[name].shape or value.dtype != sent[name].dtype:
            return f"prompt {name} is {value.dtype}{value.shape} instead of {sent[name].dtype}{sent[name].shape}"
        if not np.isfinite(value).all():
            return f"prompt {name} is not finite: training diverged, try a lower train.lr"
        if np.abs(value).max(initial=0.0) > LARGEST_PROMPT:
            return f"prompt {name} has a value beyond {LARGEST_PROMPT:g}: training diverged, try a lower train.lr"
    return None


def _wrong_counts(counts: NDArray[Any], classes: int, has_noise: bool) -> str | None:
    if counts.shape != (classes,) or not np.issubdtype(counts.dtype, np.integer):
        return f"counts are not one whole number for each of {classes} classes"
    if np.abs(counts.astype(np.float64)).sum() > MOST:
        return f"counts are of more than {MOST:,} images"
    return "counts are negative" if (counts < 0).any() and not has_noise else None


def _wrong_choice(reply: Selected) -> str | None:
    parts = [number for number in (reply.examples, reply.unchanged) if number is not None]
    if reply.images is None:
        return "chose, but does not say of how many images" if parts else None
    return _wrong_counted(reply.images, *parts) or (
        "chose more images than it has" if max(parts, default=0) > reply.images else None
    )


def _wrong_counted(*numbers: object) -> str | None:
    return next(filter(None, map(_wrong_count, numbers)), None)


def _wrong_count(number: object) -> str | None:
    if isinstance(number, int) and number > MOST:
        return f"says it has more than {MOST:,} images"
    return None if isinstance(number, int) and number >= 0 else f"{number!r} is not a number of images"


def _wrong_checks(checks: tuple[object, ...]) -> str | None:
    """None are none: they are not told."""
    if len(checks) not in (0, len(Checks._fields)):
        return f"tells {len(checks)} sums of its guard instead of {len(Checks._fields)}"
    fine = all(isinstance(number, float) and 0 <= number <= MOST for number in checks)
    return None if fine else "the sums of its guard are no sums of losses and images"


def _wrong_loss(loss: object) -> str | None:
    """nan is none: there was nothing to train on, or it is not told."""
    if not isinstance(loss, float):
        return f"{loss!r} is not a loss"
    return f"its loss is {loss:g}: training diverged, try a lower train.lr" if abs(loss) > MOST else None

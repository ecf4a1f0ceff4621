"""What a site has said of itself, and why a reply that says otherwise must not be used.

A server cannot see images. It can hold a site to its own words: it has as many images at the end as at the beginning,
is sure of no more than it has, chooses no more, trains on no more than it chose, and every sum over its images that the
priors ask for is one that so many images can have.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..algorithm.guard import LARGEST_LOSS
from ..config import RunConfig
from ..messages import Adapt, Adapted, Ask, Estimated, Evaluated, Reply, Selected, Trained
from ..privacy.masked_layout import Checks, Values
from .adaptation import LARGEST_SQUARE

SLACK = 1e-3  # share by which sums of rounded numbers may differ from what they are exactly


@dataclass(frozen=True)
class Claims:
    """The numbers of images that a site has told so far in this run; None: not yet, or it does not tell."""

    images: int | None = None  # n_k
    sure: int | None = None  # of the last counts, u_k
    chosen: int | None = None  # at the last refresh
    tested: int | None = None


NO_CLAIMS = Claims()


def with_reply(said: Claims, ask: Ask, reply: Reply) -> Claims:
    """What is known after a reply that was found good."""
    match ask, reply:
        case Adapt(), Adapted(sums=sums) if sums is not None and ask.wanted in ("features", "predicted"):
            return replace(said, images=images_in(ask, sums)) if said.images is None else said
        case _, Estimated(counts=counts) if counts is not None:
            return replace(said, sure=int(counts.sum()))
        case _, Selected(images=images, examples=chosen) if images is not None:
            return replace(said, images=images, chosen=chosen)
        case _, Evaluated(examples=tested):
            return replace(said, tested=tested)
    return said


def contradiction(said: Claims, ask: Ask, reply: Reply, classes: int, config: RunConfig) -> str | None:
    """Why the reply cannot be true if what the site said before is; or None. Noise may say anything of one image."""
    if config.privacy.noise:
        return _contradicted_weight(reply)
    match ask, reply:
        case Adapt(), Adapted(sums=sums) if sums is not None:
            return impossible_sums(ask, sums, classes, said.images)
        case _, Estimated(counts=counts) if counts is not None:
            return _more("is sure of {:,} images", int(counts.sum()), "has {:,}", said.images)
        case _, Selected():
            return _contradicted_choice(said, reply)
        case _, Trained(examples=examples, checks=checks):
            most = None if said.chosen is None else said.chosen * times_chosen(config, classes)
            return _more("trained on {:,} images", examples, "chose {:,}", most) or _wrong_exam(checks, most)
        case _, Evaluated(examples=tested) if said.tested not in (None, tested):
            return f"tested {tested:,} images, and {said.tested:,} before"
    return None


def times_chosen(config: RunConfig, classes: int) -> int:
    """How often one image may be trained on in an epoch: some rules choose it for several classes."""
    return classes if config.labeler == "fpl" else 1


def _more(what: str, number: int, than: str, most: int | None) -> str | None:
    return None if most is None or number <= most else f"{what.format(number)}, but {than.format(most)} by its own word"


def _contradicted_weight(reply: Reply) -> str | None:
    wrong = isinstance(reply, Trained) and reply.masked is None and reply.examples > 1
    return "wants to weigh more than the others, where all weigh the same" if wrong else None


def _contradicted_choice(said: Claims, reply: Selected) -> str | None:
    if reply.images is None:
        return None
    if said.images not in (None, reply.images):
        return f"has {reply.images:,} images, but had {said.images:,} before"
    return _more("was sure of {:,} images", said.sure or 0, "has {:,}", reply.images)


def _wrong_exam(checks: tuple[float, ...], most: int | None) -> str | None:
    """What its guard can have found; nothing to hold against where it tells nothing."""
    if not checks:
        return None
    found = Checks(*checks)
    if most is not None and found.images > most:
        return f"its guard looked at {found.images:,.0f} images, but it chose {most:,} by its own word"
    if max(found.loss_had, found.loss_came) > LARGEST_LOSS * found.images * (1 + SLACK):
        return "the losses of its guard are beyond those of so few images"
    if not {found.average_harmed, found.training_harmed, found.too_doubtful} <= {0.0, 1.0}:
        return "its guard speaks for more than one client"
    return None


def images_in(ask: Adapt, sums: Values) -> int:
    """n, as the first sums of the priors tell it."""
    count = sums[0] if ask.wanted == "features" else sums[: len(sums) // max(len(ask.readings), 1)].sum()
    return round(float(count))


def impossible_sums(ask: Adapt, sums: Values, classes: int, images: int | None) -> str | None:
    """Why no images have these sums; n = `images` where it is known. They may be of one site, or of all together."""
    count = images_in(ask, sums) if images is None and ask.wanted in ("features", "predicted") else images
    match ask.wanted:
        case "features":
            return _impossible_features(sums, ask.width, count)
        case "predicted":
            return _impossible_mixes(sums.reshape(-1, classes), count)
        case "explained":
            return _impossible_evidence(ask, sums, classes, count)
        case "classes":
            return _impossible_classes(sums[:classes], sums[classes:].reshape(classes, -1), count)
    return None


def _impossible_features(sums: Values, width: int, images: int | None) -> str | None:
    """n, F and G of features of length one: |F| <= n, trace G = n, and n G - F F^T has no negative direction."""
    count, total, square = float(sums[0]), sums[1 : 1 + width], sums[1 + width :]
    if images is not None and _differ(count, images):
        return f"its features are of {count:,.0f} images, but it has {images:,} by its own word"
    if np.linalg.norm(total) > _at_most(count):
        return f"its features are too long for {count:,.0f} images"
    if width > LARGEST_SQUARE:
        return None if not _differ(float(square[0]), count) else "its features do not have length one"
    spread = square.reshape(width, width)
    if _differ(float(np.trace(spread)), count):
        return "its features do not have length one"
    around = count * (spread + spread.T) / 2 - np.outer(total, total)
    slack = _slack(count) * max(count, 1.0)
    return None if _has_no_direction_below(-slack, around) else "no features have such a spread"


def _has_no_direction_below(least: float, square: Values) -> bool:
    """Whether all eigenvalues are at least that: if Cholesky's roots exist, which is a tenth of the work."""
    try:
        np.linalg.cholesky(square - least * np.eye(len(square)))
    except np.linalg.LinAlgError:
        return bool(np.linalg.eigvalsh(square)[0] >= least)
    return True


def _impossible_mixes(rows: Values, images: int | None) -> str | None:
    """Posteriors of each image sum to one, so each row sums to n."""
    if rows.min(initial=0.0) < -_slack(images or 0):
        return "tells less than no image of a class"
    wrong = images is not None and abs(rows.sum(axis=1) - images).max(initial=0.0) > _slack(images)
    return f"its classes are not of {images:,} images in all" if wrong else None


def _impossible_evidence(ask: Adapt, sums: Values, classes: int, images: int | None) -> str | None:
    """The site's own mix explains its images no worse than that of all, and by at most log 1/t an image."""
    readings = len(ask.readings)
    evidence, held = sums[:readings], sums[readings : readings * (classes + 1)].reshape(readings, classes)
    confidence, agreeing = sums[readings * (classes + 1) : -1], float(sums[-1])
    wrong = _impossible_mixes(held, images)
    if wrong or images is None:
        return wrong
    rarest = min((float(reading["mix"].min()) for reading in ask.readings), default=1.0)
    most = images * max(math.log(1 / max(rarest, 1e-300)), 0.0)
    if evidence.min(initial=0.0) < -_slack(images) or evidence.max(initial=0.0) > _at_most(most):
        return f"its evidence is beyond that of {images:,} images"
    sure = (*confidence.tolist(), agreeing)
    return None if -_slack(images) <= min(sure) and max(sure) <= _at_most(images) else "is surer than of all its images"


def _impossible_classes(held: Values, total: Values, images: int | None) -> str | None:
    """N and S of features of length one: N >= 0, sum N = n, |S_c| <= N_c."""
    wrong = _impossible_mixes(held[None], images)
    far = np.linalg.norm(total, axis=1) > held + _slack(float(held.sum()))
    return wrong or ("the features of a class are too long for its images" if far.any() else None)


def _differ(number: float, wanted: float) -> bool:
    return abs(number - wanted) > _slack(wanted)


def _at_most(number: float) -> float:
    return number + _slack(number)


def _slack(number: float) -> float:
    return SLACK * (1 + abs(number))


def known_claims(stored: Mapping[str, Mapping[str, int | None]]) -> dict[str, Claims]:
    """From a checkpoint."""
    return {client: Claims(**said) for client, said in stored.items()}

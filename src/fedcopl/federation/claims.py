"""What a site has said of itself, and why a reply that says otherwise must not be used.

A server cannot see images. It can hold a site to its own words: it has as many images at the end as at the beginning,
is sure of no more than it has, chooses no more, trains on no more than it chose, and every sum over its images that the
priors ask for is one that so many images can have.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..algorithm.holdout import LARGEST_LOSS
from ..config import RunConfig
from ..labelers import choose_labeler
from ..messages import Adapt, Adapted, Estimated, Evaluated, Reply, Request, Selected, Trained
from ..plurals import counted
from ..priors.estimation import Estimation
from ..priors.validation import SLACK, images_of, invalid_sums
from ..privacy.masked_layout import Checks

Heard = tuple[Request, Reply]


@dataclass(frozen=True)
class Claims:
    """The numbers of images that a site has told so far in this run; None: not yet, or it does not tell."""

    images: int | None = None  # n_k
    sure: int | None = None  # of the last counts, u_k
    chosen: int | None = None  # at the last refresh
    tested: int | None = None


NO_CLAIMS = Claims()


def with_reply(said: Claims, request: Request, reply: Reply, estimation: Estimation | None = None) -> Claims:
    """What is known after a reply that was found good."""
    match request, reply:
        case Adapt(step=0), Adapted(sums=sums) if sums is not None and said.images is None and estimation is not None:
            return replace(said, images=images_of(estimation.steps[0], sums, estimation.settings.classes))
        case _, Estimated(counts=counts) if counts is not None:
            return replace(said, sure=int(counts.sum()))
        case _, Selected(images=images, examples=chosen) if images is not None:
            return replace(said, images=images, chosen=chosen)
        case _, Evaluated(examples=tested):
            return replace(said, tested=tested)
    return said


def contradictions(
    claims: Mapping[str, Claims],
    heard: Mapping[str, Heard],
    classes: int,
    config: RunConfig,
    estimation: Estimation | None = None,
) -> dict[str, str]:
    """Client -> why its reply cannot be true if what it said before is."""
    found = dict(_impossible(claims, heard, estimation)) if estimation and not config.privacy.noise_multiplier else {}
    for client, (request, reply) in heard.items():
        why = contradiction(claims.get(client, NO_CLAIMS), request, reply, classes, config)
        if why:
            found[client] = why
    return found


def _impossible(
    claims: Mapping[str, Claims], heard: Mapping[str, Heard], estimation: Estimation
) -> Iterator[tuple[str, str]]:
    """Clients whose sums for the priors no images have."""
    classes, width = estimation.settings.classes, estimation.settings.width
    for client, (request, reply) in heard.items():
        if isinstance(request, Adapt) and isinstance(reply, Adapted) and reply.sums is not None:
            images, step = claims.get(client, NO_CLAIMS).images, estimation.steps[request.step]
            known = images_of(step, reply.sums, classes) if images is None and not request.step else images
            reason = invalid_sums(step, reply.sums, classes, width, known)
            if reason:
                yield client, reason


def contradiction(said: Claims, request: Request, reply: Reply, classes: int, config: RunConfig) -> str | None:
    """The same of one client's reply, unless it tells sums. Noise may say anything of one image."""
    if config.privacy.noise_multiplier:
        return _contradicted_weight(reply)
    match request, reply:
        case _, Estimated(counts=counts) if counts is not None:
            return _more("is sure of {:,} images", int(counts.sum()), "has {:,}", said.images)
        case _, Selected():
            return _contradicted_choice(said, reply)
        case _, Trained(examples=examples, checks=checks):
            most = None if said.chosen is None else said.chosen * choose_labeler(config).labels_per_image(classes)
            return _more("trained on {:,} images", examples, "chose {:,}", most) or _wrong_exam(checks, most)
        case _, Evaluated(examples=tested) if said.tested not in (None, tested):
            return f"tested {counted(tested, 'image')}, and {said.tested:,} before"
    return None


def _more(what: str, number: int, than: str, most: int | None) -> str | None:
    return None if most is None or number <= most else f"{what.format(number)}, but {than.format(most)} by its own word"


def _contradicted_weight(reply: Reply) -> str | None:
    wrong = isinstance(reply, Trained) and reply.masked is None and reply.examples > 1
    return "wants to weigh more than the others, where all weigh the same" if wrong else None


def _contradicted_choice(said: Claims, reply: Selected) -> str | None:
    if reply.images is None:
        return None
    if said.images not in (None, reply.images):
        return f"has {counted(reply.images, 'image')}, but had {said.images:,} before"
    return _more("was sure of {:,} images", said.sure or 0, "has {:,}", reply.images)


def _wrong_exam(checks: tuple[float, ...], most: int | None) -> str | None:
    """What its guard can have found; nothing to hold against where it tells nothing."""
    if not checks:
        return None
    found = Checks(*checks)
    if most is not None and found.images > most:
        return f"its guard looked at {counted(found.images, 'image')}, but it chose {most:,} by its own word"
    if max(found.loss_had, found.loss_came) > LARGEST_LOSS * found.images * (1 + SLACK):
        return "the losses of its guard are beyond those of so few images"
    if not {found.average_harmed, found.training_harmed, found.too_doubtful} <= {0.0, 1.0}:
        return "its guard speaks for more than one client"
    return None


def known_claims(stored: Mapping[str, Mapping[str, int | None]]) -> dict[str, Claims]:
    """From a checkpoint."""
    return {client: Claims(**said) for client, said in stored.items()}

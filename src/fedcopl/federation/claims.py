"""What a site has said of itself, and why a reply that says otherwise must not be used.

A server cannot see images. It can hold a site to its own words: it has as many images at the end as at the beginning,
is sure of no more than it has, chooses no more, trains on no more than it chose, and every sum over its images that the
priors ask for is one that so many images can have.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..algorithm.guard import LARGEST_LOSS
from ..config import RunConfig
from ..messages import Adapt, Adapted, Ask, Estimated, Evaluated, Reply, Selected, Trained
from ..privacy.masked_layout import Checks, Values
from .possible_sums import SLACK, UNKNOWN, images_in, impossible_sums, tells_images

AT_ONCE = 2**20  # numbers of sums that are looked at together, to need little memory
Heard = tuple[Ask, Reply]


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
        case Adapt(), Adapted(sums=sums) if sums is not None and said.images is None and tells_images(ask):
            return replace(said, images=images_in(ask, sums))
        case _, Estimated(counts=counts) if counts is not None:
            return replace(said, sure=int(counts.sum()))
        case _, Selected(images=images, examples=chosen) if images is not None:
            return replace(said, images=images, chosen=chosen)
        case _, Evaluated(examples=tested):
            return replace(said, tested=tested)
    return said


def contradictions(
    claims: Mapping[str, Claims], heard: Mapping[str, Heard], classes: int, config: RunConfig
) -> dict[str, str]:
    """Client -> why its reply cannot be true if what it said before is."""
    found = dict(_impossible(claims, heard, classes)) if not config.privacy.noise else {}
    for client, (ask, reply) in heard.items():
        why = contradiction(claims.get(client, NO_CLAIMS), ask, reply, classes, config)
        if why:
            found[client] = why
    return found


def _impossible(claims: Mapping[str, Claims], heard: Mapping[str, Heard], classes: int) -> Iterator[tuple[str, str]]:
    """Whose sums are those of no images; of all who were asked the same, many at a time."""
    asked: dict[int, tuple[Adapt, dict[str, Values]]] = {}
    for client, (ask, reply) in heard.items():
        if isinstance(ask, Adapt) and isinstance(reply, Adapted) and reply.sums is not None:
            asked.setdefault(id(ask), (ask, {}))[1][client] = reply.sums
    for ask, sums in asked.values():
        clients = [*sums]
        many = max(1, AT_ONCE // max(1, len(sums[clients[0]])))
        for some in (clients[start : start + many] for start in range(0, len(clients), many)):
            images = [claims.get(client, NO_CLAIMS).images for client in some]
            known = np.array([UNKNOWN if count is None else count for count in images], np.float64)
            rows = np.stack([sums[client] for client in some])
            yield from ((some[row], why) for row, why in impossible_sums(ask, rows, classes, known).items())


def contradiction(said: Claims, ask: Ask, reply: Reply, classes: int, config: RunConfig) -> str | None:
    """The same of one client's reply, unless it tells sums. Noise may say anything of one image."""
    if config.privacy.noise:
        return _contradicted_weight(reply)
    match ask, reply:
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


def known_claims(stored: Mapping[str, Mapping[str, int | None]]) -> dict[str, Claims]:
    """From a checkpoint."""
    return {client: Claims(**said) for client, said in stored.items()}

"""A run's questions in their order. A site agrees to a run, and answers each of its questions once.

In round r of a run the server asks, in this order, each of these at most once:

    zero_shot   Evaluate without prompts         before the first round
    adapt       Adapt, step by step, then keep   in the first round, where the run has priors; later only keep, for
                                                 those who were away
    untrained   Evaluate through the priors      in the first round, where the run has priors
    estimate    Estimate                         at a refresh
    select      Select                           at a refresh
    train       Train
    evaluate    Evaluate                         in the rounds that are evaluated

A site may have missed any of them. Whatever goes back in this list, comes twice with other words, or is not in it, is
refused. Two things are allowed for honest servers. Secure aggregation that could not be unmasked is repeated without
those who spoilt it: so `Adapt` and `Estimate` may come again for fewer sites. And a server that was stopped plays its
round again, when sites that were away then may answer: all but the prompts that the round began with may differ. Both
would be ways to ask more than the protocol has, so each is allowed a few times only.
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, Protocol

from ...config import RunConfig
from ...federation.prior_estimation import prior_steps
from ...federation.server import MAX_ESTIMATIONS, is_evaluated
from ...labelers import choose_labeler
from ...messages import Adapt, Estimate, Evaluate, Request, Select, SetupKeys, Train, digest

SPOILT = 2  # times that one sum may be played again because somebody spoilt it


class RoundStage(IntEnum):
    """Where in a round a question belongs; the keys of secure aggregation belong to the sum that follows."""

    keys = -1
    zero_shot = 0
    adapt = 1
    untrained = 2
    estimate = 3
    select = 4
    train = 5
    evaluate = 6


class Turn(NamedTuple):
    """A question that was answered, as far as the order of questions goes."""

    kind: str
    stage: int
    step: int = 0  # of the priors
    peers: int = 0  # whose numbers are summed; 0: openly
    last: bool = False  # nothing more comes at this stage


class RoundSoFar(Protocol):
    """How far a round is at a site: what the order of its questions depends on."""

    @property
    def asked(self) -> tuple[Turn, ...]: ...
    @property
    def made(self) -> tuple[Turn, ...]: ...
    @property
    def model(self) -> str: ...


def turn_of(request: Request) -> Turn:
    kind = type(request).__name__
    match request:
        case Adapt():
            return Turn(kind, RoundStage.adapt, request.step, len(request.peers))
        case Estimate():
            return Turn(kind, RoundStage.estimate, peers=len(request.peers))
        case Train():
            return Turn(kind, RoundStage.train, peers=len(request.peers), last=True)
        case Select():
            return Turn(kind, RoundStage.select, last=True)
        case Evaluate():
            plain = RoundStage.untrained if request.through else RoundStage.zero_shot
            return Turn(kind, plain if request.shared is None else RoundStage.evaluate, last=True)
    return Turn(kind, RoundStage.keys)


def model_of(request: Request) -> str:
    """Digest of the prompts that the round begins with, if the question is about them."""
    return digest(Evaluate(0, request.shared)) if isinstance(request, Estimate | Train) else ""


def out_of_order(request: Request, so_far: RoundSoFar, config: RunConfig, restarts: int) -> str | None:
    """Why a question that was not answered yet is none of the run's at this point; None: it is."""
    reasons = (
        why
        for check in (_not_in_round, _too_late, _another_model)
        for why in check(request, so_far, config)  # the first that finds anything
    )
    return next(reasons, None) or _too_often(request, so_far, config, restarts)


def _not_in_round(request: Request, so_far: RoundSoFar, config: RunConfig) -> Iterator[str]:
    """What no round of this kind has."""
    words = f"asked to {type(request).__name__} in round {request.round + 1}"
    if not 0 <= request.round < config.rounds:
        yield f"{words}, but the run has {config.rounds}"
    has_refresh = request.round % config.labels.refresh_every == 0
    match request:
        case Adapt() if not config.adapts:
            yield f"{words}, but the run has no priors"
        case Adapt() | Estimate() | Select() if not has_refresh:
            yield f"{words}, which has no refresh"
        case Adapt(step=step) if request.round and step != prior_steps(config):
            yield f"{words} for sums, which is for the first round"
        case Adapt(step=step) if not 0 <= step <= prior_steps(config):
            yield f"{words} at step {step + 1}, but the priors take {prior_steps(config) + 1} at most"
        case Select(refresh=refresh) if refresh != request.round // config.labels.refresh_every:
            yield f"{words}, as refresh {refresh + 1}, which it is not"
        case Evaluate(shared=None) if request.round or (request.through and not config.adapts):
            yield f"{words} without prompts, which no such round has"
        case Evaluate(shared=shared) if shared is not None and not is_evaluated(config, request.round):
            yield f"{words}, which is not evaluated"


def _too_late(request: Request, so_far: RoundSoFar, config: RunConfig) -> Iterator[str]:
    """What comes after what it should come before, or a second time."""
    turn, before = turn_of(request), [one for one in so_far.asked if one.stage != RoundStage.keys]
    if turn.stage == RoundStage.keys or not before:
        return
    last, words = before[-1], f"asked to {turn.kind} in round {request.round + 1}"
    if turn.stage < last.stage:
        yield f"{words} after {last.kind}"
    elif turn.stage == last.stage:
        is_next = turn.step > last.step or (turn.stage == RoundStage.adapt and turn.step == 0)  # starts again
        is_without_spoilers = turn.step == last.step and 0 < turn.peers < last.peers
        if last.last or not (is_next or is_without_spoilers):
            yield f"{words} once more, with another question"


def _another_model(request: Request, so_far: RoundSoFar, config: RunConfig) -> Iterator[str]:
    model = model_of(request)
    if model and so_far.model and model != so_far.model:
        kind = type(request).__name__
        yield f"asked to {kind} in round {request.round + 1} with other prompts than the round began with"


def _too_often(request: Request, so_far: RoundSoFar, config: RunConfig, restarts: int) -> str | None:
    """More different answers than an honest server can need that was stopped so many times in this round."""
    turn = turn_of(request)
    if turn.stage == RoundStage.keys and not isinstance(request, SetupKeys):
        return None  # one of each for each `SetupKeys`: the secure aggregation itself sees to that
    like = sum((one.kind, one.stage, one.step) == (turn.kind, turn.stage, turn.step) for one in so_far.made)
    once = sums_of_round(config, request.round) if isinstance(request, SetupKeys) else 1
    once = MAX_ESTIMATIONS if isinstance(request, Adapt) else once
    spoilt = SPOILT if isinstance(request, SetupKeys) or turn.peers else 0
    if like < (once + spoilt) * (1 + restarts):
        return None
    return (
        f"asked to {turn.kind} in round {request.round + 1} for the {like + 1}th time, each time with another question"
    )


def sums_of_round(config: RunConfig, round: int) -> int:
    """How many secure aggregation a round has, at most."""
    has_refresh = round % config.labels.refresh_every == 0
    priors = MAX_ESTIMATIONS * prior_steps(config) if config.adapts and round == 0 else 0
    return 1 + (has_refresh and choose_labeler(config).cooperative) + priors

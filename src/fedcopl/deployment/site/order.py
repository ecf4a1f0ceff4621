"""The order of the requests of a run. A site replies to each request of the protocol once.

In each round the server sends these requests, in this order, each at most once:

    zero_shot   Evaluate without prompts         before the first round
    adapt       Adapt, step by step, then keep   in the first round, where the run has priors; later only keep, for
                                                 sites that were away
    untrained   Evaluate with the priors         in the first round, where the run has priors
    estimate    Estimate                         at a refresh
    select      Select                           at a refresh
    train       Train
    evaluate    Evaluate                         in the rounds that are evaluated

A site may have missed any of them. It refuses a request that is not in this list, that goes back in it, or that it has
had with other content. Honest servers need two exceptions. A secure aggregation that could not be unmasked is repeated
without the sites that caused it: `Estimate` may come again for fewer sites, and `Adapt` before its first sum is
unmasked (`PrivateReplies`). A server that was stopped repeats its round, and other sites may reply than before: all
contents may differ except the prompts at the start of the round. A server could use both to obtain more than the
protocol allows, so their number is limited.
"""

from collections.abc import Iterator
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ...config import RunConfig
from ...federation.prior_estimation import prior_steps
from ...federation.server import MAX_ESTIMATIONS, is_evaluated
from ...labelers import choose_labeler
from ...messages import Adapt, Estimate, Evaluate, Request, Select, SetupKeys, Train, digest
from ...plurals import counted

if TYPE_CHECKING:
    from .site_state import SiteProgress

_MAX_REPEATS = 2  # of one secure aggregation that could not be unmasked


class _RoundStage(IntEnum):
    """The position of a request in a round; keys belong to the secure aggregation that follows."""

    keys = -1
    zero_shot = 0
    adapt = 1
    untrained = 2
    estimate = 3
    select = 4
    train = 5
    evaluate = 6


class HandledRequest(NamedTuple):
    """The properties of a handled request that the order of requests depends on."""

    kind: str
    stage: int
    step: int = 0  # of the prior estimation
    peers: int = 0  # number of sites in the secure aggregation; 0: none
    ends_stage: bool = False  # no further request of this stage may follow


def handled_entry(request: Request) -> HandledRequest:
    """Return the entry of a request in the site's list of handled requests, with its stage in the round."""
    kind = type(request).__name__
    match request:
        case Adapt():
            return HandledRequest(kind, _RoundStage.adapt, request.step, len(request.peers))
        case Estimate():
            return HandledRequest(kind, _RoundStage.estimate, peers=len(request.peers))
        case Train():
            return HandledRequest(kind, _RoundStage.train, peers=len(request.peers), ends_stage=True)
        case Select():
            return HandledRequest(kind, _RoundStage.select, ends_stage=True)
        case Evaluate():
            promptless = _RoundStage.untrained if request.calibration else _RoundStage.zero_shot
            return HandledRequest(kind, promptless if request.shared is None else _RoundStage.evaluate, ends_stage=True)
    return HandledRequest(kind, _RoundStage.keys)


def prompts_digest(request: Request) -> str:
    """Return the digest of the prompts that the round begins with; empty if the request does not contain them."""
    return digest(Evaluate(0, request.shared)) if isinstance(request, Estimate | Train) else ""


def out_of_order(request: Request, progress: "SiteProgress", config: RunConfig, restarts: int) -> str | None:
    """Return why a new request is not allowed at this point of the run; None: it is allowed."""
    checks = (_not_in_round(request, config), _too_late(request, progress), _other_prompts(request, progress))
    reason = next(chain(*checks), None) or _too_often(request, progress, config, restarts)
    return f"unexpected request: {reason}" if reason else None


def _not_in_round(request: Request, config: RunConfig) -> Iterator[str]:
    """Yield the reasons why the protocol has no such request in its round."""
    subject = f"{type(request).__name__} in round {request.round + 1}"
    if not 0 <= request.round < config.rounds:
        yield f"{subject}, but the run has {counted(config.rounds, 'round')}"
    has_refresh = request.round % config.labels.refresh_every == 0
    match request:
        case Adapt() if not config.uses_priors:
            yield f"{subject}, but the run has no priors"
        case Adapt() | Estimate() | Select() if not has_refresh:
            yield f"{subject}, in which labels are not refreshed"
        case Adapt(step=step) if request.round and step != prior_steps(config):
            yield f"{subject} for prior statistics, which only the first round needs"
        case Adapt(step=step) if not 0 <= step <= prior_steps(config):
            yield f"{subject} at step {step + 1}, but the prior estimation has at most {prior_steps(config) + 1}"
        case Select(refresh=refresh) if refresh != request.round // config.labels.refresh_every:
            yield f"{subject} for refresh {refresh + 1}, which is in another round"
        case Evaluate(shared=None) if request.round or (request.calibration and not config.uses_priors):
            yield f"{subject} without prompts, which is not in the protocol"
        case Evaluate(shared=shared) if shared is not None and not is_evaluated(config, request.round):
            yield f"{subject}, which is not evaluated"


def _too_late(request: Request, progress: "SiteProgress") -> Iterator[str]:
    """Yield the reason if this request comes after a later stage of the round, or a second time."""
    entry = handled_entry(request)
    earlier = [handled for handled in progress.handled if handled.stage != _RoundStage.keys]
    if entry.stage == _RoundStage.keys or not earlier:
        return
    last, subject = earlier[-1], f"{entry.kind} in round {request.round + 1}"
    if entry.stage < last.stage:
        yield f"{subject} after {last.kind}"
    elif entry.stage == last.stage:
        starts_again = entry.stage == _RoundStage.adapt and entry.step == 0 and not entry.peers
        is_next = entry.step > last.step or starts_again
        is_repeat = entry.step == last.step and 0 < entry.peers < last.peers
        if last.ends_stage or not (is_next or is_repeat):
            yield f"{subject} again, with other content"


def _other_prompts(request: Request, progress: "SiteProgress") -> Iterator[str]:
    """Yield the reason if the request does not have the prompts at the start of the round."""
    model = prompts_digest(request)
    if model and progress.model and model != progress.model:
        kind = type(request).__name__
        yield f"{kind} in round {request.round + 1} with other prompts than at the start of the round"


def _too_often(request: Request, progress: "SiteProgress", config: RunConfig, restarts: int) -> str | None:
    """Return the reason if a server that restarts at most `restarts` times would not send this request so often."""
    entry = handled_entry(request)
    if entry.stage == _RoundStage.keys and not isinstance(request, SetupKeys):
        return None  # one of each per `SetupKeys`: the secure aggregation itself checks that
    count = sum(computed[:3] == entry[:3] for computed in progress.computed)  # of this kind, stage and step
    planned = _max_aggregations(config, request.round) if isinstance(request, SetupKeys) else 1
    repeats = _MAX_REPEATS if isinstance(request, SetupKeys) or entry.peers else 0
    limit = (planned + repeats) * (1 + restarts)
    if isinstance(request, Adapt) and not entry.peers:
        limit = max(MAX_ESTIMATIONS, 1 + restarts)  # an estimation without lost sites has other totals
    if count < limit:
        return None
    return f"{entry.kind} in round {request.round + 1} for the {count + 1}th time, each time with other content"


def _max_aggregations(config: RunConfig, round: int) -> int:
    """Return the largest number of secure aggregations in this round, without repeats."""
    has_refresh = round % config.labels.refresh_every == 0
    priors = prior_steps(config) if config.uses_priors and round == 0 else 0
    return 1 + (has_refresh and choose_labeler(config).cooperative) + priors

"""The server's side of a round, over any transport: label, train, aggregate, evaluate."""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from ..algorithm import FloatArray
from ..algorithm.aggregate import nearest
from ..algorithm.holdout import Evidence, is_less_confident, loss_rise
from ..algorithm.metrics import Score
from ..algorithm.robust import trimmed_total
from ..config import RunConfig
from ..errors import ConfigError, NoClientReplied
from ..messages import Adapt, Adapted, Estimate, Evaluate, Evaluated, Select, Selected, Shared, Train
from ..priors.estimation import Estimation
from ..priors.posterior import PosteriorModel
from ..privacy import require_cryptography
from ..privacy.masked_layout import HoldoutSums, TrainingSum
from ..rng import stream
from .aggregation import PlainAggregator, SecureAggregator
from .prior_estimation import prior_settings
from .transport import Labelling, RoundExchange, RoundReport, Transport
from .validation import ReportedCounts

_MIN_GAIN = 0.001  # nats per held-out image: a smaller decrease of the loss does not count as progress
MAX_ESTIMATIONS = 3  # attempts at the prior estimation in one round, each without the clients lost in the last one


@dataclass(frozen=True)
class ServerState:
    """Everything that the server needs to resume after a round."""

    round: int  # the next one, counted from 0
    shared: Shared  # the prompts that the server averages
    classes: int  # C
    members: tuple[str, ...] = ()  # clients that selected training images at the last refresh
    full_first_round: bool = False  # all members train in the first round, whatever `sharing.participation` is
    neighbours: int = 0  # number of other clients' prompts that the method sends to each client
    uploads: Mapping[str, Shared] = field(default_factory=dict)  # each client's last prompts, if neighbours are sent
    width: int = 0  # d, length of an image feature
    prior_model: PosteriorModel | None = None  # the outcome of the estimation of the priors
    prior_totals: tuple[FloatArray, ...] = ()  # the totals of each step of the estimation, for clients that join later
    last_good: Shared | None = None  # the last average that the clients' hold-out checks did not find harmful
    reported_counts: Mapping[str, ReportedCounts] = field(default_factory=dict)  # by client, to validate later replies
    ever_connected: tuple[str, ...] = ()  # all clients that were ever connected
    class_prior: FloatArray | None = None  # (C,) over all clients, from the file in `priors.class_prior`
    stale_rounds: int = 0  # consecutive rounds in which the average hardly lowered the held-out loss


_Aggregator = PlainAggregator | SecureAggregator


def check_privacy_settings(config: RunConfig, neighbours: int, full_first_round: bool) -> None:
    """Raise ConfigError if the settings of `privacy` contradict others or the method, or cryptography is missing."""
    if config.is_private:
        require_cryptography()
    if config.privacy.secure_aggregation and config.sharing.robust != "mean":
        raise ConfigError(
            f"sharing.robust: {config.sharing.robust} needs the update of each client, which "
            "privacy.secure_aggregation hides; use one or the other"
        )
    if config.privacy.secure_aggregation and neighbours:
        raise ConfigError(
            f"privacy.secure_aggregation: method={config.method} sends clients each other's prompts, "
            "which secure aggregation hides; use one or the other"
        )
    if config.privacy.secure_aggregation and full_first_round and config.sharing.participation < 1:
        raise ConfigError(
            f"sharing.participation: method={config.method} has all clients train in the first round, and the members "
            "of secure aggregations cannot change; set it to 1, or privacy.secure_aggregation=false"
        )


def is_finished(config: RunConfig, state: ServerState) -> bool:
    """Return whether all rounds are done, or training has converged."""
    return state.round >= config.rounds or _has_converged(config, state.stale_rounds)


def run_round(config: RunConfig, transport: Transport, state: ServerState) -> tuple[ServerState, RoundReport]:
    """Run one round of the paper's algorithm: refresh if it is due, train, aggregate, evaluate.

    Args:
        state: The server's state before the round; it is not changed.

    Returns:
        The state after the round, and the round's report.

    Raises:
        NoClientReplied: Too few clients sent a usable reply.
    """
    report, reported_counts = RoundReport(state.round), dict(state.reported_counts)
    exchange = RoundExchange(transport, report, state.classes, config, reported_counts, state.ever_connected)
    check_privacy_settings(config, state.neighbours, state.full_first_round)
    aggregator: _Aggregator = PlainAggregator(config)
    if config.privacy.secure_aggregation:
        aggregator = SecureAggregator(config, members_fixed=bool(state.members))
    model, totals, members = state.prior_model, state.prior_totals, state.members
    if state.round % config.labels.refresh_every == 0:
        if config.uses_priors:
            model, totals = _estimate_priors(config, exchange, aggregator, state)
        members = _refresh(config, exchange, aggregator, state)
    shared, last_good = _train(config, exchange, aggregator, state, members)
    stale_rounds = _stale_rounds(state.stale_rounds, report.checks)
    report.converged = _has_converged(config, stale_rounds)
    if report.converged or is_evaluated(config, state.round):
        # Clients check their final model only when they evaluate the last round, which this one is after convergence.
        evaluated_round = config.rounds - 1 if report.converged else state.round
        report.scores = _evaluate(exchange, evaluated_round, shared)
    report.missed_refresh = tuple(client for client in exchange.ever_connected if client not in members)
    return replace(
        state,
        round=state.round + 1,
        shared=shared,
        members=members,
        uploads={**state.uploads, **report.updates} if state.neighbours else {},
        prior_model=model,
        prior_totals=totals,
        last_good=last_good,
        reported_counts=reported_counts,
        ever_connected=exchange.ever_connected,
        stale_rounds=stale_rounds,
    ), report


def evaluate_zero_shot(transport: Transport) -> RoundReport:
    """Evaluate zero-shot CLIP at each client, the baseline of the run."""
    report = RoundReport(0)
    report.scores = _evaluate(RoundExchange(transport, report, classes=0), 0, None)
    return report


def _estimate_priors(
    config: RunConfig, exchange: RoundExchange, aggregator: _Aggregator, state: ServerState
) -> tuple[PosteriorModel, tuple[FloatArray, ...]]:
    """Return the posterior model, and the totals of all steps, from which server and clients compute it.

    The priors are estimated once, before any training: a client's trained model fits its own class prior, so that its
    log-probabilities could not be compared with those of other clients. A client that joins later gets the totals of
    all steps. If a client is lost between two steps, the estimation starts again without it, because all totals must be
    over the same images.
    """
    settings = prior_settings(config, state.classes, state.width, state.class_prior)
    connected = exchange.connected()
    if state.prior_model is not None:
        new = [client for client in exchange.without_excluded(connected) if client not in state.members]
        all_totals = Adapt(state.round, settings.max_steps, state.prior_totals, state.class_prior)
        with suppress(NoClientReplied):  # the round goes on without a client that does not reply
            exchange.request(new, lambda _: all_totals, Adapted, required=False)
        return state.prior_model, state.prior_totals
    members = exchange.without_excluded(connected)
    for _ in range(MAX_ESTIMATIONS):
        estimation, exchange.prior_weights = Estimation(settings), {}
        exchange.estimation = estimation
        while estimation.outcome is None:
            step = len(estimation.totals)
            request = Adapt(state.round, step, tuple(estimation.totals[-1:]), state.class_prior)
            replied, total = aggregator.adaptation(exchange, members, request)
            if step and set(replied) != set(members):
                members = replied
                break  # the next estimation starts without the lost clients
            members = replied
            estimation.add(total)
        else:  # no client was lost
            break
    else:
        raise NoClientReplied(
            f"round {state.round + 1}, step Adapt: clients were lost in {MAX_ESTIMATIONS} estimations of the priors; "
            "continue with --resume when all stay connected"
        )
    totals = tuple(estimation.totals)
    last = Adapt(state.round, len(totals), totals[-1:], state.class_prior)
    all_totals = replace(last, totals=totals)  # for clients that missed a step
    replies = exchange.request(
        exchange.without_excluded(connected),
        lambda client: exchange.weighted(last, client) if client in members else all_totals,
        Adapted,
    )
    for client, reply in replies.items():
        if reply.refused:
            reason = "rejected the priors, which contradict its most confident images"
            exchange.report.bounds.add(client, "Adapt", reason)
    if config.method != "priors":  # that method's own evaluation already measures it
        exchange.report.untrained = _evaluate(exchange, state.round, None, calibration="priors")
    return estimation.outcome, totals


def _refresh(
    config: RunConfig, exchange: RoundExchange, aggregator: _Aggregator, state: ServerState
) -> tuple[str, ...]:
    """Refresh the pseudo labels cooperatively (Eq. 2 and 3), and return the clients that selected images."""
    report = exchange.report
    report.refreshed = True
    is_secure, connected = config.privacy.secure_aggregation, exchange.connected()
    clients = (state.members if is_secure else ()) or exchange.without_excluded(connected)
    estimated, report.totals = aggregator.counts(exchange, clients, Estimate(state.round, state.shared))
    index = state.round // config.labels.refresh_every
    request = Select(state.round, index, report.totals, len(estimated))
    selected = exchange.request(estimated, lambda _: request, Selected)
    missing = ", ".join(client for client in dict.fromkeys((*state.members, *estimated)) if client not in selected)
    if is_secure and missing:
        raise NoClientReplied(
            f"round {state.round + 1}, step Select: {missing} did not reply, and all secure aggregations of a run must "
            "have the same members; continue with --resume when all are connected again"
        )
    report.labelling = _labelling(selected.values())
    return tuple(selected)


def _labelling(replies: Iterable[Selected]) -> Labelling | None:
    """Sum the clients' counts of selected and unchanged labels; None if no client reports any."""
    reported = [reply for reply in replies if reply.images is not None]
    compared = [reply for reply in reported if reply.unchanged is not None]
    if not reported:
        return None
    return Labelling(
        images=sum(reply.images or 0 for reply in reported),
        chosen=sum(reply.examples or 0 for reply in reported),
        compared=sum(reply.images or 0 for reply in compared),
        unchanged=sum(reply.unchanged or 0 for reply in compared),
    )


def _train(
    config: RunConfig, exchange: RoundExchange, aggregator: _Aggregator, state: ServerState, members: tuple[str, ...]
) -> tuple[Shared, Shared | None]:
    """Train at the participants; return the new average of the shared prompts (Eq. 4), and the last good average.

    The clients report how the average in the request fits their holdouts, compared with their last model. If it harms
    all of them together, it is rolled back with everything that was trained from it.
    """
    participants = members
    if not (state.full_first_round and state.round == 0):
        participants = _participants(config, members, state.round)

    def request(client: str) -> Train:
        experts = nearest(client, state.uploads, state.neighbours)  # none before the client's first upload
        return Train(state.round, state.shared, tuple(state.uploads[other] for other in experts))

    trained = aggregator.training(exchange, participants, request)
    report = exchange.report
    report.participants, report.examples, report.batches = trained.clients, trained.examples, trained.batches
    report.loss, report.updates = trained.loss, dict(trained.updates)
    report.kept_old_prompt = trained.mean is None
    report.checks, report.server_rolled_back = trained.checks, _has_harmed(trained) and state.last_good is not None
    if report.server_rolled_back and state.last_good is not None:
        return state.last_good, None  # only one average is kept: the next round cannot be rolled back
    return (state.shared if trained.mean is None else trained.mean), state.shared


def _has_harmed(trained: TrainingSum) -> bool:
    """Return whether the average fits the holdouts worse; with three clients or more, no single client decides."""
    if trained.holdouts:
        pairs = ((Evidence(h.images, h.loss_before), Evidence(h.images, h.loss_after)) for h in trained.holdouts)
        rises = [loss_rise(old, new) for old, new in pairs]
        return trimmed_total(rises) > 0
    checks = trained.checks
    return is_less_confident(Evidence(checks.images, checks.loss_before), Evidence(checks.images, checks.loss_after))


def _stale_rounds(stale_before: int, checks: HoldoutSums) -> int:
    """Return the number of consecutive rounds, up to this one, in which the average hardly lowered the held-out loss.

    A round without a comparison, such as the first, does not change it.
    """
    if not checks.images:
        return stale_before
    return stale_before + 1 if checks.loss_before - checks.loss_after < _MIN_GAIN * checks.images else 0


def _has_converged(config: RunConfig, stale_rounds: int) -> bool:
    """Return whether training stops by `train.patience`; only with priors, for calibrated pseudo labels."""
    return config.uses_priors and 0 < config.train.patience <= stale_rounds


def _participants(config: RunConfig, members: tuple[str, ...], round: int) -> tuple[str, ...]:
    """Sample m = max(floor(R K), 1) of the members without replacement, in the order of the members."""
    share = Fraction(str(config.sharing.participation))  # exact: in floats, 0.29 * 100 is below 29
    count = max(math.floor(share * len(members)), 1)
    if config.privacy.secure_aggregation:
        return _cohort(config, members, round, max(count, config.privacy.min_sites))
    drawn = stream(config.seed, "participation", round).choice(len(members), count, replace=False)
    return tuple(members[number] for number in sorted(drawn))


def _cohort(config: RunConfig, members: tuple[str, ...], round: int, size: int) -> tuple[str, ...]:
    """Return the cohort that trains in this round: fixed cohorts of at least `size` members rotate.

    With a new sample in each round, the difference of two secure sums could be the update of a single client (So et
    al., 2023, "Securing secure aggregation").
    """
    cohorts = max(len(members) // size, 1)
    order = stream(config.seed, "cohorts").permutation(len(members))
    return tuple(members[number] for number in sorted(np.array_split(order, cohorts)[round % cohorts]))


def is_evaluated(config: RunConfig, round: int) -> bool:
    """Return whether accuracy is measured after this round."""
    return (round + 1) % config.evaluation.every == 0 or round + 1 == config.rounds


def _evaluate(exchange: RoundExchange, round: int, shared: Shared | None, calibration: str = "") -> dict[str, Score]:
    """Return each client's numbers of correct predictions and test images; other arguments are those of `Evaluate`.

    Clients that do not reply are left out: no later step depends on the scores.
    """
    request = Evaluate(round, shared, calibration)
    scores = exchange.request(exchange.connected(), lambda _: request, Evaluated, required=False)
    return {client: (score.correct, score.examples) for client, score in scores.items()}

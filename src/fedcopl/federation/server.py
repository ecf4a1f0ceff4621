"""The FedCoPL run as the server sees it: the paper's algorithm, and nothing of how messages travel."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Protocol

from ..algorithm import FloatArray
from ..algorithm.aggregate import nearest
from ..algorithm.holdout import Evidence, is_less_confident, rise
from ..algorithm.metrics import Score
from ..algorithm.robust import trimmed_total
from ..config import RunConfig
from ..errors import ConfigError, NoClientReplied
from ..messages import Adapt, Adapted, Estimate, Evaluate, Evaluated, Select, Selected, Shared, Train
from ..priors.estimation import Estimation
from ..priors.posterior import PosteriorModel
from ..privacy import require_cryptography
from ..privacy.masked_layout import HoldoutSums, TrainingSum, Values
from ..rng import stream
from .aggregation import PlainAggregator, SecureAggregator, Totals
from .prior_estimation import prior_settings
from .transport import Clients as Clients
from .transport import Labelling, RoundExchange
from .transport import RoundReport as RoundReport
from .validation import ReportedCounts


@dataclass(frozen=True)
class ServerState:
    """All that the server needs to go on after a stop."""

    round: int
    shared: Shared
    classes: int  # C
    members: tuple[str, ...] = ()  # who chose training images at the last refresh
    everyone_first: bool = False  # the method wants all members to train in the first round, whatever the participation
    neighbours: int = 0  # how many other clients' prompts the method sends to each
    uploads: Mapping[str, Shared] = field(default_factory=dict)  # each client's last prompts, where neighbours are sent
    left_out: Mapping[str, str] = field(
        default_factory=dict
    )  # who spoilt a secure aggregation, and how: in no later one
    width: int = 0  # d, numbers of an image feature: for the priors
    prior_model: PosteriorModel | None = None  # the outcome of the estimation of the priors
    prior_totals: tuple[FloatArray, ...] = ()  # of each step of it, for clients that join later
    good: Shared | None = None  # the last average that the clients' hold-out checks did not find harmful
    reported: Mapping[str, ReportedCounts] = field(default_factory=dict)  # what each client reported of itself
    seen: tuple[str, ...] = ()  # everybody who could ever be asked
    class_prior: FloatArray | None = None  # over all clients, where the study knows it
    stale: int = 0  # rounds in a row whose average did not gain on the clients' held-out images


MIN_GAIN = 0.001  # nats per held-out image: an average that gains less does not count as progress
MAX_ESTIMATIONS = 3  # of the priors in one round, each without the clients that were lost in the one before
AfterRound = Callable[[ServerState, RoundReport], None]


class Sums(Protocol):
    """All that the server makes of the clients' numbers."""

    def counts(
        self, server: RoundExchange, clients: Iterable[str], request: Estimate
    ) -> tuple[tuple[str, ...], Totals | None]:
        """Who is in the sum of the class counts, and that sum, T."""
        ...

    def adaptation(
        self, server: RoundExchange, clients: Iterable[str], request: Adapt
    ) -> tuple[tuple[str, ...], Values]:
        """Who is in the sum of a step of the priors, and that sum."""
        ...

    def training(self, server: RoundExchange, clients: Iterable[str], request: Callable[[str], Train]) -> TrainingSum:
        """Who is in the average of the prompts, and that average."""
        ...


def choose_aggregator(config: RunConfig, state: ServerState) -> Sums:
    """By the settings of `privacy`."""
    refuse_privacy(config, state.neighbours)
    return SecureAggregator(config) if config.privacy.secure_aggregation else PlainAggregator(config)


def refuse_privacy(config: RunConfig, neighbours: int) -> None:
    """ConfigError where the settings of `privacy` cannot be done: say so before a run begins."""
    if config.is_private:
        require_cryptography()
    if config.privacy.secure_aggregation and config.sharing.robust != "mean":
        raise ConfigError(
            f"sharing.robust: {config.sharing.robust} needs single updates, and with privacy.secure_aggregation nobody "
            "sees them; use one or the other"
        )
    if config.privacy.secure_aggregation and neighbours:
        raise ConfigError(
            f"privacy.secure_aggregation: method={config.method} sends clients each other's prompts, "
            "and with secure aggregation nobody sees a single client's; use one or the other"
        )


def run(config: RunConfig, federation: Clients, state: ServerState, after_round: AfterRound) -> ServerState:
    """Run the rounds that are left, and return the last state."""
    while state.round < config.rounds and not has_converged(config, state.stale):
        state, report = run_round(config, federation, state)
        after_round(state, report)
    return state


def run_round(config: RunConfig, federation: Clients, state: ServerState) -> tuple[ServerState, RoundReport]:
    """One round of the paper's algorithm: refresh when due, train, aggregate, evaluate."""
    report, left_out, reported = RoundReport(state.round), dict(state.left_out), dict(state.reported)
    server = RoundExchange(federation, report, state.classes, config, left_out, reported, state.seen)
    sums = choose_aggregator(config, state)
    model, totals, members = state.prior_model, state.prior_totals, state.members
    if state.round % config.labels.refresh_every == 0:
        if config.adapts:
            model, totals = estimate_priors(config, server, sums, state)
        members = refresh(config, server, sums, state)
    shared, good = train(config, server, sums, state, members)
    stale = stale_rounds(state.stale, report.checks)
    report.converged = has_converged(config, stale)
    if report.converged or is_evaluated(config, state.round):
        number = (
            config.rounds - 1 if report.converged else state.round
        )  # clients check their model after the last round
        report.scores = evaluate(server, number, shared)
    report.missed_refresh = tuple(client for client in server.seen if client not in members)
    uploads = {**state.uploads, **report.updates} if state.neighbours else {}
    after = replace(state, round=state.round + 1, shared=shared, members=server.still_in(members), uploads=uploads)
    after = replace(after, reported=reported, seen=server.seen, stale=stale)
    return replace(after, left_out=left_out, good=good, prior_model=model, prior_totals=totals), report


def look_first(federation: Clients) -> RoundReport:
    """Measure zero-shot CLIP at each client, the baseline of the run."""
    report = RoundReport(0)
    report.scores = evaluate(RoundExchange(federation, report, classes=0), 0, None)
    return report


def estimate_priors(
    config: RunConfig, server: RoundExchange, sums: Sums, state: ServerState
) -> tuple[PosteriorModel, tuple[FloatArray, ...]]:
    """Return the posterior model, and the totals of all steps from which every party computes it.

    Once, before any training: a client's trained model fits its own class prior, and its log-probabilities could not be
    compared with those of others. A client that joins later gets the totals of all steps. If a client is lost between
    two steps the estimation starts again without it, because totals must be over the same images.
    """
    settings = prior_settings(config, state.classes, state.width, state.class_prior)
    everyone = server.everyone()
    if state.prior_model is not None:
        new = [client for client in server.labelling_with(everyone) if client not in state.members]
        _tell_newcomers(server, new, Adapt(state.round, settings.max_steps, state.prior_totals, state.class_prior))
        return state.prior_model, state.prior_totals
    members = server.labelling_with(everyone)
    for _ in range(MAX_ESTIMATIONS):
        estimation, server.prior_weights = Estimation(settings), {}
        server.estimation = estimation
        while estimation.outcome is None:
            step = len(estimation.totals)
            request = Adapt(state.round, step, tuple(estimation.totals[-1:]), state.class_prior)
            replied, total = sums.adaptation(server, members, request)
            if step and set(replied) != set(members):
                members = replied
                break
            members = replied
            estimation.add(total)
        else:
            break
    else:
        raise NoClientReplied(
            f"round {state.round + 1}, step Adapt: clients were lost in {MAX_ESTIMATIONS} estimations"
        )
    totals = tuple(estimation.totals)
    last = Adapt(state.round, len(totals), totals[-1:], state.class_prior)
    whole = replace(last, totals=totals)  # for clients that missed a step
    replies = server.request(
        server.labelling_with(everyone),
        lambda client: server.weighted(last, client) if client in members else whole,
        Adapted,
    )
    for client in (client for client, reply in replies.items() if reply.refused):
        server.report.bounds.add(client, "Adapt", "refused the priors, which contradict its most confident images")
    if config.method != "priors":  # there it is the result
        server.report.untrained = evaluate(server, state.round, None, through="priors")
    return estimation.outcome, totals


def _tell_newcomers(server: RoundExchange, clients: Sequence[str], request: Adapt) -> None:
    """Send the totals of all steps; the round goes on without a client that does not reply."""
    if clients:
        server.estimation = None
        with suppress(NoClientReplied):
            server.request(clients, lambda _: request, Adapted)


def refresh(config: RunConfig, server: RoundExchange, sums: Sums, state: ServerState) -> tuple[str, ...]:
    """Cooperative pseudo labelling (Eq. 2 and 3): all clients estimate, the sums go back, all select."""
    server.report.refreshed = True
    everyone = server.labelling_with(server.everyone())
    estimated, totals = sums.counts(server, everyone, Estimate(state.round, state.shared))
    server.report.totals = totals
    index = state.round // config.labels.refresh_every
    selected = server.request(estimated, lambda _: Select(state.round, index, totals, len(estimated)), Selected)
    server.report.labelling = labelling(selected.values())
    return tuple(selected)


def labelling(replies: Iterable[Selected]) -> Labelling | None:
    """Add up what the clients report of their labels; None if none does."""
    counted = [reply for reply in replies if reply.images is not None]
    compared = [reply for reply in counted if reply.unchanged is not None]
    if not counted:
        return None
    return Labelling(
        images=sum(reply.images or 0 for reply in counted),
        chosen=sum(reply.examples or 0 for reply in counted),
        compared=sum(reply.images or 0 for reply in compared),
        unchanged=sum(reply.unchanged or 0 for reply in compared),
    )


def train(
    config: RunConfig, server: RoundExchange, sums: Sums, state: ServerState, members: tuple[str, ...]
) -> tuple[Shared, Shared | None]:
    """Local training at the participants, and the average of what they share (Eq. 4); and the last good average.

    The clients report how the average they were sent fits their holdouts, compared with what they had. If it harms all
    of them together, it is rolled back with everything that was trained from it.
    """
    everyone = state.everyone_first and state.round == 0
    chosen = members if everyone else participants(config, members, state.round)
    trained = sums.training(server, chosen, lambda client: Train(state.round, state.shared, experts(state, client)))
    report = server.report
    report.participants, report.examples, report.batches = trained.clients, trained.examples, trained.batches
    report.loss, report.updates = trained.loss, dict(trained.updates)
    report.kept_old_prompt = trained.mean is None
    report.checks, report.server_rolled_back = trained.checks, has_harmed(trained) and state.good is not None
    if report.server_rolled_back and state.good is not None:
        return state.good, None  # there is no way further back: sites that had more than this keep it
    return (state.shared if trained.mean is None else trained.mean), state.shared


def has_harmed(trained: TrainingSum) -> bool:
    """Return whether the average fits the holdouts of all clients worse; from three on no single one decides."""
    if trained.holdouts:
        rises = [rise(Evidence(h.images, h.loss_before), Evidence(h.images, h.loss_after)) for h in trained.holdouts]
        return trimmed_total(rises) > 0
    checks = trained.checks
    return is_less_confident(Evidence(checks.images, checks.loss_before), Evidence(checks.images, checks.loss_after))


def stale_rounds(before: int, checks: HoldoutSums) -> int:
    """Return how many rounds in a row, up to this one, had an average that hardly gained on the held-out images.

    A round without held-out images to compare, as the first, changes nothing.
    """
    if not checks.images:
        return before
    return before + 1 if checks.loss_before - checks.loss_after < MIN_GAIN * checks.images else 0


def has_converged(config: RunConfig, stale: int) -> bool:
    """Return whether training stops: only with priors, whose calibrated holdout tells further training from none."""
    return config.adapts and 0 < config.train.patience <= stale


def experts(state: ServerState, client: str) -> tuple[Shared, ...]:
    """The prompts of those most like this client, for methods that learn from them; none before it has sent its own."""
    return tuple(state.uploads[other] for other in nearest(client, state.uploads, state.neighbours))


def participants(config: RunConfig, members: tuple[str, ...], round: int) -> tuple[str, ...]:
    """m = max(floor(R K), 1) of the members without replacement, in their usual order."""
    share = Fraction(str(config.sharing.participation))  # 0.29 of 100 is 29, not the 28.999... of binary fractions
    count = max(math.floor(share * len(members)), 1)
    drawn = stream(config.seed, "participation", round).choice(len(members), count, replace=False)
    return tuple(members[number] for number in sorted(drawn))


def is_evaluated(config: RunConfig, round: int) -> bool:
    """Whether accuracy is measured after this round."""
    return (round + 1) % config.evaluation.every == 0 or round + 1 == config.rounds


def evaluate(server: RoundExchange, round: int, shared: Shared | None, through: str = "") -> dict[str, Score]:
    """What each client gets right, by a model or by plain CLIP.

    Measuring changes no model: whoever cannot be measured is named, and the run goes on.
    """
    request = Evaluate(round, shared, through)
    scores = server.request_each(server.everyone(), lambda _: request, Evaluated)
    return {client: (score.correct, score.examples) for client, score in scores.items()}

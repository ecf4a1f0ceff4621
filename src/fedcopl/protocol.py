"""The FedCoPL run as the server sees it: the paper's algorithm, and nothing of how messages travel."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .config import RunConfig
from .core.aggregate import weighted_mean
from .core.neighbours import nearest
from .errors import NoClientAnswered
from .messages import (
    REPLY_TO,
    Ask,
    Estimate,
    Estimated,
    Evaluate,
    Evaluated,
    Reply,
    Select,
    Selected,
    Shared,
    Train,
    Trained,
    payload_bytes,
)
from .rng import stream

ReplyKind = TypeVar("ReplyKind", Estimated, Selected, Trained, Evaluated)


class Federation(Protocol):
    """Clients that can be asked. Those missing from the answer did not reply in time."""

    def clients(self) -> tuple[str, ...]: ...

    def ask(self, questions: Mapping[str, Ask]) -> dict[str, Reply]:
        """Replies in the order asked, not in the order they came: sums of floats depend on it."""
        ...


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


@dataclass
class RoundReport:
    """What happened in one round, as far as the server can know."""

    round: int
    refreshed: bool = False
    totals: NDArray[np.int64] | None = None  # T_c of this round's refresh
    participants: tuple[str, ...] = ()
    examples: int = 0
    batches: int = 0  # of one pass over all participants' images
    loss: float = float("nan")
    kept_old_prompt: bool = False  # nobody had anything to train on
    scores: dict[str, tuple[int, int]] = field(default_factory=dict)  # client -> (correct, of how many)
    updates: dict[str, Shared] = field(default_factory=dict)  # what each participant sent for averaging
    bytes_down: int = 0
    bytes_up: int = 0
    dropped: dict[str, str] = field(default_factory=dict)  # client -> what was wrong with its reply


AfterRound = Callable[[ServerState, RoundReport], None]


def run(config: RunConfig, federation: Federation, state: ServerState, after_round: AfterRound) -> ServerState:
    """Run the rounds that are left, and return the last state."""
    while state.round < config.rounds:
        state, report = play_round(config, federation, state)
        after_round(state, report)
    return state


def play_round(config: RunConfig, federation: Federation, state: ServerState) -> tuple[ServerState, RoundReport]:
    """One round of the paper's algorithm: refresh when due, train, aggregate, evaluate."""
    server = _Round(federation, RoundReport(state.round), state.classes)
    members = refresh(config, server, state) if state.round % config.labels.refresh_every == 0 else state.members
    shared = train(config, server, state, members)
    if is_evaluated(config, state.round):
        server.report.scores = evaluate(server, state.round, shared)
    uploads = {**state.uploads, **server.report.updates} if state.neighbours else {}
    return replace(state, round=state.round + 1, shared=shared, members=members, uploads=uploads), server.report


def zero_shot_scores(federation: Federation) -> dict[str, tuple[int, int]]:
    """What plain CLIP gets right at each client: the number to be better than."""
    return evaluate(_Round(federation, RoundReport(0), classes=0), 0, None)


def refresh(config: RunConfig, server: "_Round", state: ServerState) -> tuple[str, ...]:
    """Cooperative pseudo labelling (Eq. 2 and 3): all clients estimate, the sums go back, all select."""
    server.report.refreshed = True
    estimated = server.ask(server.federation.clients(), lambda _: Estimate(state.round, state.shared), Estimated)
    totals = _sum_of_counts(estimated.values()) if config.is_cooperative else None
    server.report.totals = totals
    index = state.round // config.labels.refresh_every
    selected = server.ask(estimated, lambda _: Select(state.round, index, totals, len(estimated)), Selected)
    return tuple(selected)


def _sum_of_counts(estimated: Iterable[Estimated]) -> NDArray[np.int64] | None:
    """T: nothing but the sum over the clients is ever used. None if nobody tells."""
    told = [reply.counts for reply in estimated if reply.counts is not None]
    return np.sum(told, axis=0, dtype=np.int64) if told else None


def train(config: RunConfig, server: "_Round", state: ServerState, members: tuple[str, ...]) -> Shared:
    """Local training at the participants, and the average of what they share (Eq. 4)."""
    everyone = state.everyone_first and state.round == 0
    chosen = members if everyone else participants(config, members, state.round)
    trained = server.ask(chosen, lambda client: Train(state.round, state.shared, experts(state, client)), Trained)
    weights = [reply.examples for reply in trained.values()]
    report = server.report
    report.participants, report.examples = tuple(trained), sum(weights)
    report.batches = sum(-(-weight // config.train.batch) for weight in weights)
    report.updates = {client: reply.shared for client, reply in trained.items()}
    if not sum(weights):
        report.kept_old_prompt = True
        return state.shared
    worked = [reply for reply in trained.values() if reply.examples]
    report.loss = float(np.average([r.loss for r in worked], weights=[r.examples for r in worked]))
    return weighted_mean([reply.shared for reply in worked], [reply.examples for reply in worked])


def experts(state: ServerState, client: str) -> tuple[Shared, ...]:
    """The prompts of those most like this client, for methods that learn from them; none before it has sent its own."""
    return tuple(state.uploads[other] for other in nearest(client, state.uploads, state.neighbours))


def participants(config: RunConfig, members: tuple[str, ...], round: int) -> tuple[str, ...]:
    """m = max(floor(R K), 1) of the members without replacement, in their usual order."""
    share = Fraction(str(config.sharing.participation))  # 0.29 of 100 is 29, not the 28.999... of binary fractions
    count = max(math.floor(share * len(members)), 1)
    drawn = stream(config.seed, "participation", round).choice(len(members), count, replace=False)
    return tuple(members[place] for place in sorted(drawn))


def is_evaluated(config: RunConfig, round: int) -> bool:
    """Whether accuracy is measured after this round."""
    return (round + 1) % config.evaluation.every == 0 or round + 1 == config.rounds


def evaluate(server: "_Round", round: int, shared: Shared | None) -> dict[str, tuple[int, int]]:
    scores = server.ask(server.federation.clients(), lambda _: Evaluate(round, shared), Evaluated)
    return {client: (score.correct, score.examples) for client, score in scores.items()}


@dataclass
class _Round:
    """Asks clients within one round, and keeps the account of what was sent and what had to be dropped."""

    federation: Federation
    report: RoundReport
    classes: int

    def ask(
        self, clients: Iterable[str], question: Callable[[str], Ask], kind: type[ReplyKind]
    ) -> dict[str, ReplyKind]:
        questions = {client: question(client) for client in clients}
        replies = self.federation.ask(questions)
        self.report.bytes_down += sum(payload_bytes(ask) for ask in questions.values())
        good = {}
        for client, reply in replies.items():
            wrong = what_is_wrong(questions[client], reply, self.classes)
            if wrong:
                self.report.dropped[client] = wrong
            elif isinstance(reply, kind):
                self.report.bytes_up += payload_bytes(reply)
                good[client] = reply
        if not good:
            raise NoClientAnswered(_nobody(questions, self.report.dropped))
        return good


def _nobody(questions: Mapping[str, Ask], dropped: Mapping[str, str]) -> str:
    if not questions:
        return "nobody is there to be asked; is anyone connected?"
    ask = next(iter(questions.values()))
    step = f"round {ask.round + 1}, step {type(ask).__name__}"
    if dropped:
        one, why = next(iter(dropped.items()))
        return f"{step}: no usable answer from {len(questions)} clients; {one}: {why}"
    return f"{step}: none of {len(questions)} clients answered; is anyone connected?"


def what_is_wrong(ask: Ask, reply: Reply, classes: int) -> str | None:
    """Why a reply must not be used, or None: one client's rubbish must not spoil the average."""
    if type(reply) is not REPLY_TO[type(ask)]:
        return f"answered {type(ask).__name__} with {type(reply).__name__}"
    match ask, reply:
        case Train(shared=sent), Trained(shared=back, examples=examples):
            return _wrong_prompts(sent, back) or _wrong_count(examples)
        case _, Estimated(counts=counts):
            return None if counts is None else _wrong_counts(counts, classes)
        case _, Evaluated(correct=correct, examples=examples):
            return _wrong_count(examples) or (None if 0 <= correct <= examples else "more right than there are")
        case _, Selected(examples=examples):
            return _wrong_count(examples)
    return None


def _wrong_prompts(sent: Shared, back: Shared) -> str | None:
    if set(back) != set(sent):
        return f"sent the prompts {sorted(back)} instead of {sorted(sent)}"
    for name, value in back.items():
        if value.shape != sent[name].shape or value.dtype != sent[name].dtype:
            return f"prompt {name} is {value.dtype}{value.shape} instead of {sent[name].dtype}{sent[name].shape}"
        if not np.isfinite(value).all():
            return f"prompt {name} is not finite: training diverged, try a lower train.lr"
    return None


def _wrong_counts(counts: NDArray[Any], classes: int) -> str | None:
    if counts.shape != (classes,) or not np.issubdtype(counts.dtype, np.integer):
        return f"counts are not one whole number for each of {classes} classes"
    return "counts are negative" if (counts < 0).any() else None


def _wrong_count(number: object) -> str | None:
    return None if isinstance(number, int) and number >= 0 else f"{number!r} is not a number of images"

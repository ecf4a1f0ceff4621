"""The server asks, and keeps the account of what was sent, what had to be dropped, and what was let out with noise."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..algorithm import FloatArray
from ..config import RunConfig
from ..errors import NoClientReplied
from ..messages import (
    Adapt,
    Adapted,
    Estimate,
    Estimated,
    Evaluated,
    KeyShares,
    PublicKeys,
    Reply,
    Request,
    Selected,
    Shared,
    Trained,
    Unmasked,
    payload_bytes,
)
from ..plurals import counted
from ..priors.estimation import Estimation
from ..privacy.accountant import Release
from ..privacy.masked_layout import NO_HOLDOUT_SUMS, HoldoutSums
from .validation import NOTHING_REPORTED, ReportedCounts, validate_reply

NO_ANSWER = "gave no answer that can be read"
REASONS = 3  # named of all that there are, where too few have replied
WhyNot = dict[str, str]
"""Client -> what is wrong with its reply."""
ReplyKind = TypeVar("ReplyKind", Adapted, Estimated, Selected, Trained, Evaluated, PublicKeys, KeyShares, Unmasked)


class Clients(Protocol):
    """Clients that can be asked. Those missing from the answer did not reply in time.

    `federation.server.run` runs against anything that
    has these three. Here two clients that live in a class; one of them is away:

    >>> from fedcopl.messages import Evaluate, Evaluated
    >>> class InMemory:
    ...     least = 1
    ...
    ...     def clients(self):
    ...         return ("north", "south")
    ...
    ...     def request(self, questions):
    ...         return {client: Evaluated(correct=8, examples=10) for client in questions if client == "north"}
    >>> server = RoundExchange(InMemory(), RoundReport(round=0), classes=2)
    >>> server.request(server.federation.clients(), lambda client: Evaluate(0, None), Evaluated)
    {'north': Evaluated(correct=8, examples=10)}
    """

    @property
    def least(self) -> int:
        """With fewer usable answers nothing goes on, where so many were asked; with none in any case."""
        return 1

    def clients(self) -> tuple[str, ...]:
        """Who can be asked now, in an order that stays the same."""
        ...

    def request(self, questions: Mapping[str, Request]) -> dict[str, Reply]:
        """Replies in the order asked, not in the order they came: sums of floats depend on it."""
        ...


@dataclass(frozen=True)
class Labelling:
    """What a refresh did at all clients together: what can be watched where nobody knows the truth."""

    images: int
    chosen: int  # of these images, to train on
    compared: int  # images of clients that had labelled before
    unchanged: int  # of these, labelled as before


class Reasons:
    """What had to be done about whom, and why: every reason, client by client, in the order they came.

    >>> reasons = Reasons()
    >>> for why in ("late", "late", "not finite"):
    ...     reasons.add("north", "Train", why)
    >>> reasons.in_words()
    {'north': 'Train: late (2 times); Train: not finite'}
    """

    def __init__(self) -> None:
        self._times: dict[str, Counter[str]] = {}

    def add(self, client: str, step: str, why: str) -> None:
        self._times.setdefault(client, Counter())[f"{step}: {why}"] += 1

    def take(self, other: "Reasons") -> None:
        """Those of another account too."""
        for client, times in other._times.items():
            self._times.setdefault(client, Counter()).update(times)

    def __contains__(self, client: str) -> bool:
        return client in self._times

    def in_words(self) -> dict[str, str]:
        return {client: "; ".join(map(_said_times, times.items())) for client, times in self._times.items()}


def _said_times(reason: tuple[str, int]) -> str:
    why, times = reason
    return why if times == 1 else f"{why} ({times} times)"


@dataclass
class RoundReport:
    """What happened in one round, as far as the server can know.

    >>> RoundReport(round=3).participants
    ()
    """

    round: int
    refreshed: bool = False
    totals: NDArray[np.int64] | None = None  # T_c of this round's refresh
    labelling: Labelling | None = None  # None without a refresh, and where clients do not report it
    participants: tuple[str, ...] = ()
    examples: int = 0  # 0 where the clients do not report it
    batches: int = 0  # of one pass over all participants' images
    loss: float = float("nan")
    checks: HoldoutSums = NO_HOLDOUT_SUMS  # of the clients' hold-out checks
    server_rolled_back: bool = False  # the average that this round began with harmed: the one before is back
    converged: bool = False  # training stops after this round: it no longer gains on the held-out images
    kept_old_prompt: bool = (
        False  # nobody had anything to train on, or the masks of a secure aggregation did not come off
    )
    scores: dict[str, tuple[int, int]] = field(default_factory=dict)  # client -> (correct, of how many)
    untrained: dict[str, tuple[int, int]] = field(default_factory=dict)  # the same by priors alone, before training
    updates: dict[str, Shared] = field(default_factory=dict)  # what each participant sent; none with secure aggregation
    bytes_down: int = 0
    bytes_up: int = 0
    drops: Reasons = field(default_factory=Reasons)  # what was wrong with whose replies
    bounds: Reasons = field(default_factory=Reasons)  # whose say in a sum was cut, and how far
    missed_refresh: tuple[str, ...] = ()  # known clients that train nothing until the next refresh
    releases: list[Release] = field(default_factory=list)  # for the account of differential privacy

    @property
    def dropped(self) -> dict[str, str]:
        """Client -> what was wrong with its replies, step by step."""
        return self.drops.in_words()


@dataclass
class RoundExchange:
    """Asks clients within one round, and enters into its report what was sent and what was wrong.

    >>> from fedcopl.messages import Evaluate, Evaluated
    >>> class Two:
    ...     least = 1
    ...
    ...     def clients(self):
    ...         return ("north", "south")
    ...
    ...     def request(self, questions):
    ...         return {"north": Evaluated(correct=8, examples=10), "south": Evaluated(correct=11, examples=10)}
    >>> server = RoundExchange(Two(), RoundReport(round=0), classes=2)
    >>> list(server.request(("north", "south"), lambda client: Evaluate(0, None), Evaluated))
    ['north']
    >>> server.report.dropped
    {'south': 'Evaluate: more right than there are'}
    """

    federation: Clients
    report: RoundReport
    classes: int
    config: RunConfig = field(default_factory=RunConfig)
    left_out: dict[str, str] = field(
        default_factory=dict
    )  # client -> why it is in no secure aggregation of this run any more
    reported: dict[str, ReportedCounts] = field(default_factory=dict)  # what each client reported of itself
    seen: tuple[str, ...] = ()  # everybody who could ever be asked
    refused: set[str] = field(default_factory=set)  # whose labelling made no sense: in no more of this round's
    estimation: Estimation | None = None  # of the priors, as far as it has come
    prior_weights: dict[str, float] = field(default_factory=dict)  # of clients whose sums for the priors are clipped
    posterior_sums: list[tuple[FloatArray, dict[str, FloatArray]]] = field(
        default_factory=list
    )  # of this estimation of the priors: a logit bias, and each client's posteriors under it

    def __post_init__(self) -> None:
        self._note(self.left_out)

    def request(
        self, clients: Iterable[str], question: Callable[[str], Request], kind: type[ReplyKind]
    ) -> dict[str, ReplyKind]:
        """The usable replies; NoClientReplied if there are too few."""
        questions = {client: question(client) for client in clients}
        good, wrong = self._usable(questions, kind)
        needed = max(1, min(self.federation.least, len(questions)))
        if len(good) < needed:
            raise NoClientReplied(too_few(questions, len(good), needed, wrong))
        return good

    def request_each(
        self, clients: Iterable[str], question: Callable[[str], Request], kind: type[ReplyKind]
    ) -> dict[str, ReplyKind]:
        """The usable replies to what nothing depends on: there may be none."""
        questions = {client: question(client) for client in clients}
        return self._usable(questions, kind)[0] if questions else {}

    def _usable(self, questions: Mapping[str, Request], kind: type[ReplyKind]) -> tuple[dict[str, ReplyKind], WhyNot]:
        """The usable replies, and what is wrong with the others."""
        replies = self.federation.request(questions)
        self.report.bytes_down += _payload_of_all(questions.values())
        wrong = dict.fromkeys(questions.keys() - replies.keys(), NO_ANSWER) | self._refused(questions, replies)
        good = {client: reply for client, reply in replies.items() if client not in wrong and isinstance(reply, kind)}
        for client, reply in good.items():
            self.report.bytes_up += payload_bytes(reply)
            before = self.reported.get(client, NOTHING_REPORTED)
            self.reported[client] = before.updated(questions[client], reply, self.estimation)
        return good, wrong

    def _refused(self, questions: Mapping[str, Request], replies: Mapping[str, Reply]) -> WhyNot:
        """Return the reasons of invalid replies, and enter them into the report."""
        wrong = {}
        for client, reply in replies.items():
            reported = self.reported.get(client, NOTHING_REPORTED)
            why = validate_reply(questions[client], reply, self.classes, self.config, reported, self.estimation)
            if why:
                wrong[client] = why
        for client, why in wrong.items():
            self.report.drops.add(client, type(questions[client]).__name__, why)
        self.refused.update(client for client in wrong if isinstance(questions[client], Adapt | Estimate))
        return wrong

    def drop(self, client: str, step: str, why: str) -> None:
        """Leave a client out of the rest of this round's labelling."""
        self.report.drops.add(client, step, why)
        self.refused.add(client)

    def weighted(self, request: Adapt, client: str) -> Adapt:
        """Return a step of the priors as one client gets it: with its weight in the totals, where that is clipped."""
        return replace(request, weight=self.prior_weights[client]) if client in self.prior_weights else request

    def leave_out(self, clients: Mapping[str, str]) -> None:
        """For the rest of the run, with the reason for each."""
        self.left_out |= clients
        self._note(clients)

    def _note(self, clients: Mapping[str, str]) -> None:
        for client, why in clients.items():
            self.report.drops.add(client, "secure aggregation", why)

    def still_in(self, clients: Iterable[str]) -> tuple[str, ...]:
        return tuple(client for client in clients if client not in self.left_out)

    def everyone(self) -> tuple[str, ...]:
        """Who can be asked now; whoever ever could is known from then on."""
        present = self.federation.clients()
        self.seen = tuple(dict.fromkeys((*self.seen, *present)))
        return present

    def labelling_with(self, clients: Iterable[str]) -> tuple[str, ...]:
        """Who is in the rest of this round's labelling."""
        return tuple(client for client in self.still_in(clients) if client not in self.refused)

    def account(self, of: str, clients: Iterable[str], share: float = 1.0) -> None:
        """Enter into the account what was learnt from these clients; `share` of the noise's variance was there."""
        noise = self.config.privacy.noise_multiplier
        if noise:
            self.report.releases.append(Release(of, noise * math.sqrt(share), tuple(clients)))


def _payload_of_all(questions: Iterable[Request]) -> int:
    """In bytes; what all are asked alike is looked at once."""
    times = Counter(map(id, questions))
    return sum(times.pop(id(request)) * payload_bytes(request) for request in questions if id(request) in times)


def too_few(questions: Mapping[str, Request], usable: int, needed: int, wrong: Mapping[str, str]) -> str:
    """Return in which step how many replies are missing, and why: first clients whose reply was invalid."""
    if not questions:
        return "nobody is there to be asked; is anyone connected?"
    request = next(iter(questions.values()))
    step = f"round {request.round + 1}, step {type(request).__name__}"
    if set(wrong.values()) <= {NO_ANSWER} and not usable:
        return f"{step}: none of {counted(len(questions), 'client')} answered; is anyone connected?"
    unusable = sorted(
        (client for client in questions if client in wrong), key=lambda client: wrong[client] == NO_ANSWER
    )
    reasons = [f"{client}: {wrong[client]}" for client in unusable[:REASONS]]
    more = [f"and {len(unusable) - REASONS} more"] * (len(unusable) > REASONS)
    count = f"{counted(usable, 'usable answer')} from {counted(len(questions), 'client')}"
    least = f"at least {needed} {'is' if needed == 1 else 'are'} needed"
    return "; ".join([f"{step}: {count}, and {least}", *reasons, *more])

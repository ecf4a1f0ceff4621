"""Requests to the clients within one round, and the report of what was sent, dropped, clipped and released."""

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

_NO_REPLY = "did not send a readable reply"
_MAX_REASONS = 3  # reasons that are named in the error message of a round with too few replies
_ReplyKind = TypeVar("_ReplyKind", Adapted, Estimated, Selected, Trained, Evaluated, PublicKeys, KeyShares, Unmasked)


class Transport(Protocol):
    """Sends requests to clients. Clients that are missing from the result did not reply in time.

    `federation.server.run_round` works with any object that has these three members. Two clients that live in a class,
    one of which is away:

    >>> from fedcopl.messages import Evaluate, Evaluated
    >>> class InMemory:
    ...     least = 1
    ...
    ...     def clients(self):
    ...         return ("north", "south")
    ...
    ...     def request(self, requests):
    ...         return {client: Evaluated(correct=8, examples=10) for client in requests if client == "north"}
    >>> exchange = RoundExchange(InMemory(), RoundReport(round=0), classes=2)
    >>> exchange.request(exchange.everyone(), lambda client: Evaluate(0, None), Evaluated)
    {'north': Evaluated(correct=8, examples=10)}
    """

    @property
    def least(self) -> int:
        """Minimum number of usable replies, where at least as many clients got a request."""
        return 1

    def clients(self) -> tuple[str, ...]:
        """Return the clients that are connected now, in an order that stays the same."""
        ...

    def request(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        """Send each client its request; return the replies in the order of the requests.

        Not in the order in which they arrive: sums of floats depend on it.
        """
        ...


@dataclass(frozen=True)
class Labelling:
    """Counts of a refresh over all clients, known without ground truth."""

    images: int
    chosen: int  # of these images, selected for training
    compared: int  # images of clients that had pseudo labels before
    unchanged: int  # of these, with the same pseudo label


class Reasons:
    """Reasons by client, in the order in which they were added.

    >>> reasons = Reasons()
    >>> for why in ("late", "late", "not finite"):
    ...     reasons.add("north", "Train", why)
    >>> reasons.in_words()
    {'north': 'Train: late (2 times); Train: not finite'}
    """

    def __init__(self) -> None:
        self._times: dict[str, Counter[str]] = {}

    def add(self, client: str, step: str, reason: str) -> None:
        """Add a reason that concerns a client, with the step in which it occurred."""
        self._times.setdefault(client, Counter())[f"{step}: {reason}"] += 1

    def take(self, other: "Reasons") -> None:
        """Add all reasons of another object."""
        for client, times in other._times.items():
            self._times.setdefault(client, Counter()).update(times)

    def __contains__(self, client: str) -> bool:
        return client in self._times

    def in_words(self) -> dict[str, str]:
        """Return one line for each client."""
        return {
            client: "; ".join(reason if count == 1 else f"{reason} ({count} times)" for reason, count in times.items())
            for client, times in self._times.items()
        }


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
    server_rolled_back: bool = False  # the average of the round before harmed, and the one before it is restored
    converged: bool = False  # training stops after this round: it no longer gains on the held-out images
    kept_old_prompt: bool = False  # no client trained, or a secure aggregation could not be unmasked
    scores: dict[str, tuple[int, int]] = field(default_factory=dict)  # client -> (correct, test images)
    untrained: dict[str, tuple[int, int]] = field(default_factory=dict)  # scores of the priors alone, before training
    updates: dict[str, Shared] = field(default_factory=dict)  # of each participant; empty with secure aggregation
    bytes_down: int = 0
    bytes_up: int = 0
    drops: Reasons = field(default_factory=Reasons)  # invalid replies
    bounds: Reasons = field(default_factory=Reasons)  # weights and updates that were clipped
    missed_refresh: tuple[str, ...] = ()  # known clients that train nothing until the next refresh
    releases: list[Release] = field(default_factory=list)  # for the account of differential privacy

    @property
    def dropped(self) -> dict[str, str]:
        """Clients whose replies were invalid, with all reasons."""
        return self.drops.in_words()


@dataclass
class RoundExchange:
    """Sends requests within one round, validates the replies, and fills the round's report.

    >>> from fedcopl.messages import Evaluate, Evaluated
    >>> class Two:
    ...     least = 1
    ...
    ...     def clients(self):
    ...         return ("north", "south")
    ...
    ...     def request(self, requests):
    ...         return {"north": Evaluated(correct=8, examples=10), "south": Evaluated(correct=11, examples=10)}
    >>> exchange = RoundExchange(Two(), RoundReport(round=0), classes=2)
    >>> list(exchange.request(("north", "south"), lambda client: Evaluate(0, None), Evaluated))
    ['north']
    >>> exchange.report.dropped
    {'south': 'Evaluate: more correct predictions than examples'}
    """

    transport: Transport
    report: RoundReport
    classes: int
    config: RunConfig = field(default_factory=RunConfig)
    reported_counts: dict[str, ReportedCounts] = field(default_factory=dict)  # by client, of all rounds so far
    ever_connected: tuple[str, ...] = ()  # all clients that were ever connected
    dropped: set[str] = field(default_factory=set)  # clients left out of the rest of this round's labelling
    estimation: Estimation | None = None  # of the priors, as far as it has come
    prior_weights: dict[str, float] = field(default_factory=dict)  # of clients whose sums for the priors are clipped
    posterior_sums: list[tuple[FloatArray, dict[str, FloatArray]]] = field(
        default_factory=list
    )  # of this estimation of the priors: a logit bias, and each client's posteriors under it

    def request(
        self,
        clients: Iterable[str],
        request_for: Callable[[str], Request],
        kind: type[_ReplyKind],
        *,
        required: bool = True,
    ) -> dict[str, _ReplyKind]:
        """Send a request to each of some clients, and return the valid replies.

        Args:
            request_for: Makes the request for a client.
            required: Whether the round depends on the replies.

        Raises:
            NoClientReplied: The replies are required, and fewer than `Transport.least` are valid.
        """
        requests = {client: request_for(client) for client in clients}
        if not requests and not required:
            return {}
        replies = self.transport.request(requests)
        distinct = {id(request): request for request in requests.values()}  # one object may go to all clients
        sizes = {key: payload_bytes(request) for key, request in distinct.items()}
        self.report.bytes_down += sum(sizes[id(request)] for request in requests.values())
        valid: dict[str, _ReplyKind] = {}
        invalid = dict.fromkeys(requests.keys() - replies.keys(), _NO_REPLY)
        for client, reply in replies.items():
            request, reported = requests[client], self.reported_counts.get(client, NOTHING_REPORTED)
            reason = validate_reply(request, reply, self.classes, self.config, reported, self.estimation)
            if reason:
                invalid[client] = reason
                self.report.drops.add(client, type(request).__name__, reason)
                if isinstance(request, Adapt | Estimate):
                    self.dropped.add(client)
            elif isinstance(reply, kind):
                valid[client] = reply
                self.report.bytes_up += payload_bytes(reply)
                self.reported_counts[client] = reported.updated(request, reply, self.estimation)
        needed = max(1, min(self.transport.least, len(requests)))
        if required and len(valid) < needed:
            raise NoClientReplied(too_few_message(requests, len(valid), needed, invalid))
        return valid

    def drop(self, client: str, step: str, reason: str) -> None:
        """Leave a client out of the rest of this round's labelling."""
        self.report.drops.add(client, step, reason)
        self.dropped.add(client)

    def weighted(self, request: Adapt, client: str) -> Adapt:
        """Return a step of the priors as one client gets it: with its weight in the totals, where that is clipped."""
        return replace(request, weight=self.prior_weights[client]) if client in self.prior_weights else request

    def everyone(self) -> tuple[str, ...]:
        """Return the clients that are connected now, and remember them."""
        connected = self.transport.clients()
        self.ever_connected = tuple(dict.fromkeys((*self.ever_connected, *connected)))
        return connected

    def without_dropped(self, clients: Iterable[str]) -> tuple[str, ...]:
        """Return the given clients, without those that this round's labelling has dropped."""
        return tuple(client for client in clients if client not in self.dropped)

    def account(self, of: str, clients: Iterable[str]) -> None:
        """Enter a release into the privacy account."""
        noise = self.config.privacy.noise_multiplier
        if noise:
            self.report.releases.append(Release(of, noise, tuple(clients)))


def too_few_message(requests: Mapping[str, Request], usable: int, needed: int, invalid: Mapping[str, str]) -> str:
    """Return the error message of a step with too few usable replies.

    Args:
        usable: The number of valid replies.
        needed: The number of replies that the round needs.
        invalid: Client -> why its reply cannot be used; invalid replies are named before missing ones.
    """
    if not requests:
        return "no client is connected"
    request = next(iter(requests.values()))
    step = f"round {request.round + 1}, step {type(request).__name__}"
    if set(invalid.values()) <= {_NO_REPLY} and not usable:
        return f"{step}: none of {counted(len(requests), 'client')} replied; is any client connected?"
    unusable = sorted(filter(invalid.__contains__, requests), key=lambda client: invalid[client] == _NO_REPLY)
    reasons = [f"{client}: {invalid[client]}" for client in unusable[:_MAX_REASONS]]
    more = [f"and {len(unusable) - _MAX_REASONS} more"] * (len(unusable) > _MAX_REASONS)
    count = f"{counted(usable, 'usable reply', 'usable replies')} from {counted(len(requests), 'client')}"
    least = f"at least {needed} {'is' if needed == 1 else 'are'} needed"
    return "; ".join([f"{step}: {count}, and {least}", *reasons, *more])

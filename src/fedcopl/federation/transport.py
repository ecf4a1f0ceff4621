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
from ..messages import Adapt, Estimate, Reply, Request, Shared, payload_bytes
from ..plurals import counted
from ..priors.estimation import Estimation
from ..privacy.accountant import Release
from ..privacy.masked_layout import NO_HOLDOUT_SUMS, HoldoutSums
from .validation import NOTHING_REPORTED, ReportedCounts, validate_reply

_NO_REPLY = "did not send a readable reply"
_MAX_REASONS = 3  # in the error message of a round with too few replies
_ReplyKind = TypeVar("_ReplyKind", bound=Reply)


class Transport(Protocol):
    """Sends requests to clients. A client that does not reply in time is missing from the result.

    `federation.server.run_round` works with any object that has these three members. Two clients in memory, of which
    only one replies:

    >>> from fedcopl.messages import Evaluate, Evaluated
    >>> class InMemory:
    ...     min_replies = 1
    ...
    ...     def clients(self):
    ...         return ("north", "south")
    ...
    ...     def request(self, requests):
    ...         return {client: Evaluated(correct=8, examples=10) for client in requests if client == "north"}
    >>> exchange = RoundExchange(InMemory(), RoundReport(round=0), classes=2)
    >>> exchange.request(exchange.connected(), lambda client: Evaluate(0, None), Evaluated)
    {'north': Evaluated(correct=8, examples=10)}
    """

    @property
    def min_replies(self) -> int:
        """Minimum number of usable replies to a request that goes to at least as many clients."""
        return 1

    def clients(self) -> tuple[str, ...]:
        """Return the connected clients, in an order that does not change during a run."""
        ...

    def request(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        """Send each client its request; return the replies in the order of the requests, on which float sums depend."""
        ...


@dataclass(frozen=True)
class Labelling:
    """Sums of the clients' label counts at a refresh, which need no ground truth."""

    images: int  # training images
    chosen: int  # images selected for training
    compared: int  # images of clients that had pseudo labels before
    unchanged: int  # compared images with the same pseudo label


class Reasons:
    """The reasons for which replies were dropped or clipped, by client, in the order in which they were added.

    >>> reasons = Reasons()
    >>> for why in ("late", "late", "not finite"):
    ...     reasons.add("north", "Train", why)
    >>> reasons.summary()
    {'north': 'Train: late (2 times); Train: not finite'}
    """

    def __init__(self) -> None:
        self._times: dict[str, Counter[str]] = {}

    def add(self, client: str, step: str, reason: str) -> None:
        """Add a client's reason, with the name of the request that it concerns."""
        self._times.setdefault(client, Counter())[f"{step}: {reason}"] += 1

    def add_all(self, other: "Reasons") -> None:
        """Add all reasons of another object."""
        for client, times in other._times.items():
            self._times.setdefault(client, Counter()).update(times)

    def summary(self) -> dict[str, str]:
        """Return all reasons of each client in one line."""
        return {
            client: "; ".join(reason if count == 1 else f"{reason} ({count} times)" for reason, count in times.items())
            for client, times in self._times.items()
        }


@dataclass
class RoundReport:
    """The server's report of one round."""

    round: int
    refreshed: bool = False
    totals: NDArray[np.int64] | None = None  # T_c of this round's refresh
    labelling: Labelling | None = None  # None without a refresh, and where clients do not report it
    participants: tuple[str, ...] = ()
    examples: int = 0  # 0 where the clients do not report it
    batches: int = 0  # in one epoch, over all participants
    loss: float = float("nan")
    checks: HoldoutSums = NO_HOLDOUT_SUMS  # of the clients' hold-out checks
    server_rolled_back: bool = False  # the last average was harmful; the one before it was restored
    converged: bool = False  # training stops after this round: it no longer gains on the held-out images
    kept_old_prompt: bool = False  # no client trained, or a secure aggregation could not be unmasked
    scores: dict[str, tuple[int, int]] = field(default_factory=dict)  # client -> (correct, test images)
    untrained: dict[str, tuple[int, int]] = field(default_factory=dict)  # scores of the priors without training
    updates: dict[str, Shared] = field(default_factory=dict)  # trained prompts by participant; empty with masks
    bytes_down: int = 0
    bytes_up: int = 0
    drops: Reasons = field(default_factory=Reasons)  # invalid replies
    bounds: Reasons = field(default_factory=Reasons)  # clipped weights and updates
    missed_refresh: tuple[str, ...] = ()  # clients that do not train until the next refresh
    releases: list[Release] = field(default_factory=list)  # for the accounting of differential privacy

    @property
    def dropped(self) -> dict[str, str]:
        """All reasons for which a client's replies were invalid, by client."""
        return self.drops.summary()


@dataclass
class RoundExchange:
    """Sends requests within one round, validates the replies, and fills the round's report."""

    transport: Transport
    report: RoundReport
    classes: int
    config: RunConfig = field(default_factory=RunConfig)
    reported_counts: dict[str, ReportedCounts] = field(default_factory=dict)  # by client, of all rounds so far
    ever_connected: tuple[str, ...] = ()  # all clients that were ever connected
    excluded: set[str] = field(default_factory=set)  # clients that are left out of the rest of this round's refresh
    estimation: Estimation | None = None  # the prior estimation with the steps so far
    prior_weights: dict[str, float] = field(default_factory=dict)  # in its totals; only clients with a weight below 1
    posterior_sums: list[tuple[FloatArray, dict[str, FloatArray]]] = field(default_factory=list)
    """Logit biases, and each client's sum of posteriors under each, of this prior estimation."""

    def request(
        self,
        clients: Iterable[str],
        request_for: Callable[[str], Request],
        kind: type[_ReplyKind],
        *,
        required: bool = True,
    ) -> dict[str, _ReplyKind]:
        """Send each client its request, and return the valid replies.

        Args:
            request_for: Returns the request for a client.
            required: Whether the round fails without enough replies.

        Raises:
            NoClientReplied: Fewer than `Transport.min_replies` of the required replies are valid.
        """
        requests = {client: request_for(client) for client in clients}
        if not requests and not required:
            return {}
        replies = self.transport.request(requests)
        distinct = {id(request): request for request in requests.values()}  # usually one object for all clients
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
                    self.excluded.add(client)
            elif isinstance(reply, kind):
                valid[client] = reply
                self.report.bytes_up += payload_bytes(reply)
                self.reported_counts[client] = reported.updated(request, reply, self.estimation)
        min_replies = max(1, min(self.transport.min_replies, len(requests)))
        if required and len(valid) < min_replies:
            raise NoClientReplied(too_few_message(requests, len(valid), min_replies, invalid))
        return valid

    def exclude(self, client: str, step: str, reason: str) -> None:
        """Exclude a client from the rest of this round's refresh, and add the reason to the report."""
        self.report.drops.add(client, step, reason)
        self.excluded.add(client)

    def weighted(self, request: Adapt, client: str) -> Adapt:
        """Return the request of a prior estimation step with the client's weight, if that is below 1."""
        return replace(request, weight=self.prior_weights[client]) if client in self.prior_weights else request

    def connected(self) -> tuple[str, ...]:
        """Return the connected clients, and add them to `ever_connected`."""
        connected = self.transport.clients()
        self.ever_connected = tuple(dict.fromkeys((*self.ever_connected, *connected)))
        return connected

    def without_excluded(self, clients: Iterable[str]) -> tuple[str, ...]:
        """Return the clients that this round's refresh has not excluded."""
        return tuple(client for client in clients if client not in self.excluded)

    def add_release(self, of: str, clients: Iterable[str]) -> None:
        """Add a release to the privacy accounting; none without noise."""
        noise = self.config.privacy.noise_multiplier
        if noise:
            self.report.releases.append(Release(of, noise, tuple(clients)))


def too_few_message(requests: Mapping[str, Request], usable: int, min_replies: int, invalid: Mapping[str, str]) -> str:
    """Return the error message of a step with too few usable replies; `invalid` has the reasons by client."""
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
    least = f"at least {min_replies} {'is' if min_replies == 1 else 'are'} needed"
    return "; ".join([f"{step}: {count}, and {least}", *reasons, *more])

"""Sums and averages over clients, of plain replies or by secure aggregation."""

import functools
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..algorithm.robust import (
    MIN_CLIENTS,
    bounded_counts,
    bounded_weights,
    clip_evidence,
    clip_update,
    inconsistent_posterior_sums,
    robust_mean,
    swapped_classes,
    update_excess,
)
from ..config import RunConfig
from ..errors import NoClientReplied
from ..labelers import choose_labeler
from ..messages import (
    REPLY_TO,
    Adapt,
    Adapted,
    Estimate,
    Estimated,
    KeyShares,
    PublicKeys,
    SetupKeys,
    Shared,
    ShareKeys,
    Train,
    Trained,
    Unmask,
    Unmasked,
    digest,
)
from ..plurals import counted
from ..priors.statistics import Statistic
from ..priors.validation import validate_sums
from ..privacy.mask_session import CannotUnmask, unmask_threshold
from ..privacy.masked_layout import (
    NO_HOLDOUT_SUMS,
    HoldoutSums,
    InvalidMaskedUpdate,
    TrainingSum,
    Values,
    Words,
    batches_of,
    decode_counts,
    decode_sums,
    decode_training,
)
from .transport import RoundExchange

Totals = NDArray[np.int64]
_Clients = tuple[str, ...]


@dataclass(frozen=True)
class PlainAggregator:
    """Sums and averages of replies that the server can read, with bounds on the influence of each client."""

    config: RunConfig

    def counts(
        self, exchange: RoundExchange, clients: Iterable[str], request: Estimate
    ) -> tuple[_Clients, Totals | None]:
        """Return the clients in the sum, and T, (C,), the sum of their class counts; None if counts are not sent."""
        estimated = exchange.request(clients, lambda _: request, Estimated)
        sent = {client: reply.counts for client, reply in estimated.items() if reply.counts is not None}
        if not sent or not choose_labeler(self.config).cooperative:
            return tuple(estimated), None
        exchange.add_release("counts", estimated)
        rows = _clip_counts(exchange, sent) if self.config.sharing.bounded else list(sent.values())
        return tuple(estimated), np.maximum(np.sum(rows, axis=0, dtype=np.int64), 0)  # noise can make it negative

    def adaptation(self, exchange: RoundExchange, clients: Iterable[str], request: Adapt) -> tuple[_Clients, Values]:
        """Return the clients that replied to a step of the prior estimation, and the sum over them."""
        adapted = exchange.request(clients, lambda client: exchange.weighted(request, client), Adapted)
        exchange.add_release("sums", adapted)
        sums = {client: reply.sums for client, reply in adapted.items() if reply.sums is not None}
        if self.config.sharing.bounded and not self.config.privacy.noise_multiplier:
            _drop_inconsistent_posterior_sums(exchange, request.step, sums)
            _drop_swapped_classes(exchange, request.step, sums)
            _clip_evidence(exchange, request.step, sums)
        if not request.step:
            exchange.prior_weights = _prior_weights(exchange, sums) if self.config.sharing.bounded else {}
        weights = exchange.prior_weights
        rows = (weights[client] * row if client in weights else row for client, row in sums.items())
        return tuple(sums), functools.reduce(np.add, rows)  # np.sum would need a stacked copy of all rows

    def training(self, exchange: RoundExchange, clients: Iterable[str], request: Callable[[str], Train]) -> TrainingSum:
        """Return the average of the shared prompts, by `sharing.robust` (mean: Eq. 4), and the sums of the reports."""
        participants, sharing = tuple(clients), self.config.sharing
        trained = exchange.request(participants, request, Trained)
        if any(reply.shared for reply in trained.values()):
            exchange.add_release("prompts", trained)
        checks = [HoldoutSums(*reply.checks) for reply in trained.values() if reply.checks]
        if sharing.bounded:
            trained = _clip_updates(exchange, trained, request(participants[0]).shared)
        with_images = [reply for reply in trained.values() if reply.examples]
        mean = None
        if with_images:
            weights = [reply.examples for reply in with_images]
            mean = robust_mean(sharing.robust, [reply.shared for reply in with_images], weights)
        with_loss = [reply for reply in with_images if not math.isnan(reply.loss)]
        weights = [reply.examples for reply in with_loss]
        loss = float(np.average([reply.loss for reply in with_loss], weights=weights)) if with_loss else math.nan
        batches = sum(batches_of(weight, self.config.train.batch) for weight in weights)
        total = HoldoutSums(*np.sum(checks or [NO_HOLDOUT_SUMS], axis=0).tolist())
        updates = {client: reply.shared for client, reply in trained.items()}
        compared = tuple(sums for sums in checks if sums.images)
        holdouts = compared if sharing.bounded and len(compared) >= MIN_CLIENTS else ()
        return TrainingSum(tuple(trained), sum(weights), batches, loss, mean, total, updates, holdouts)


def _clip_counts(exchange: RoundExchange, sent: Mapping[str, Totals]) -> list[Totals]:
    """Return each client's class counts, bounded by those of the other clients."""
    rows = np.stack(list(sent.values()))
    bounded = bounded_counts(rows)
    for client, row, clipped in zip(sent, rows, bounded, strict=True):
        if (clipped != row).any():
            before, after = (int(np.abs(counts).sum()) for counts in (row, clipped))
            clip = f"counts clipped from {before:,} to {counted(after, 'image')}"
            exchange.report.bounds.add(client, "Estimate", clip)
    return list(bounded)


def _statistics(exchange: RoundExchange, step: int) -> Iterator[tuple[Statistic, slice, tuple[int, ...]]]:
    """Yield each statistic of a step of the prior estimation, its slice of a client's sums, and its shape."""
    estimation, start = exchange.estimation, 0
    for statistic in () if estimation is None else estimation.steps[step]:
        shape = statistic.shape(exchange.classes, 0 if estimation is None else estimation.settings.width)
        yield statistic, slice(start, start + math.prod(shape)), shape
        start += math.prod(shape)


def _drop_inconsistent_posterior_sums(exchange: RoundExchange, step: int, sums: dict[str, Values]) -> None:
    """Drop each client whose posterior sums under several logit biases cannot come from the same images."""
    classes = exchange.classes
    if not step:
        exchange.posterior_sums = []
    for statistic, columns, shape in _statistics(exchange, step):
        if statistic.kind == "moments":
            zero_shot = {client: row[1 : 1 + classes] for client, row in sums.items()}
            exchange.posterior_sums.append((np.zeros(classes), zero_shot))
        for number, model in enumerate(statistic.models if statistic.kind == "predicted" else ()):
            if model.prototypes is None and model.text_scale == 1:
                rows = {client: row[columns].reshape(shape)[number] for client, row in sums.items()}
                exchange.posterior_sums.append((model.logit_bias + np.log(model.class_prior), rows))
    sums_by_bias, clients = exchange.posterior_sums, list(sums)
    if len(sums_by_bias) < 2 or "predicted" not in {statistic.kind for statistic, _, _ in _statistics(exchange, step)}:
        return
    sums_by_client = np.array([[rows[client] for _, rows in sums_by_bias] for client in clients])
    for number in inconsistent_posterior_sums(np.array([bias for bias, _ in sums_by_bias]), sums_by_client):
        exchange.exclude(clients[number], "Adapt", "its posterior sums under several logit biases are contradictory")
        del sums[clients[number]]


def _clip_evidence(exchange: RoundExchange, step: int, sums: dict[str, Values]) -> None:
    """Bound each client's evidence per image, in `sums`, by that of the other clients."""
    images = {client: max(exchange.reported_counts[client].images or 0, 1) for client in sums}
    for statistic, columns, _ in _statistics(exchange, step):
        if statistic.kind not in ("evidence", "agreement"):
            continue
        rows = np.array([row[columns] / images[client] for client, row in sums.items()])
        for client, row, clipped in zip(list(sums), rows, clip_evidence(rows), strict=True):
            if (row != clipped).any():
                sums[client] = sums[client].copy()
                sums[client][columns] = clipped * images[client]
                exchange.report.bounds.add(client, "Adapt", f"{statistic.kind} clipped to that of the other clients")


def _drop_swapped_classes(exchange: RoundExchange, step: int, sums: dict[str, Values]) -> None:
    """Drop each client whose class means are nearer to other classes; the estimation then starts again."""
    estimation = exchange.estimation
    if estimation is None or [statistic.kind for statistic in estimation.steps[step]] != ["class_sums"]:
        return
    shape = estimation.steps[step][0].shape(estimation.settings.classes, estimation.settings.width)
    clients = list(sums)
    for number in swapped_classes(np.stack([sums[client].reshape(shape) for client in clients])):
        exchange.exclude(clients[number], "Adapt", "its class means are those of other classes at the other clients")
        del sums[clients[number]]


def _prior_weights(exchange: RoundExchange, clients: Iterable[str]) -> dict[str, float]:
    """Return the weight, below 1, of each client with over ten times the median number of images of the others."""
    images = {client: exchange.reported_counts[client].images or 0 for client in clients}
    weights = {}
    for (client, count), bound in zip(images.items(), bounded_weights(list(images.values())), strict=True):
        if bound < count:
            weights[client] = bound / count
            clip = f"weight clipped from {count:,} to {counted(bound, 'image')}"
            exchange.report.bounds.add(client, "Adapt", clip)
    return weights


def _clip_updates(exchange: RoundExchange, trained: Mapping[str, Trained], sent: Shared) -> dict[str, Trained]:
    """Return the replies with weights and lengths of updates bounded by those of the other clients."""
    with_images = {client: reply for client, reply in trained.items() if reply.examples}
    weights = bounded_weights([reply.examples for reply in with_images.values()])
    excess = update_excess([reply.shared for reply in with_images.values()], sent)
    clipped = {}
    for (client, reply), weight, ratios in zip(with_images.items(), weights, excess, strict=True):
        if weight < reply.examples:
            clip = f"weight clipped from {reply.examples:,} to {counted(weight, 'image')}"
            exchange.report.bounds.add(client, "Train", clip)
        for name in (name for name in ratios if ratios[name] > 1):
            clip = f"update of {name} clipped to 1/{ratios[name]:.1f} of its length"
            exchange.report.bounds.add(client, "Train", clip)
        clipped[client] = replace(reply, examples=weight, shared=clip_update(reply.shared, sent, ratios))
    return {**trained, **clipped}


_SESSION_NAME_BYTES = 16
_RequestFactory = Callable[[_Clients], Adapt | Estimate | Train]
"""Makes the request for masked replies, given the members of the sum."""


class _LostMembers(Exception):
    """Members of a secure aggregation did not reply, so that their sum cannot be unmasked."""

    def __init__(self, members: Collection[str], remaining: Collection[str]):
        self.lost = tuple(client for client in members if client not in remaining)
        self.remaining = tuple(remaining)
        super().__init__(
            f"{', '.join(self.lost)} did not reply, and all secure aggregations of a run must have the same members"
        )


@dataclass(frozen=True)
class SecureAggregator:
    """Sums and averages of masked replies: the server learns the sums, and which clients are their members.

    All sums of one kind in a run have the same members, because the difference of two sums over different members would
    reveal a single client's numbers. Clients refuse other members; the server chooses them once, at the first sum.
    """

    config: RunConfig
    members_fixed: bool = False  # whether an earlier refresh has chosen the members of the count sums

    def counts(
        self, exchange: RoundExchange, clients: Iterable[str], request: Estimate
    ) -> tuple[_Clients, Totals | None]:
        """Return the members and T, (C,); without masks if the labeler sends no counts."""
        if not choose_labeler(self.config).cooperative:
            return PlainAggregator(self.config).counts(exchange, clients, request)
        members, total = self._sum(exchange, clients, lambda peers: replace(request, peers=peers), self.members_fixed)
        exchange.add_release("counts", members)
        return members, decode_counts(total)

    def adaptation(self, exchange: RoundExchange, clients: Iterable[str], request: Adapt) -> tuple[_Clients, Values]:
        """Return the members and the sum of a step of the prior estimation."""
        members, words = self._sum(exchange, clients, lambda peers: replace(request, peers=peers), request.step > 0)
        exchange.add_release("sums", members)
        total, estimation = decode_sums(words), exchange.estimation
        if estimation is not None and not self.config.privacy.noise_multiplier:
            step, settings = estimation.steps[request.step], estimation.settings
            reason = validate_sums(step, total, settings.classes, settings.width, estimation.images)
            if reason:
                raise _unidentified_sender(request.round, "Adapt", reason)
        return members, total

    def _sum(
        self, exchange: RoundExchange, clients: Iterable[str], make_request: _RequestFactory, members_fixed: bool
    ) -> tuple[_Clients, Words]:
        """Return the members and their sum; if `members_fixed` is not set, repeat a failed sum without lost clients."""
        members = tuple(clients)
        while True:
            try:
                return _Session(exchange, self.config).sum(members, make_request, members_fixed)
            except _LostMembers as lost:
                if members_fixed:
                    advice = "continue with --resume when all are connected again"
                    raise NoClientReplied(f"round {exchange.report.round + 1}: {lost}; {advice}") from lost
                members = lost.remaining
            except CannotUnmask as error:
                raise NoClientReplied(
                    f"round {exchange.report.round + 1}, step Unmask: {error}; begin a new run without that client"
                ) from error

    def training(self, exchange: RoundExchange, clients: Iterable[str], request: Callable[[str], Train]) -> TrainingSum:
        """Return the average of the shared prompts (Eq. 4) and the mean loss; no average if a client is lost.

        A failed sum is not repeated: the clients have already trained, and would start from their new local prompts.
        """
        participants = tuple(clients)
        round, shared = exchange.report.round, request(participants[0]).shared
        try:
            members, total = _Session(exchange, self.config).sum(
                participants, lambda peers: Train(round, shared, peers=peers), members_fixed=True
            )
        except _LostMembers as lost:
            for client in lost.lost:
                exchange.report.drops.add(client, "Train", "lost; the secure aggregation needs all of its members")
            return TrainingSum((), 0, 0, math.nan, None)
        except CannotUnmask:
            return TrainingSum((), 0, 0, math.nan, None)
        if shared:
            exchange.add_release("prompts", members)
        try:
            return decode_training(total, shared, members)
        except InvalidMaskedUpdate as error:
            raise _unidentified_sender(round, "Train", str(error)) from error


def _unidentified_sender(round: int, step: str, reason: str) -> NoClientReplied:
    return NoClientReplied(
        f"round {round + 1}, step {step}: {reason}; the sender cannot be identified under secure aggregation"
    )


class _Session:
    """One secure aggregation, with new keys."""

    def __init__(self, exchange: RoundExchange, config: RunConfig):
        self.exchange, self.privacy = exchange, config.privacy
        self.round, self.name = exchange.report.round, os.urandom(_SESSION_NAME_BYTES)
        self.vouchers: Mapping[str, bytes] = {}

    def sum(self, clients: _Clients, make_request: _RequestFactory, members_fixed: bool) -> tuple[_Clients, Words]:
        """Run the four stages of SecAgg: set up keys, share keys, collect masked vectors, unmask.

        Raises:
            _LostMembers: A client is lost after the others got the list of members; with `members_fixed` also before.
        """
        keys = self._setup_keys(clients)
        min_clients = max(unmask_threshold(len(keys), self.privacy.threshold), self.privacy.min_sites)
        sealed = self._share_keys(keys, min_clients)
        if members_fixed and len(sealed) < len(clients):
            raise _LostMembers(clients, sealed)
        request = make_request(tuple(sealed))
        masked = self._collect_masked_vectors(request, min_clients)
        if len(masked) < len(sealed):
            raise _LostMembers(tuple(sealed), masked)
        return tuple(masked), self._unmask(keys, sealed, masked, digest(request))

    def _setup_keys(self, clients: Iterable[str]) -> dict[str, bytes]:
        replies = self.exchange.request(clients, lambda _: SetupKeys(self.round, self.name), PublicKeys)
        keys: dict[str, bytes] = {}
        for client, reply in replies.items():
            if reply.keys in keys.values():
                self.exchange.report.drops.add(client, "SetupKeys", "sent the keys of another client")
            else:
                keys[client] = reply.keys
        self.vouchers = {client: replies[client].voucher for client in keys if replies[client].voucher}
        self._require_replies(keys, self.privacy.min_sites, "SetupKeys")
        return keys

    def _share_keys(self, keys: Mapping[str, bytes], min_clients: int) -> dict[str, Mapping[str, bytes]]:
        """Return each client's encrypted shares of its secret, by sender and recipient."""
        request = ShareKeys(self.round, self.name, keys, self.vouchers)
        replies = self.exchange.request(keys, lambda _: request, KeyShares)
        self._require_replies(replies, min_clients, "ShareKeys")
        return {client: reply.sealed for client, reply in replies.items()}

    def _collect_masked_vectors(self, request: Adapt | Estimate | Train, min_clients: int) -> dict[str, Words]:
        replies: dict[str, Adapted | Estimated | Trained] = self.exchange.request(
            request.peers, lambda _: request, REPLY_TO[type(request)]
        )
        masked = {client: reply.masked for client, reply in replies.items() if reply.masked is not None}
        self._require_replies(masked, min_clients, type(request).__name__)
        return masked

    def _unmask(
        self,
        keys: Mapping[str, bytes],
        sealed: Mapping[str, Mapping[str, bytes]],
        masked: Mapping[str, Words],
        request_digest: str,
    ) -> Words:
        """Collect the members' shares of the self-mask keys, and return the sum without masks."""
        from ..privacy.masking import MaskedSum  # brings cryptography, which is an extra

        min_clients = unmask_threshold(len(keys), self.privacy.threshold)

        def request(client: str) -> Unmask:
            return Unmask(self.round, self.name, {sender: sealed[sender][client] for sender in masked})

        replies = self.exchange.request(masked, request, Unmasked)
        self._require_replies(replies, min_clients, "Unmask")
        total = MaskedSum(self.name, keys, masked, request_digest, min_clients)
        try:
            return total.unmasked({client: reply.shares for client, reply in replies.items()})
        except CannotUnmask as error:
            for client, reason in error.reasons.items():
                self.exchange.report.drops.add(client, "secure aggregation", reason)
            raise
        finally:
            for client in total.wrong_shares:
                self.exchange.report.drops.add(client, "Unmask", "sent wrong shares of other clients' keys")

    def _require_replies(self, clients: Collection[str], min_clients: int, step: str) -> None:
        if len(clients) < min_clients:
            raise NoClientReplied(
                f"round {self.round + 1}, step {step}: {counted(len(clients), 'client')} replied, "
                f"but a secure aggregation needs {min_clients} (privacy.min_sites, privacy.threshold)"
            )

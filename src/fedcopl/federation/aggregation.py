"""Sums and averages over clients: of plain replies, or by secure aggregation, where the server sees the sum alone."""

import functools
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..algorithm.robust import (
    FEWEST,
    bounded_counts,
    bounded_evidence,
    bounded_weights,
    clip_update,
    impossible_responses,
    robust_mean,
    swapped_classes,
    update_excess,
)
from ..config import RunConfig
from ..errors import NoClientReplied
from ..labelers import choose_labeler
from ..messages import (
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
from ..priors.validation import invalid_sums
from ..privacy.mask_session import needed
from ..privacy.masked_layout import (
    HoldoutSums,
    InvalidMaskedUpdate,
    TrainingSum,
    Values,
    Words,
    adapted_sums,
    batches_of,
    totals_of,
    training_sum,
)
from .transport import RoundExchange

Totals = NDArray[np.int64]


@dataclass(frozen=True)
class PlainAggregator:
    """The server sees every client's numbers, but uses only robust sums and averages of them."""

    config: RunConfig

    def counts(
        self, server: RoundExchange, clients: Iterable[str], request: Estimate
    ) -> tuple[tuple[str, ...], Totals | None]:
        """Return the clients in the sum, and T, the sum of their counts; None if counts are not sent."""
        estimated = server.request(clients, lambda _: request, Estimated)
        sent = {client: reply.counts for client, reply in estimated.items() if reply.counts is not None}
        if not sent or not choose_labeler(self.config).cooperative:
            return tuple(estimated), None
        server.account("counts", estimated)
        rows = _clip_counts(server, sent) if self.config.sharing.bounded else list(sent.values())
        return tuple(estimated), np.maximum(np.sum(rows, axis=0, dtype=np.int64), 0)  # below 0 only noise can be

    def adaptation(
        self, server: RoundExchange, clients: Iterable[str], request: Adapt
    ) -> tuple[tuple[str, ...], Values]:
        """Return the clients that replied to a step of the priors, and the sum over them."""
        adapted = server.request(clients, lambda client: server.weighted(request, client), Adapted)
        server.account("sums", adapted)
        sums = {client: reply.sums for client, reply in adapted.items() if reply.sums is not None}
        if self.config.sharing.bounded and not self.config.privacy.noise_multiplier:
            _drop_impossible_responses(server, request.step, sums)
            _drop_swapped_classes(server, request.step, sums)
            _clip_evidence(server, request.step, sums)
        if not request.step:
            server.prior_weights = _prior_weights(server, sums) if self.config.sharing.bounded else {}
        weights = server.prior_weights
        rows = (weights[client] * row if client in weights else row for client, row in sums.items())
        return tuple(sums), functools.reduce(np.add, rows)  # one after another: stacked they would be there twice

    def training(self, server: RoundExchange, clients: Iterable[str], request: Callable[[str], Train]) -> TrainingSum:
        """Return the average of the shared prompts, weighted by the images trained on (Eq. 4)."""
        chosen = tuple(clients)
        trained = server.request(chosen, request, Trained)
        if any(reply.shared for reply in trained.values()):
            server.account("prompts", trained)
        checks = {client: HoldoutSums(*reply.checks) for client, reply in trained.items() if reply.checks}
        if self.config.sharing.bounded:
            trained = _clip_updates(server, trained, request(chosen[0]).shared)
        worked = [reply for reply in trained.values() if reply.examples]
        weights = [reply.examples for reply in worked]
        mean = robust_mean(self.config.sharing.robust, [r.shared for r in worked], weights) if worked else None
        with_loss = [reply for reply in worked if not math.isnan(reply.loss)]
        weights = [reply.examples for reply in with_loss]
        loss = float(np.average([reply.loss for reply in with_loss], weights=weights)) if with_loss else math.nan
        batches = sum(batches_of(weight, self.config.train.batch) for weight in weights)
        updates = {client: reply.shared for client, reply in trained.items()}
        reporting = tuple(one for one in checks.values() if one.images)
        holdouts = reporting if self.config.sharing.bounded and len(reporting) >= FEWEST else ()
        return TrainingSum(
            tuple(trained), sum(weights), batches, loss, mean, _sum_holdouts(checks.values()), updates, holdouts
        )


def _clip_counts(server: RoundExchange, sent: Mapping[str, Totals]) -> list[Totals]:
    """Bound each client's counts by those of the others."""
    rows = np.stack(list(sent.values()))
    allowed = bounded_counts(rows)
    for client, row, clipped in zip(sent, rows, allowed, strict=True):
        if (clipped != row).any():
            before, after = (int(np.abs(one).sum()) for one in (row, clipped))
            server.report.bounds.add(client, "Estimate", f"counts clipped from {before:,} to {counted(after, 'image')}")
    return list(allowed)


def _parts(server: RoundExchange, step: int) -> Iterator[tuple[Statistic, slice, tuple[int, ...]]]:
    """Yield each statistic of a step of the priors, its slice of the sums, and its shape."""
    estimation, start = server.estimation, 0
    for statistic in () if estimation is None else estimation.steps[step]:
        shape = statistic.shape(server.classes, 0 if estimation is None else estimation.settings.width)
        yield statistic, slice(start, start + math.prod(shape)), shape
        start += math.prod(shape)


def _drop_impossible_responses(server: RoundExchange, step: int, sums: dict[str, Values]) -> None:
    """Drop clients whose posterior sums under several logit biases cannot be of the same images."""
    classes = server.classes
    if not step:
        server.posterior_sums = []
    for statistic, part, shape in _parts(server, step):
        if statistic.kind == "moments":
            zero_shot = {client: row[1 : 1 + classes] for client, row in sums.items()}
            server.posterior_sums.append((np.zeros(classes), zero_shot))
        for number, model in enumerate(statistic.models if statistic.kind == "predicted" else ()):
            if model.prototypes is None and model.text_scale == 1:
                rows = {client: row[part].reshape(shape)[number] for client, row in sums.items()}
                server.posterior_sums.append((model.logit_bias + np.log(model.class_prior), rows))
    responses, clients = server.posterior_sums, list(sums)
    if len(responses) < 2 or not any(statistic.kind == "predicted" for statistic, _, _ in _parts(server, step)):
        return
    sums_by_client = np.array([[rows[client] for _, rows in responses] for client in clients])
    for number in impossible_responses(np.array([bias for bias, _ in responses]), sums_by_client):
        server.drop(clients[number], "Adapt", "its posterior sums do not respond to the logit bias as images do")
        del sums[clients[number]]


def _clip_evidence(server: RoundExchange, step: int, sums: dict[str, Values]) -> None:
    """Bound each client's evidence per image by that of the others."""
    images = {client: max(server.reported_counts[client].images or 0, 1) for client in sums}
    for statistic, part, _ in _parts(server, step):
        if statistic.kind not in ("evidence", "agreement"):
            continue
        rows = np.array([row[part] / images[client] for client, row in sums.items()])
        for client, row, clipped in zip(list(sums), rows, bounded_evidence(rows), strict=True):
            if (row != clipped).any():
                sums[client] = sums[client].copy()
                sums[client][part] = clipped * images[client]
                server.report.bounds.add(client, "Adapt", f"{statistic.kind} clipped to that of the other clients")


def _drop_swapped_classes(server: RoundExchange, step: int, sums: dict[str, Values]) -> None:
    """Drop clients whose class feature sums are those of other classes; the estimation starts again without them."""
    estimation = server.estimation
    if estimation is None or [statistic.kind for statistic in estimation.steps[step]] != ["class_sums"]:
        return
    shape = estimation.steps[step][0].shape(estimation.settings.classes, estimation.settings.width)
    clients = list(sums)
    for number in swapped_classes(np.stack([sums[client].reshape(shape) for client in clients])):
        server.drop(clients[number], "Adapt", "its class means are those of other classes at the other clients")
        del sums[clients[number]]


def _prior_weights(server: RoundExchange, clients: Iterable[str]) -> dict[str, float]:
    """Return the weight in the totals of the priors of each client that has many times as many images as the others."""
    images = {client: server.reported_counts[client].images or 0 for client in clients}
    allowed = dict(zip(images, bounded_weights(list(images.values())), strict=True))
    clipped = [client for client in images if allowed[client] < images[client]]
    for client in clipped:
        clip = f"weight clipped from {images[client]:,} to {counted(allowed[client], 'image')}"
        server.report.bounds.add(client, "Adapt", clip)
    return {client: allowed[client] / images[client] for client in clipped}


def _clip_updates(server: RoundExchange, trained: Mapping[str, Trained], sent: Shared) -> dict[str, Trained]:
    """Bound each client's weight, and how far it moves the prompts, by those of the others."""
    worked = [client for client, reply in trained.items() if reply.examples]
    weights = bounded_weights([trained[client].examples for client in worked])
    too_far = update_excess([trained[client].shared for client in worked], sent)
    clipped = {}
    for client, weight, times in zip(worked, weights, too_far, strict=True):
        reply = trained[client]
        if weight < reply.examples:
            clip = f"weight clipped from {reply.examples:,} to {counted(weight, 'image')}"
            server.report.bounds.add(client, "Train", clip)
        for name in (name for name in times if times[name] > 1):
            server.report.bounds.add(client, "Train", f"update of {name} clipped to 1/{times[name]:.1f} of its length")
        clipped[client] = replace(reply, examples=weight, shared=clip_update(reply.shared, sent, times))
    return {**trained, **clipped}


_NAME = 16  # bytes of a session's name
_RequestFactory = Callable[[tuple[str, ...]], Adapt | Estimate | Train]
"""Makes the request for masked replies, given the clients in the sum."""


class _LostMembers(Exception):
    """Members of a secure aggregation did not reply; a sum without them cannot be unmasked."""

    def __init__(self, members: Collection[str], remaining: Collection[str]):
        self.lost = tuple(client for client in members if client not in remaining)
        self.remaining = tuple(remaining)
        super().__init__(
            f"{', '.join(self.lost)} did not reply, and all secure aggregations of a run must have the same members"
        )


class _InconsistentShares(Exception):
    """The masks of some clients cannot be removed from the sum, so the server learnt nothing from it."""


@dataclass(frozen=True)
class SecureAggregator:
    """The server sees sums over the clients, and which clients are in them.

    All sums of one kind in a run have the same members, because the difference of two sums over different members would
    reveal a single client's numbers. Clients refuse other members; the server chooses them once, at the first sum.
    """

    config: RunConfig
    has_members: bool = False  # the members of the counts are chosen, at an earlier refresh

    def counts(
        self, server: RoundExchange, clients: Iterable[str], request: Estimate
    ) -> tuple[tuple[str, ...], Totals | None]:
        """Return the clients in the sum, and T; if no counts are shared, there is nothing to hide."""
        if not choose_labeler(self.config).cooperative:
            return PlainAggregator(self.config).counts(server, clients, request)
        members, total = self._sum(server, clients, lambda peers: replace(request, peers=peers), self.has_members)
        server.account("counts", members)
        return members, totals_of(total)

    def adaptation(
        self, server: RoundExchange, clients: Iterable[str], request: Adapt
    ) -> tuple[tuple[str, ...], Values]:
        """Return the clients in the sum of a step of the priors, and that sum."""
        members, words = self._sum(server, clients, lambda peers: replace(request, peers=peers), request.step > 0)
        server.account("sums", members)
        total, estimation = adapted_sums(words), server.estimation
        if estimation is not None and not self.config.privacy.noise_multiplier:
            step, settings = estimation.steps[request.step], estimation.settings
            reason = invalid_sums(step, total, settings.classes, settings.width, estimation.images)
            if reason:
                raise _unidentified(request.round, "Adapt", reason)
        return members, total

    def _sum(
        self, server: RoundExchange, clients: Iterable[str], make_request: _RequestFactory, has_members: bool
    ) -> tuple[tuple[str, ...], Words]:
        """Return the clients and the sum over exactly these; a kind's first sum is repeated without the lost ones."""
        members = tuple(clients)
        while True:
            try:
                return _Session(server, self.config).sum(members, make_request, has_members)
            except _LostMembers as lost:
                if has_members:
                    raise NoClientReplied(
                        f"round {server.report.round + 1}: {lost}; continue with --resume when all are connected again"
                    ) from lost
                members = lost.remaining
            except _InconsistentShares as error:
                raise NoClientReplied(
                    f"round {server.report.round + 1}, step Unmask: {error}; begin a new run without that client"
                ) from error

    def training(self, server: RoundExchange, clients: Iterable[str], request: Callable[[str], Train]) -> TrainingSum:
        """Return the average over all clients (Eq. 4) and their mean loss; no average if one of them is lost.

        Then the round is not repeated, because the others have trained, and would start from there.
        """
        chosen = tuple(clients)
        round, shared = server.report.round, request(chosen[0]).shared
        try:
            members, total = _Session(server, self.config).sum(
                chosen, lambda peers: Train(round, shared, peers=peers), has_members=True
            )
        except _LostMembers as lost:
            for client in lost.lost:
                server.report.drops.add(client, "Train", "lost; the secure aggregation needs all of its members")
            return TrainingSum((), 0, 0, math.nan, None)
        except _InconsistentShares:
            return TrainingSum((), 0, 0, math.nan, None)
        if shared:
            server.account("prompts", members)
        try:
            return training_sum(total, shared, members)
        except InvalidMaskedUpdate as error:
            raise _unidentified(round, "Train", str(error)) from error


def _unidentified(round: int, step: str, reason: str) -> NoClientReplied:
    return NoClientReplied(
        f"round {round + 1}, step {step}: {reason}; the sender cannot be identified under secure aggregation"
    )


class _Session:
    """One secure aggregation, with new keys."""

    def __init__(self, server: RoundExchange, config: RunConfig):
        self.server, self.privacy = server, config.privacy
        self.round, self.name = server.report.round, os.urandom(_NAME)
        self.vouchers: Mapping[str, bytes] = {}

    def sum(
        self, clients: tuple[str, ...], make_request: _RequestFactory, has_members: bool
    ) -> tuple[tuple[str, ...], Words]:
        """Run the four stages of SecAgg: set up keys, share keys, collect masked vectors, unmask.

        Raises:
            _LostMembers: A client is lost after it was named to the others as a member, or before if `has_members`.
        """
        keys = self._setup_keys(clients)
        enough = max(needed(len(keys), self.privacy.threshold), self.privacy.min_sites)
        sealed = self._share_keys(keys, enough)
        if has_members and len(sealed) < len(clients):
            raise _LostMembers(clients, sealed)
        request = make_request(tuple(sealed))
        masked = self._collect_masked_vectors(request, enough)
        if len(masked) < len(sealed):
            raise _LostMembers(tuple(sealed), masked)
        return tuple(masked), self._unmask(keys, sealed, masked, digest(request))

    def _setup_keys(self, clients: Iterable[str]) -> dict[str, bytes]:
        replies = self.server.request(clients, lambda _: SetupKeys(self.round, self.name), PublicKeys)
        first = {reply.keys: client for client, reply in reversed(replies.items())}
        duplicates = [client for client, reply in replies.items() if first[reply.keys] != client]
        for client in duplicates:
            self.server.report.drops.add(client, "SetupKeys", "sent the keys of another client")
        keys = {client: reply.keys for client, reply in replies.items() if client not in duplicates}
        self.vouchers = {client: replies[client].voucher for client in keys if replies[client].voucher}
        self._refuse_few(keys, self.privacy.min_sites, "SetupKeys")
        return keys

    def _share_keys(self, keys: Mapping[str, bytes], enough: int) -> dict[str, Mapping[str, bytes]]:
        """Each client's shares of its secrets, one for each."""
        shared_out = self.server.request(
            keys, lambda _: ShareKeys(self.round, self.name, keys, self.vouchers), KeyShares
        )
        self._refuse_few(shared_out, enough, "ShareKeys")
        return {client: reply.sealed for client, reply in shared_out.items()}

    def _collect_masked_vectors(self, request: Adapt | Estimate | Train, enough: int) -> dict[str, Words]:
        replies: Mapping[str, Adapted | Estimated | Trained]
        if isinstance(request, Estimate):
            replies = self.server.request(request.peers, lambda _: request, Estimated)
        elif isinstance(request, Adapt):
            replies = self.server.request(request.peers, lambda _: request, Adapted)
        else:
            replies = self.server.request(request.peers, lambda _: request, Trained)
        masked = {client: reply.masked for client, reply in replies.items() if reply.masked is not None}
        self._refuse_few(masked, enough, type(request).__name__)
        return masked

    def _unmask(
        self,
        keys: Mapping[str, bytes],
        sealed: Mapping[str, Mapping[str, bytes]],
        masked: Mapping[str, Words],
        request_digest: str,
    ) -> Words:
        from ..privacy.masking import CannotUnmask, MaskedSum  # brings cryptography, which is an extra

        enough = needed(len(keys), self.privacy.threshold)

        def request(client: str) -> Unmask:
            return Unmask(self.round, self.name, {sender: sealed[sender][client] for sender in masked})

        replies = self.server.request(masked, request, Unmasked)
        self._refuse_few(replies, enough, "Unmask")
        total = MaskedSum(self.name, keys, masked, request_digest, enough)
        try:
            return total.unmasked({client: reply.shares for client, reply in replies.items()})
        except CannotUnmask as error:
            for client, reason in error.reasons.items():
                self.server.report.drops.add(client, "secure aggregation", reason)
            raise _InconsistentShares(str(error)) from error
        finally:
            for client in total.wrong_shares:
                self.server.report.drops.add(client, "Unmask", "sent wrong shares of other clients' keys")

    def _refuse_few(self, clients: Collection[str], enough: int, step: str) -> None:
        if len(clients) < enough:
            raise NoClientReplied(
                f"round {self.round + 1}, step {step}: {counted(len(clients), 'client')} answered, "
                f"but a secure aggregation takes {enough} (privacy.min_sites, privacy.threshold)"
            )


def _sum_holdouts(checks: Iterable[tuple[float, ...]]) -> HoldoutSums:
    """Add up the hold-out sums of clients."""
    return HoldoutSums(*np.sum([HoldoutSums(*one) for one in checks] or [HoldoutSums()], axis=0).tolist())

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
    sum_holdouts,
    totals_of,
    training_sum,
)
from .transport import RoundExchange

Totals = NDArray[np.int64]


@dataclass(frozen=True)
class PlainAggregator:
    """The server sees every client's numbers, and uses no more than the sums."""

    config: RunConfig

    def counts(
        self, server: RoundExchange, clients: Iterable[str], request: Estimate
    ) -> tuple[tuple[str, ...], Totals | None]:
        """Who answered, and T: the sum of their counts; None if counts are not sent."""
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
        """Who replied to a step of the priors, and the sum over them."""
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
        """The average of what the clients share, weighted with the images they trained on (Eq. 4)."""
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
            tuple(trained), sum(weights), batches, loss, mean, sum_holdouts(checks.values()), updates, holdouts
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
    """Each statistic of a step of the priors, where it is in the sums, and its shape."""
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
    images = {client: max(server.reported[client].images or 0, 1) for client in sums}
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
    images = {client: server.reported[client].images or 0 for client in clients}
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


NAME = 16  # bytes of a session's name
_RequestFactory = Callable[[tuple[str, ...]], Adapt | Estimate | Train]
"""What to ask, given whose answers are summed."""


@dataclass(frozen=True)
class Bare:
    """A sum without masks."""

    total: Words
    clients: tuple[str, ...]  # whose numbers are in it
    share: float  # of all who put a part of the noise into it


class LostMembers(Exception):
    """Members of a sum for the priors are lost; over fewer members it would reveal their numbers."""

    def __init__(self, remaining: tuple[str, ...]):
        super().__init__()
        self.remaining = remaining


class Spoilt(Exception):
    """The masks of some clients do not come off the sum, so nothing was learnt from it."""

    def __init__(self, reason: str, reasons: Mapping[str, str]):
        super().__init__(reason)
        self.reasons = reasons  # client -> what is wrong with its masks


@dataclass(frozen=True)
class SecureAggregator:
    """The server learns sums, and who is in them."""

    config: RunConfig

    def counts(
        self, server: RoundExchange, clients: Iterable[str], request: Estimate
    ) -> tuple[tuple[str, ...], Totals | None]:
        """Who is in the sum, and T; where no counts are shared, there is nothing to hide."""
        if not choose_labeler(self.config).cooperative:
            return PlainAggregator(self.config).counts(server, clients, request)
        bare = self._counts(server, tuple(clients), lambda peers: Estimate(request.round, request.shared, peers))
        server.account("counts", bare.clients, bare.share)
        return bare.clients, totals_of(bare.total)

    def _counts(self, server: RoundExchange, clients: tuple[str, ...], make_request: _RequestFactory) -> Bare:
        """If masks do not come off, once more without whose they are: nothing was learnt, and counting changes nothing.

        Each time somebody is left out, so this ends.
        """
        try:
            return _Session(server, self.config).sum(clients, make_request)
        except Spoilt as spoilt:
            self._leave_out(server, clients, spoilt)
        return self._counts(server, server.still_in(clients), make_request)

    def adaptation(
        self, server: RoundExchange, clients: Iterable[str], request: Adapt
    ) -> tuple[tuple[str, ...], Values]:
        """Who is in the sum of a step of the priors, and that sum.

        All steps are over the same members, because a difference would reveal one client. A client that is lost before
        the first sum is left out.
        """
        members, words = tuple(clients), f"round {request.round + 1}, step Adapt"
        while True:
            try:
                bare = _Session(server, self.config).sum(members, lambda peers: replace(request, peers=peers))
                break
            except Spoilt as spoilt:
                server.leave_out(spoilt.reasons)
                raise NoClientReplied(f"{words}: {spoilt}; begin a new run without that client") from spoilt
            except LostMembers as lost:
                if request.step:
                    missing = ", ".join(client for client in members if client not in lost.remaining)
                    raise NoClientReplied(
                        f"{words}: {missing} did not reply, and secure sums for the priors must all have the same "
                        "members; continue with --resume when it is back"
                    ) from lost
                members = lost.remaining
        server.account("sums", bare.clients, bare.share)
        total, estimation = adapted_sums(bare.total), server.estimation
        if estimation is not None and not self.config.privacy.noise_multiplier:
            step, settings = estimation.steps[request.step], estimation.settings
            reason = invalid_sums(step, total, settings.classes, settings.width, estimation.images)
            if reason:
                raise _hidden(request.round, "Adapt", reason)
        return bare.clients, total

    def _leave_out(self, server: RoundExchange, clients: tuple[str, ...], spoilt: Spoilt) -> None:
        server.leave_out(spoilt.reasons)
        enough = max(self.config.privacy.min_sites, min(server.transport.least, len(clients)))
        if len(server.still_in(clients)) < enough:
            raise NoClientReplied(f"round {server.report.round + 1}, step Unmask: {spoilt}") from spoilt

    def training(self, server: RoundExchange, clients: Iterable[str], request: Callable[[str], Train]) -> TrainingSum:
        """The average over all who are in the sum (Eq. 4), and their mean loss.

        If masks do not come off there is no average: all have trained, and to train again would start from there.
        """
        chosen = tuple(clients)
        round, shared = server.report.round, request(chosen[0]).shared
        try:
            bare = _Session(server, self.config).sum(chosen, lambda peers: Train(round, shared, peers=peers))
        except Spoilt as spoilt:
            self._leave_out(server, chosen, spoilt)
            return TrainingSum((), 0, 0, math.nan, None)
        if shared:
            server.account("prompts", bare.clients, bare.share)
        try:
            return training_sum(bare.total, shared, bare.clients)
        except InvalidMaskedUpdate as error:
            raise _hidden(round, "Train", str(error)) from error


def _hidden(round: int, step: str, reason: str) -> NoClientReplied:
    return NoClientReplied(
        f"round {round + 1}, step {step}: {reason}; the sender cannot be identified under secure aggregation"
    )


class _Session:
    """One sum. It has keys of its own, because those of clients that get lost are laid open."""

    def __init__(self, server: RoundExchange, config: RunConfig):
        self.server, self.privacy = server, config.privacy
        self.round, self.name = server.report.round, os.urandom(NAME)
        self.vouchers: Mapping[str, bytes] = {}

    def sum(self, clients: Collection[str], make_request: _RequestFactory) -> Bare:
        """Run the four stages of SecAgg: set up keys, share keys, collect masked vectors, unmask."""
        keys = self._setup_keys(clients)
        enough = max(needed(len(keys), self.privacy.threshold), self.privacy.min_sites)
        sealed = self._share_keys(keys, enough)
        request = make_request(tuple(sealed))
        if isinstance(request, Adapt) and request.step and len(sealed) < len(clients):
            raise LostMembers(tuple(sealed))
        masked = self._collect_masked_vectors(request, enough)
        if isinstance(request, Adapt) and len(masked) < len(sealed):
            raise LostMembers(tuple(masked))
        total = self._unmask(keys, sealed, masked, digest(request))
        return Bare(total, tuple(masked), len(masked) / len(sealed))

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
        answers: Mapping[str, Adapted | Estimated | Trained]
        if isinstance(request, Estimate):
            answers = self.server.request(request.peers, lambda _: request, Estimated)
        elif isinstance(request, Adapt):
            answers = self.server.request(request.peers, lambda _: request, Adapted)
        else:
            answers = self.server.request(request.peers, lambda _: request, Trained)
        masked = {client: reply.masked for client, reply in answers.items() if reply.masked is not None}
        self._refuse_few(masked, enough, type(request).__name__)
        return masked

    def _unmask(
        self,
        keys: Mapping[str, bytes],
        sealed: Mapping[str, Mapping[str, bytes]],
        masked: Mapping[str, Words],
        request_digest: str,
    ) -> Words:
        from ..privacy.unmasking import CannotUnmask, MaskedSum  # brings cryptography, which is an extra

        lost = tuple(client for client in sealed if client not in masked)
        enough = needed(len(keys), self.privacy.threshold)
        helped = self.server.request(
            masked, lambda client: self._unmask_request(client, tuple(masked), lost, sealed), Unmasked
        )
        self._refuse_few(helped, enough, "Unmask")
        total = MaskedSum(self.name, keys, masked, lost, request_digest, enough)
        try:
            return total.unmasked({client: reply.shares for client, reply in helped.items()})
        except CannotUnmask as error:
            raise Spoilt(str(error), error.reasons) from error
        finally:
            for client in total.wrong_shares:
                self.server.report.drops.add(client, "Unmask", "sent wrong shares of other clients' keys")

    def _unmask_request(
        self, client: str, survivors: tuple[str, ...], lost: tuple[str, ...], sealed: Mapping[str, Mapping[str, bytes]]
    ) -> Unmask:
        for_it = {sender: sealed[sender][client] for sender in (*survivors, *lost)}
        return Unmask(self.round, self.name, survivors, lost, for_it)

    def _refuse_few(self, clients: Collection[str], enough: int, step: str) -> None:
        if len(clients) < enough:
            raise NoClientReplied(
                f"round {self.round + 1}, step {step}: {counted(len(clients), 'client')} answered, "
                f"but a secure aggregation takes {enough} (privacy.min_sites, privacy.threshold){self._left_out()}"
            )

    def _left_out(self) -> str:
        return "".join(f"; {client} is left out: {reason}" for client, reason in self.server.left_out.items())

"""What the server makes of all clients' numbers: plainly, or from masked answers, so that it sees the sum alone."""

import functools
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..algorithm.robust import robust_mean
from ..config import RunConfig
from ..errors import NoClientReplied
from ..labelers import choose_labeler
from ..messages import (
    Adapt,
    Adapted,
    Estimate,
    Estimated,
    Introduce,
    Introduced,
    SharedOut,
    ShareOut,
    Train,
    Trained,
    Unmask,
    Unmasked,
    digest,
)
from ..plurals import counted
from ..priors.validation import invalid_sums
from ..privacy.mask_session import needed
from ..privacy.masked_layout import (
    Checks,
    InvalidMaskedUpdate,
    TrainingSum,
    Values,
    Words,
    adapted_sums,
    added_up,
    batches_of,
    totals_of,
    training_sum,
)
from . import bounded
from .transport import RoundExchange

Totals = NDArray[np.int64]


@dataclass(frozen=True)
class PlainAggregator:
    """The server sees every client's numbers, and uses no more than the sums."""

    config: RunConfig

    def counts(
        self, server: RoundExchange, clients: Iterable[str], request: Estimate
    ) -> tuple[tuple[str, ...], Totals | None]:
        """Who answered, and T: the sum of their counts; None if nobody tells."""
        estimated = server.request(clients, lambda _: request, Estimated)
        sent = {client: reply.counts for client, reply in estimated.items() if reply.counts is not None}
        if not sent or not choose_labeler(self.config).cooperative:
            return tuple(estimated), None
        server.let_out("counts", estimated)
        rows = bounded.counts(server, sent) if self.config.sharing.bounded else list(sent.values())
        return tuple(estimated), np.maximum(np.sum(rows, axis=0, dtype=np.int64), 0)  # below 0 only noise can be

    def adaptation(
        self, server: RoundExchange, clients: Iterable[str], request: Adapt
    ) -> tuple[tuple[str, ...], Values]:
        """Who replied to a step of the priors, and the sum over them."""
        adapted = server.request(clients, lambda client: server.weighted(request, client), Adapted)
        server.let_out("sums", adapted)
        sums = {client: reply.sums for client, reply in adapted.items() if reply.sums is not None}
        if not request.step:
            server.prior_weights = bounded.prior_weights(server, sums) if self.config.sharing.bounded else {}
        weights = server.prior_weights
        rows = (weights[client] * row if client in weights else row for client, row in sums.items())
        return tuple(sums), functools.reduce(np.add, rows)  # one after another: stacked they would be there twice

    def training(self, server: RoundExchange, clients: Iterable[str], request: Callable[[str], Train]) -> TrainingSum:
        """The average of what the clients share, weighted with the images they trained on (Eq. 4)."""
        chosen = tuple(clients)
        trained = server.request(chosen, request, Trained)
        if any(reply.shared for reply in trained.values()):
            server.let_out("prompts", trained)
        checks = {client: Checks(*reply.checks) for client, reply in trained.items() if reply.checks}
        if self.config.sharing.bounded:
            trained = bounded.updates(server, trained, request(chosen[0]).shared)
        worked = [reply for reply in trained.values() if reply.examples]
        weights = [reply.examples for reply in worked]
        mean = robust_mean(self.config.sharing.robust, [r.shared for r in worked], weights) if worked else None
        with_loss = [reply for reply in worked if not math.isnan(reply.loss)]
        weights = [reply.examples for reply in with_loss]
        loss = float(np.average([reply.loss for reply in with_loss], weights=weights)) if with_loss else math.nan
        batches = sum(batches_of(weight, self.config.train.batch) for weight in weights)
        updates = {client: reply.shared for client, reply in trained.items()}
        guards = bounded.guards(checks.values()) if self.config.sharing.bounded else ()
        return TrainingSum(
            tuple(trained), sum(weights), batches, loss, mean, added_up(checks.values()), updates, guards
        )


NAME = 16  # bytes of a session's name
Question = Callable[[tuple[str, ...]], Adapt | Estimate | Train]
"""What to ask, given whose answers are summed."""


@dataclass(frozen=True)
class Bare:
    """A sum without masks."""

    total: Words
    clients: tuple[str, ...]  # whose numbers are in it
    share: float  # of all who put a part of the noise into it


class Spoilt(Exception):
    """The masks of some clients do not come off the sum, so nothing was learnt from it."""

    def __init__(self, why: str, reasons: Mapping[str, str]):
        super().__init__(why)
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
        server.let_out("counts", bare.clients, bare.share)
        return bare.clients, totals_of(bare.total)

    def _counts(self, server: RoundExchange, clients: tuple[str, ...], question: Question) -> Bare:
        """If masks do not come off, once more without whose they are: nothing was learnt, and counting changes nothing.

        Each time somebody is left out, so this ends.
        """
        try:
            return _Session(server, self.config).sum(clients, question)
        except Spoilt as spoilt:
            self._leave_out(server, clients, spoilt)
        return self._counts(server, server.still_in(clients), question)

    def adaptation(
        self, server: RoundExchange, clients: Iterable[str], request: Adapt
    ) -> tuple[tuple[str, ...], Values]:
        """Who is in the sum of a step of the priors, and that sum."""
        members = tuple(clients)
        bare = self._counts(server, members, lambda peers: replace(request, peers=peers))
        server.let_out("sums", bare.clients, bare.share)
        total, estimation = adapted_sums(bare.total), server.estimation
        if estimation is not None and not self.config.privacy.noise_multiplier:
            step, settings = estimation.steps[request.step], estimation.settings
            images = estimation.images if set(bare.clients) == set(members) else None  # else it starts again
            reason = invalid_sums(step, total, settings.classes, settings.width, images)
            if reason:
                raise _hidden(request.round, "Adapt", reason)
        return bare.clients, total

    def _leave_out(self, server: RoundExchange, clients: tuple[str, ...], spoilt: Spoilt) -> None:
        server.leave_out(spoilt.reasons)
        enough = max(self.config.privacy.min_sites, min(server.federation.least, len(clients)))
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
            server.let_out("prompts", bare.clients, bare.share)
        try:
            return training_sum(bare.total, shared, bare.clients)
        except InvalidMaskedUpdate as error:
            raise _hidden(round, "Train", str(error)) from error


def _hidden(round: int, step: str, why: str) -> NoClientReplied:
    return NoClientReplied(
        f"round {round + 1}, step {step}: {why}; a client sent rubbish, and secure aggregation hide which"
    )


class _Session:
    """One sum. It has keys of its own, because those of clients that get lost are laid open."""

    def __init__(self, server: RoundExchange, config: RunConfig):
        self.server, self.privacy = server, config.privacy
        self.round, self.name = server.report.round, os.urandom(NAME)
        self.vouchers: Mapping[str, bytes] = {}

    def sum(self, clients: Iterable[str], question: Question) -> Bare:
        """Keys, shares of secrets, masked answers, and the help of those who are still there."""
        keys = self._keys(clients)
        enough = max(needed(len(keys), self.privacy.threshold), self.privacy.min_sites)
        sealed = self._sealed(keys, enough)
        request = question(tuple(sealed))
        masked = self._masked(request, enough)
        total = self._without_masks(keys, sealed, masked, digest(request))
        return Bare(total, tuple(masked), len(masked) / len(sealed))

    def _keys(self, clients: Iterable[str]) -> dict[str, bytes]:
        introduced = self.server.request(clients, lambda _: Introduce(self.round, self.name), Introduced)
        first = {reply.keys: client for client, reply in reversed(introduced.items())}
        again = [client for client, reply in introduced.items() if first[reply.keys] != client]
        for client in again:
            self.server.report.drops.add(client, "Introduce", "sent the keys of another client")
        keys = {client: reply.keys for client, reply in introduced.items() if client not in again}
        self.vouchers = {client: introduced[client].voucher for client in keys if introduced[client].voucher}
        self._refuse_few(keys, self.privacy.min_sites, "Introduce")
        return keys

    def _sealed(self, keys: Mapping[str, bytes], enough: int) -> dict[str, Mapping[str, bytes]]:
        """Each client's shares of its secrets, one for each."""
        shared_out = self.server.request(
            keys, lambda _: ShareOut(self.round, self.name, keys, self.vouchers), SharedOut
        )
        self._refuse_few(shared_out, enough, "ShareOut")
        return {client: reply.sealed for client, reply in shared_out.items()}

    def _masked(self, request: Adapt | Estimate | Train, enough: int) -> dict[str, Words]:
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

    def _without_masks(
        self,
        keys: Mapping[str, bytes],
        sealed: Mapping[str, Mapping[str, bytes]],
        masked: Mapping[str, Words],
        question: str,
    ) -> Words:
        from ..privacy.unmasking import CannotUnmask, MaskedSum  # brings cryptography, which is an extra

        lost = tuple(client for client in sealed if client not in masked)
        enough = needed(len(keys), self.privacy.threshold)
        helped = self.server.request(masked, lambda client: self._unmask(client, tuple(masked), lost, sealed), Unmasked)
        self._refuse_few(helped, enough, "Unmask")
        total = MaskedSum(self.name, keys, masked, lost, question, enough)
        try:
            return total.unmasked({client: reply.shares for client, reply in helped.items()})
        except CannotUnmask as error:
            raise Spoilt(str(error), error.reasons) from error
        finally:
            for client in total.liars:
                self.server.report.drops.add(client, "Unmask", "gave wrong shares of other clients' masks")

    def _unmask(
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
        return "".join(f"; {client} is left out: {why}" for client, why in self.server.left_out.items())

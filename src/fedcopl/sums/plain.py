"""Sums and averages of what each client tells the server."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config import RunConfig
from ..core.aggregate import weighted_mean
from ..messages import Estimate, Estimated, Train, Trained
from .asking import Asking
from .layout import TrainingSum, added_up, batches_of

Totals = NDArray[np.int64]


@dataclass(frozen=True)
class PlainSums:
    """The server sees every client's numbers, and uses no more than the sums."""

    config: RunConfig

    def counts(self, server: Asking, clients: Iterable[str], ask: Estimate) -> tuple[tuple[str, ...], Totals | None]:
        """Who answered, and T: the sum of their counts; None if nobody tells."""
        estimated = server.ask(clients, lambda _: ask, Estimated)
        told = [reply.counts for reply in estimated.values() if reply.counts is not None]
        if not told or not self.config.is_cooperative:
            return tuple(estimated), None
        server.let_out("counts", estimated)
        return tuple(estimated), np.maximum(np.sum(told, axis=0, dtype=np.int64), 0)  # below 0 only noise can be

    def training(self, server: Asking, clients: Iterable[str], ask: Callable[[str], Train]) -> TrainingSum:
        """The average of what the clients share, weighted with the images they trained on (Eq. 4)."""
        trained = server.ask(clients, ask, Trained)
        if any(reply.shared for reply in trained.values()):
            server.let_out("prompts", trained)
        worked = [reply for reply in trained.values() if reply.examples]
        mean = weighted_mean([r.shared for r in worked], [r.examples for r in worked]) if worked else None
        told = [reply for reply in worked if not math.isnan(reply.loss)]
        weights = [reply.examples for reply in told]
        loss = float(np.average([reply.loss for reply in told], weights=weights)) if told else math.nan
        batches = sum(batches_of(weight, self.config.train.batch) for weight in weights)
        updates = {client: reply.shared for client, reply in trained.items()}
        checks = added_up(reply.checks for reply in trained.values())
        return TrainingSum(tuple(trained), sum(weights), batches, loss, mean, checks, updates)

"""One client's say in the server's sums, bounded by the others'; every cut is entered into the report of the round."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..algorithm.robust import FEWEST, bounded_counts, bounded_weights, overreach, within_reach
from ..messages import Shared, Trained
from ..plurals import counted
from ..privacy.masked_layout import Checks
from .transport import RoundExchange

ClassCounts = NDArray[np.int64]


def counts(server: RoundExchange, sent: Mapping[str, ClassCounts]) -> list[ClassCounts]:
    """Nobody is sure of many times as many images as the others."""
    rows = np.stack(list(sent.values()))
    allowed = bounded_counts(rows)
    for client, row, cut in zip(sent, rows, allowed, strict=True):
        if cut is not row and (cut != row).any():
            _note(
                server,
                client,
                "Estimate",
                f"{counted(_size(row), 'sure image counts', 'sure images count')} as {_size(cut):,}",
            )
    return list(allowed)


def prior_weights(server: RoundExchange, clients: Iterable[str]) -> dict[str, float]:
    """Return the weight in the totals of the priors of each client that has many times as many images as the others."""
    images = {client: server.claims[client].images or 0 for client in clients}
    allowed = dict(zip(images, bounded_weights(list(images.values())), strict=True))
    clipped = [client for client in images if allowed[client] < images[client]]
    for client in clipped:
        _note(server, client, "Adapt", f"weight clipped from {images[client]:,} to {allowed[client]:,} images")
    return {client: allowed[client] / images[client] for client in clipped}


def updates(server: RoundExchange, trained: Mapping[str, Trained], sent: Shared) -> dict[str, Trained]:
    """Nobody trained on many times as many images as the others, or moved much further than they did."""
    worked = [client for client, reply in trained.items() if reply.examples]
    weights = bounded_weights([trained[client].examples for client in worked])
    too_far = overreach([trained[client].shared for client in worked], sent)
    cut = {}
    for client, weight, times in zip(worked, weights, too_far, strict=True):
        reply = trained[client]
        if weight < reply.examples:
            _note(server, client, "Train", f"{counted(reply.examples, 'image counts', 'images count')} as {weight:,}")
        for name in (name for name in times if times[name] > 1):
            _note(
                server, client, "Train", f"moved {name} {times[name]:.1f} times as far as it may, and was cut to that"
            )
        cut[client] = replace(reply, examples=weight, shared=within_reach(reply.shared, sent, times))
    return {**trained, **cut}


def guards(checks: Iterable[Checks]) -> tuple[Checks, ...]:
    """What each client's guard says, where there are enough to outvote one that lies."""
    telling = tuple(one for one in checks if one.images)
    return telling if len(telling) >= FEWEST else ()


def _note(server: RoundExchange, client: str, step: str, how: str) -> None:
    server.report.bounds.add(client, step, how)


def _size(row: ClassCounts) -> int:
    return int(np.abs(row).sum())

"""Scores of clients as accuracies of a record."""

from collections.abc import Sequence

from ..algorithm.metrics import Score, accuracy
from .record import Measured


def measured(own: Sequence[Score], whole: Sequence[Score] | None = None) -> Measured:
    """The three accuracies, and each client's own; nothing where nobody has a labelled test image."""
    if not any(examples for _, examples in own):
        return Measured()
    mean = accuracy(own, whole)
    clients = tuple(correct / examples if examples else None for correct, examples in own)
    return Measured(macro=mean.macro, weighted=mean.weighted, everywhere=mean.global_, clients=clients)

"""Choosing a model without labels: signals that tend to go with accuracy, and a rank made of them.

None of them knows the truth. A model that is sure of the wrong thing is ranked high by the first, one that sees
nothing but the background by the second; and the third follows the majority.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import FloatArray
from .balance import adapted, even_mix, is_balanced, predicted_mix, rebalanced

LONGEST = 50  # steps towards balance


@dataclass(frozen=True)
class LabelFreeSignals:
    """Of one candidate on one site's images; each is higher for what is thought better."""

    confidence: float  # mean of the largest probability, once every class is predicted equally often
    stability: float  # share of images that are answered alike when they are changed a little
    agreement: float  # with the other candidates, mean share of images answered alike


def balanced(log_probs: FloatArray) -> FloatArray:
    """log p~, (n, C), after the bias that makes this site's classes come out equally often."""
    mix = even_mix(log_probs.shape[1])
    bias = np.zeros(log_probs.shape[1])
    for _ in range(LONGEST):
        predicted = predicted_mix(log_probs, bias, mix)
        if is_balanced(predicted, mix):
            break
        bias = rebalanced(bias, predicted, mix)
    return adapted(log_probs, bias, mix)


def signals(plain: Sequence[FloatArray], changed: Sequence[FloatArray]) -> list[LabelFreeSignals]:
    """Of each candidate, from its log p of the images, (n, C), and of the same images changed a little."""
    before, after = [balanced(one) for one in plain], [balanced(one) for one in changed]
    answers = [one.argmax(axis=1) for one in before]
    return [
        LabelFreeSignals(
            float(np.exp(before[i].max(axis=1)).mean()),
            float((answers[i] == after[i].argmax(axis=1)).mean()),
            float(np.mean([(answers[i] == other).mean() for j, other in enumerate(answers) if j != i] or [1.0])),
        )
        for i in range(len(before))
    ]


def scores(found: Sequence[LabelFreeSignals]) -> FloatArray:
    """A number for each candidate, the higher the better: the mean of two ranks, 0 to 1.

    Agreement is not in it: several bad candidates of one kind would vote for each other.
    """
    table = np.array([(one.confidence, one.stability) for one in found])
    mean: FloatArray = np.mean([ranks(column) for column in table.T], axis=0) / max(len(found) - 1, 1)
    return mean


def ranks(values: FloatArray) -> FloatArray:
    """0 for the lowest; equal values share the mean of their ranks."""
    below = (values[:, None] > values[None]).sum(axis=1)
    equal = (values[:, None] == values[None]).sum(axis=1)
    shared: FloatArray = below + (equal - 1) / 2
    return shared


def rank_correlation(one: FloatArray, other: FloatArray) -> float:
    """Spearman's: 1 where both order the candidates alike, -1 where they order them the other way round."""
    first, second = (ranks(np.asarray(values, float)) for values in (one, other))
    if first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])

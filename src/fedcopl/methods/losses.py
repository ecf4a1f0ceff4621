"""How well logits fit the pseudo labels: cross-entropy on hard labels, CPL's losses on candidate sets."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algorithm.select import Selection

SMALLEST = 1e-6  # a weight below this is taken for none, as in CPL's code
POWER = 0.7  # q of the generalised cross-entropy
OUTSIDE = 2.0  # how much more `lw` minds what it must not say than what it may


class LabelLoss(Protocol):
    """The mean loss of some of the chosen images, named by their rows in the selection."""

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor: ...

    def epoch_done(self) -> None: ...


def label_loss(selection: Selection, kind: str, device: torch.device) -> LabelLoss:
    """Cross-entropy where labels are hard; `kind` says which loss candidate sets have."""
    if selection.candidates is None:
        return HardLabels(torch.from_numpy(selection.label).to(device))
    said = torch.from_numpy(selection.candidates).float().to(device)
    return PARTIAL[kind](said)


class HardLabels:
    """-log p of the label."""

    def __init__(self, labels: Tensor):
        self._labels = labels

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return F.cross_entropy(logits, self._labels[rows])

    def epoch_done(self) -> None:
        """A hard label stays what it is."""


class Together:
    """`cc`: -log sum_c t_c p_c over the candidate set S; t_c = 1 unless targets are soft."""

    def __init__(self, said: Tensor):
        self._log_said = said.log()

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return (logits.logsumexp(-1) - (logits + self._log_said[rows]).logsumexp(-1)).mean()

    def epoch_done(self) -> None:
        """The sets stay what they are."""


class Generalised:
    """`gce`: sum over S of t_c (1 - p_c^q) / q."""

    def __init__(self, said: Tensor):
        self._said = said

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        each = (1 - (POWER * logits.log_softmax(-1)).exp()) / POWER
        return (self._said[rows] * each).sum(-1).mean()

    def epoch_done(self) -> None:
        """The sets stay what they are."""


class Reweighed:
    """`rc`: -sum_c w_c log p_c. w starts even on S; after each epoch it is what the model said in that epoch, on S."""

    def __init__(self, said: Tensor):
        self._inside = said > 0
        self._weights = said / said.sum(-1, keepdim=True)
        self._seen = torch.zeros_like(said)

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        self._seen[rows] = logits.detach().softmax(-1)
        return -(self._weights[rows] * logits.log_softmax(-1)).sum(-1).mean()

    def epoch_done(self) -> None:
        self._weights = within(self._seen, self._inside)


class Leveraged(Reweighed):
    """`lw`: sum over S of -w_c log p_c, plus twice the sum outside S of -w_c log(1 - p_c), where w starts at 0."""

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        wrong = (self._weights * ~self._inside)[rows]
        denied = -torch.log1p(-logits.softmax(-1).clamp(max=1 - SMALLEST))
        right = -(self._weights * self._inside)[rows] * logits.log_softmax(-1)
        self._seen[rows] = logits.detach().softmax(-1)
        return (right + OUTSIDE * wrong * denied).sum(-1).mean()

    def epoch_done(self) -> None:
        self._weights = within(self._seen, self._inside) + within(self._seen, ~self._inside)


def within(probabilities: Tensor, inside: Tensor) -> Tensor:
    """The probabilities of certain classes, made to sum to one; tiny ones are dropped, zeros where there are none."""
    shares = _normalised(probabilities * inside)
    return _normalised(shares * (shares >= SMALLEST))


def _normalised(weights: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, 0.0)


PARTIAL: Mapping[str, Callable[[Tensor], LabelLoss]] = {
    "cc": Together,
    "gce": Generalised,
    "rc": Reweighed,
    "lw": Leveraged,
}
"""The losses on candidate sets, by the setting `labels.cpl_loss`."""

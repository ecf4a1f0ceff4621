"""Losses on pseudo labels: cross-entropy for hard labels, five losses for candidate sets or soft targets."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algorithm.select import Selection
from ..priors.posterior import LogitAdjustment

_MIN_WEIGHT = 1e-6  # smaller weights are set to 0, as in CPL's code
_GCE_POWER = 0.7  # q of the generalised cross-entropy
_LW_OUTSIDE = 2.0  # weight of the classes outside the candidate set in `lw`


class LabelLoss(ABC):
    """A loss on the pseudo labels of a selection, whose images are addressed by their rows."""

    @abstractmethod
    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return the mean loss of the images at `rows`, (B,), from their logits, (B, C)."""

    def epoch_done(self) -> None:  # noqa: B027
        """Update the weights of the candidates, for losses that compute them from the probabilities of an epoch."""


def label_loss(
    selection: Selection, kind: str, device: torch.device, adjustment: LogitAdjustment | None = None
) -> LabelLoss:
    """Build the loss of a selection: cross-entropy for hard labels, else the candidate-set loss named `kind`.

    With an adjustment the loss is on prior-adjusted logits, weight * z + offset, so that training does not learn the
    priors a second time.
    """
    if selection.candidates is None:
        loss: LabelLoss = _CrossEntropy(torch.from_numpy(selection.label).to(device))
    else:
        loss = _CANDIDATE_LOSSES[kind](torch.from_numpy(selection.candidates).float().to(device))
    return loss if adjustment is None else _AdjustedLoss(loss, adjustment, device)


class _CrossEntropy(LabelLoss):
    """-log p of the label."""

    def __init__(self, labels: Tensor):
        self._labels = labels

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return F.cross_entropy(logits, self._labels[rows])


class _CCLoss(LabelLoss):
    """`cc`: -log sum_c t_c p_c over the candidate set S; t_c = 1 unless targets are soft."""

    def __init__(self, targets: Tensor):
        self._log_targets = targets.log()

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return (logits.logsumexp(-1) - (logits + self._log_targets[rows]).logsumexp(-1)).mean()


class _SoftLoss(LabelLoss):
    """`soft`: the cross-entropy -sum_c t_c log p_c with the probabilities t as the target."""

    def __init__(self, targets: Tensor):
        self._targets = targets / targets.sum(-1, keepdim=True)

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return -(self._targets[rows] * logits.log_softmax(-1)).sum(-1).mean()


class _GCELoss(LabelLoss):
    """`gce`: sum over S of t_c (1 - p_c^q) / q."""

    def __init__(self, targets: Tensor):
        self._targets = targets

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        class_losses = (1 - (_GCE_POWER * logits.log_softmax(-1)).exp()) / _GCE_POWER
        return (self._targets[rows] * class_losses).sum(-1).mean()


class _RCLoss(LabelLoss):
    """`rc`: -sum_c w_c log p_c; w is uniform on S first, then the last epoch's probabilities restricted to S."""

    def __init__(self, targets: Tensor):
        self._inside = targets > 0
        self._weights = targets / targets.sum(-1, keepdim=True)
        self._probabilities = torch.zeros_like(targets)  # of the current epoch

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        self._probabilities[rows] = logits.detach().softmax(-1)
        return -(self._weights[rows] * logits.log_softmax(-1)).sum(-1).mean()

    def epoch_done(self) -> None:
        """Set the weights to the probabilities of this epoch, restricted to the candidate sets."""
        self._weights = _restricted(self._probabilities, self._inside)


class _LWLoss(_RCLoss):
    """`lw`: sum over S of -w_c log p_c, plus twice that outside S of -w_c log(1 - p_c), where w is 0 at first."""

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        outside = (self._weights * ~self._inside)[rows]
        log_rejected = torch.log1p(-logits.softmax(-1).clamp(max=1 - _MIN_WEIGHT))
        inside = -(self._weights * self._inside)[rows] * logits.log_softmax(-1)
        self._probabilities[rows] = logits.detach().softmax(-1)
        return (inside + _LW_OUTSIDE * outside * -log_rejected).sum(-1).mean()

    def epoch_done(self) -> None:
        """Set the weights to the probabilities of this epoch, normalised separately inside and outside the sets."""
        inside, outside = (_restricted(self._probabilities, mask) for mask in (self._inside, ~self._inside))
        self._weights = inside + outside


def _restricted(probabilities: Tensor, mask: Tensor) -> Tensor:
    """Return the normalised probabilities of the masked classes without tiny ones; 0 if the mask is empty."""
    shares = _normalised(probabilities * mask)
    return _normalised(shares * (shares >= _MIN_WEIGHT))


def _normalised(weights: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, 0.0)


class _AdjustedLoss(LabelLoss):
    """Another loss on prior-adjusted logits, weight * z + offset."""

    def __init__(self, loss: LabelLoss, adjustment: LogitAdjustment, device: torch.device):
        self._loss, self._weight = loss, adjustment.weight
        self._offset = torch.from_numpy(adjustment.offset).float().to(device)

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return self._loss(self._weight * logits + self._offset[rows], rows)

    def epoch_done(self) -> None:
        self._loss.epoch_done()


_CANDIDATE_LOSSES: Mapping[str, Callable[[Tensor], LabelLoss]] = {
    "cc": _CCLoss,
    "gce": _GCELoss,
    "rc": _RCLoss,
    "lw": _LWLoss,
    "soft": _SoftLoss,
}
"""The losses on selections with candidates, as `Labeler.loss` names them."""

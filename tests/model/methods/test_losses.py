"""Cross-entropy and the partial-label loss, against section 6 of baselines.md."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedcopl.core.select import Selection
from fedcopl.model.methods.base import loss_on

P = torch.tensor([[0.70, 0.20, 0.10], [0.40, 0.35, 0.25], [0.15, 0.60, 0.25], [0.30, 0.25, 0.45]])
SETS = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]], bool)


def chosen(sets):
    return Selection(np.arange(len(sets)), np.zeros(len(sets), np.int64), sets)


def test_the_worked_example():
    each = [loss_on(P[i : i + 1].log(), chosen(SETS[i : i + 1])).item() for i in range(4)]
    assert each == pytest.approx([0.356675, 0.287682, 0.162519, 0.798508], abs=1e-6)
    assert loss_on(P.log(), chosen(SETS)).item() == pytest.approx(0.401346, abs=1e-6)


def test_its_gradient_by_hand():
    logits = P[1:2].log().requires_grad_()
    loss_on(logits, chosen(SETS[1:2])).backward()
    assert logits.grad[0].tolist() == pytest.approx([-0.133333, -0.116667, 0.25], abs=1e-6)


def test_sets_of_one_are_cross_entropy():
    label = np.array([2, 0, 1, 1])
    hard = loss_on(P.log(), Selection(np.arange(4), label))
    sets = loss_on(P.log(), chosen(np.eye(3, dtype=bool)[label]))
    torch.testing.assert_close(hard, sets)
    torch.testing.assert_close(hard, F.cross_entropy(P.log(), torch.from_numpy(label)))


def test_a_set_of_everything_teaches_nothing():
    logits = P.log().requires_grad_()
    loss = loss_on(logits, chosen(np.ones((4, 3), bool)))
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert logits.grad.abs().max().item() == pytest.approx(0, abs=1e-7)

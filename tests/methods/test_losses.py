"""Cross-entropy and CPL's losses on candidate sets, on numbers worked by hand and by its authors' program."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedcopl.algorithm.select import Selection
from fedcopl.methods.losses import label_loss
from fedcopl.priors.posterior import LogitAdjustment

P = torch.tensor([[0.70, 0.20, 0.10], [0.40, 0.35, 0.25], [0.15, 0.60, 0.25], [0.30, 0.25, 0.45]])
SETS = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1]], bool)
ROWS = torch.arange(4)
CPU = torch.device("cpu")


def loss_of(kind, sets):
    return label_loss(Selection(np.arange(len(sets)), np.zeros(len(sets), np.int64), sets), kind, CPU)


def each(loss):
    return [loss(P[i : i + 1].log(), ROWS[i : i + 1]).item() for i in range(4)]


WORKED = {
    "cc": [0.356675, 0.287682, 0.162519, 0.798508],
    "rc": [0.356675, 0.983056, 0.948560, 0.798508],
    "gce": [0.315634, 1.419831, 1.316718, 0.611706],
    "lw": [0.356675, 0.983056, 0.948560, 0.798508],  # nothing outside the set has a weight yet: as rc
}


@pytest.mark.parametrize("kind", WORKED)
def test_the_worked_example(kind):
    assert each(loss_of(kind, SETS)) == pytest.approx(WORKED[kind], abs=1e-6)
    assert loss_of(kind, SETS)(P.log(), ROWS).item() == pytest.approx(np.mean(WORKED[kind]), abs=1e-6)


def test_weights_are_the_probabilities_of_the_previous_epoch():
    loss = loss_of("rc", SETS)
    loss(P.log(), ROWS)
    loss.epoch_done()
    assert each(loss)[1:3] == pytest.approx([0.978605, 0.768316], abs=1e-6)  # by the authors' program, after one update
    assert [each(loss)[0], each(loss)[3]] == pytest.approx([0.356675, 0.798508], abs=1e-6)  # sets of one stay


def test_leveraged_weights_by_hand():
    loss = loss_of("lw", SETS)
    loss(P.log(), ROWS)
    loss.epoch_done()
    # Row 0: the set is {0}; outside, 1 and 2 weigh 2/3 and 1/3: -log .7 + 2 (2/3 (-log .8) + 1/3 (-log .9))
    expected = -np.log(0.7) + 2 * (2 / 3 * -np.log(0.8) + 1 / 3 * -np.log(0.9))
    assert each(loss)[0] == pytest.approx(expected, abs=1e-6)
    # Row 1: inside as rc after one update, outside only class 2, whose weight is 1.
    assert each(loss)[1] == pytest.approx(0.978605 + 2 * -np.log(0.75), abs=1e-6)


def test_tiny_weights_are_dropped():
    sets = np.ones((1, 3), bool)
    loss = loss_of("rc", sets)
    logits = torch.tensor([[0.0, -1.0, -30.0]])
    loss(logits, ROWS[:1])
    loss.epoch_done()
    p = np.exp([0.0, -1.0]) / np.exp([0.0, -1.0]).sum()
    assert loss(P[:1].log(), ROWS[:1]).item() == pytest.approx(-(p * np.log([0.7, 0.2])).sum(), abs=1e-6)


def test_soft_targets_weigh_the_candidates():
    # -log(.533333 * .40 + .466667 * .35): the probabilities at the refresh weigh the candidates
    soft = np.array([[1, 0, 0], [0.533333, 0.466667, 0], [0, 0.705882, 0.294118], [0, 0, 1]])
    assert each(loss_of("cc", soft))[1] == pytest.approx(-np.log(0.533333 * 0.40 + 0.466667 * 0.35), abs=1e-6)
    assert each(loss_of("rc", soft))[1] == pytest.approx(-0.533333 * np.log(0.4) - 0.466667 * np.log(0.35), abs=1e-5)


def test_the_gradient_by_hand():
    logits = P[1:2].log().requires_grad_()
    loss_of("cc", SETS)(logits, ROWS[1:2]).backward()
    assert logits.grad[0].tolist() == pytest.approx([-0.133333, -0.116667, 0.25], abs=1e-6)


@pytest.mark.parametrize("kind", ["cc", "rc", "lw"])
def test_sets_of_one_are_cross_entropy(kind):
    label = np.array([2, 0, 1, 1])
    hard = label_loss(Selection(np.arange(4), label), kind, CPU)(P.log(), ROWS)
    torch.testing.assert_close(hard, loss_of(kind, np.eye(3, dtype=bool)[label])(P.log(), ROWS))
    torch.testing.assert_close(hard, F.cross_entropy(P.log(), torch.from_numpy(label)))


def test_a_set_of_all_classes_has_no_gradient():
    logits = P.log().requires_grad_()
    loss = loss_of("cc", np.ones((4, 3), bool))(logits, ROWS)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert logits.grad.abs().max().item() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("kind", ["cc", "rc", "lw", "gce"])
def test_saturated_logits_stay_finite(kind):
    logits = torch.tensor([[200.0, -200.0, 0.0]] * 4).requires_grad_()
    loss = loss_of(kind, SETS)
    for _ in range(2):
        loss(logits, ROWS).backward()
        loss.epoch_done()
    assert torch.isfinite(logits.grad).all()


def test_logit_adjustment_by_hand():
    # softmax(2 z + offset) with z = log p; only image 2 has an offset, for class 1.
    offset = np.zeros((4, 3))
    offset[2, 1] = np.log(3)
    labels = Selection(np.arange(4), np.array([0, 0, 1, 0]))
    loss = label_loss(labels, "cc", CPU, LogitAdjustment(2.0, offset))
    rows = torch.tensor([2, 0])
    # 0.15^2, 3 * 0.6^2, 0.25^2 and 0.7^2, 0.2^2, 0.1^2.
    expected = -(np.log(1.08 / (0.0225 + 1.08 + 0.0625)) + np.log(0.49 / 0.54)) / 2
    assert loss(P[rows].log(), rows).item() == pytest.approx(expected, rel=1e-5)

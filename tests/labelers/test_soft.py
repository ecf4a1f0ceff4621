"""Soft labels: all images, with their probabilities as targets."""

import numpy as np
import pytest
import torch

from fedcopl.config import RunConfig
from fedcopl.labelers import choose_labeler
from fedcopl.messages import Select
from fedcopl.methods.losses import label_loss

LOG_PROBS = np.log([[0.6, 0.4], [0.2, 0.8], [0.9, 0.1]])


def selected(log_probs=LOG_PROBS, **options):
    labeler = choose_labeler(RunConfig.from_mapping({"labeler": "soft", "labeler_options": options}, "test"))
    return labeler.select(log_probs, labeler.quota(labeler.count(log_probs), 3, Select(0, 0, None, 1))), labeler


@pytest.mark.parametrize(
    ("temperature", "targets"),
    [
        (1.0, [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]),
        (0.5, [[81 / 82, 1 / 82], [9 / 13, 4 / 13], [1 / 17, 16 / 17]]),  # squares, normalised
    ],
)
def test_all_images_are_selected_with_their_probabilities(temperature, targets):
    chosen, _ = selected(temperature=temperature)
    assert (chosen.index.tolist(), chosen.label.tolist()) == ([2, 0, 1], [0, 0, 1])
    np.testing.assert_allclose(chosen.candidates, targets)


def test_the_loss_is_the_cross_entropy_with_soft_targets():
    chosen, labeler = selected()
    loss = label_loss(chosen, labeler.loss, torch.device("cpu"))
    logits = torch.tensor([[0.0, 0.0], [np.log(3.0), 0.0]])
    # 0.9 log 2 + 0.1 log 2 for the first; for the second 0.6 log(4/3) + 0.4 log 4
    expected = (np.log(2) + 0.6 * np.log(4 / 3) + 0.4 * np.log(4)) / 2
    assert loss(logits, torch.tensor([0, 1])).item() == pytest.approx(expected, rel=1e-6)


def test_a_client_without_images():
    chosen, _ = selected(np.zeros((0, 2)))
    assert chosen.candidates.shape == (0, 2)

"""Autocast, which is meant for GPUs, run on the CPU: slow there, but the same path, within the bounds of tests/gpu."""

import pytest
import torch

from clip.arithmetic_distance import FARTHEST, PLAIN, Distance, distance
from fedcopl.clip.device import Arithmetic


def test_float32_is_no_distance_from_itself():
    assert distance(PLAIN) == Distance(0, 0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_shorter_numbers_are_near(precision):
    found = distance(Arithmetic(torch.device("cpu"), precision))
    assert found.is_within(FARTHEST[precision])
    assert not found.is_within(Distance(1e-6, 1e-6, 1e-6, 0))  # they were used

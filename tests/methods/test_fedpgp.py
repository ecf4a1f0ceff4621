"""FedPGP: a low-rank adaptation of a shared prompt, and its contrastive loss by hand."""

import math

import numpy as np
import pytest
import torch

from fedcopl.methods.fedpgp import _contrast
from methods.toolbox import floats_of, learner_of, trained


def test_the_contrastive_loss_by_hand():
    # cos(T_0, T_G) = 0.6 and cos(T_G, T) = 1 at tau = 0.5: -log(e^1.2 / (e^1.2 + e^2)) = log(1 + e^0.8)
    zero_shot, shared = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8]])
    assert _contrast(zero_shot, shared, shared, 0.5).item() == pytest.approx(math.log(1 + math.exp(0.8)), rel=1e-6)
    # Over two classes it is the mean; alike on both sides, a class has log 2.
    doubled = _contrast(
        zero_shot.repeat(2, 1), torch.tensor([[0.6, 0.8], [1, 0]]), torch.tensor([[0.6, 0.8], [1, 0]]), 0.5
    )
    assert doubled.item() == pytest.approx((math.log(1 + math.exp(0.8)) + math.log(2)) / 2, rel=1e-6)


def test_the_prompt_is_the_sum():
    learner, plain = learner_of("fedpgp"), learner_of("promptfl")
    rng = np.random.default_rng(3)
    arrays = {name: rng.normal(0, 0.1, value.shape).astype(np.float32) for name, value in learner.initial().items()}
    text = arrays["global text"] + arrays["low rank left"] @ arrays["low rank right"]
    torch.testing.assert_close(
        learner.extractor.logits(arrays), plain.extractor.logits({"text": text}), atol=1e-4, rtol=1e-4
    )


def test_mu_changes_the_training():
    some, none = (trained(learner_of("fedpgp", f"options.mu={mu}")) for mu in (1, 0))
    assert some[1] > none[1]  # the contrastive loss is positive
    assert (some[0]["global text"] != none[0]["global text"]).any()


def test_shared_and_personal_arrays():
    assert floats_of("fedpgp") == ({"global text": 2048}, {"low rank left": 128, "low rank right": 1024})
    assert floats_of("fedpgp", "options.rank=2")[1] == {"low rank left": 32, "low rank right": 256}

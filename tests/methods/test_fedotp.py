"""FedOTP on a worked example; the transport itself is tested in tests/methods/test_optimal_transport.py."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from clip.plain_clip import plain_block
from fedcopl.clip.vision_towers import ResNetTower
from fedcopl.errors import ConfigError
from fedcopl.methods import choose_method
from methods.toolbox import config_of, encoder, floats_of, images

# S of the worked example, as features: patches are rows of S beside unit vectors, prompts the two unit vectors.
S = torch.tensor([[0.30, 0.10], [0.25, 0.20], [0.05, 0.28], [0.12, 0.15]])


def logits_of(*pairs):
    """z of one image and one class whose similarities are S."""
    method = choose_method(config_of("fedotp", *pairs))
    prompts = torch.eye(2).view(2, 1, 2).requires_grad_()  # (2 prompts, 1 class, 2 dimensions)
    return method.logits(encoder(), S[None], prompts, {}) / encoder().clip.logit_scale, prompts


def test_the_worked_example():
    torch.testing.assert_close(logits_of("options.mass=0.8")[0].item(), 0.19314409, atol=2e-6, rtol=0)
    torch.testing.assert_close(logits_of("options.mass=1.0")[0].item(), 0.22583787, atol=2e-6, rtol=0)
    torch.testing.assert_close(logits_of("options.mass=0.5")[0].item(), 0.12073387, atol=2e-6, rtol=0)


def test_the_plan_is_a_constant_to_the_gradient():
    # d z / d h_j = sum_i T_ij g_i, with the converged plan of the worked example.
    plan = torch.tensor([[0.215157, 0.034843], [0.131293, 0.095290], [0.017769, 0.212071], [0.035782, 0.057796]])
    z, prompts = logits_of("options.mass=0.8")
    z.sum().backward()
    torch.testing.assert_close(prompts.grad.squeeze(1), plan.T @ S, atol=2e-5, rtol=0)


def test_patches_go_through_every_block():
    clip, tokens = encoder().clip, images().tokens(np.arange(3))
    x = tokens
    for block in clip.vision.blocks:
        x = plain_block(block, x, causal=False)
    expected = F.normalize(clip.vision.project(clip.vision.norm_last(x[:, 1:])), dim=-1)
    torch.testing.assert_close(encoder().patch_features(tokens), expected, atol=1e-5, rtol=1e-4)


def test_two_equal_prompts_give_the_logits_of_one():
    method = choose_method(config_of("fedotp"))
    patches = encoder().patch_features(images().tokens(np.arange(2)))
    one = encoder().class_features(None)
    both = method.logits(encoder(), patches, torch.stack([one, one]), {})
    alone = method.logits(encoder(), patches, one[None], {})
    torch.testing.assert_close(both, alone, atol=1e-3, rtol=1e-4)


def test_features_larger_than_the_memory_are_computed_again(monkeypatch):
    from dataclasses import replace

    from fedcopl.clip.encoder import ClientImages
    from fedcopl.methods.learner import ClipLearner
    from methods.toolbox import learner_of, trained

    cached = learner_of("fedotp")
    one = cached.extractor.frozen_features(np.arange(1)).nbytes
    small_memory = ClientImages(replace(images().store, memory=one * 60 - 1), images().rows)
    learner = ClipLearner(cached.model, small_memory, cached.start, cached.config, 0)
    calls, method = [], cached.model.method
    run = method.frozen_features
    monkeypatch.setattr(method, "frozen_features", lambda e, t: (calls.append(1), run(e, t))[1])
    ours, theirs = trained(learner)[0], trained(cached)[0]
    assert len(calls) > 4  # once for each batch
    np.testing.assert_allclose(ours["global text"], theirs["global text"], atol=1e-5)


def test_smoothing_depends_on_the_encoder():
    resnet = SimpleNamespace(vision=ResNetTower(stem=8, depths=(1, 1, 1, 1), image_size=64, output=40))
    method = choose_method(config_of("fedotp"))
    assert (method.smoothing(encoder().clip), method.smoothing(resnet)) == (0.1, 0.01)
    assert choose_method(config_of("fedotp", "options.smoothing=0.3")).smoothing(resnet) == 0.3
    with pytest.raises(ConfigError, match=r"options\.smoothing"):
        choose_method(config_of("fedotp", "options.smoothing=0"))


def test_shared_and_personal_arrays():
    assert floats_of("fedotp") == floats_of("fedopt") == ({"global text": 2048}, {"local text": 2048})

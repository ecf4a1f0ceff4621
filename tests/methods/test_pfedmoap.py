"""pFedMoAP: a gate over experts, by hand."""

import numpy as np
import pytest
import torch

from fedcopl.errors import ConfigError
from fedcopl.methods import choose_method
from fedcopl.methods.pfedmoap import _EXPERTS, _GATE, _gate_name, _mixture, _stride
from methods.toolbox import CHOSEN, config_of, encoder, floats_of, learner_of, trained

EXPERT_PROMPTS = np.random.default_rng(5).normal(0, 0.3, (3, 16, 128)).astype(np.float32)


def with_experts(learner, experts=EXPERT_PROMPTS):
    return {**learner.initial(), _EXPERTS: experts}


def test_the_gate_by_hand():
    # q = (.6, .8), experts (1, 0) and (0, 1), identity maps, one head: weights (.119203, .880797)
    gate = {part: (torch.eye(2), torch.zeros(2)) for part in _GATE}
    classes = torch.eye(2)[:, None]  # two experts, one class
    similarity = _mixture(torch.tensor([[0.6, 0.8]]), classes, gate, heads=1)
    torch.testing.assert_close(similarity, torch.tensor([[0.776159]]), atol=1e-6, rtol=0)


def test_the_gate_is_a_multi_head_attention():
    # Against torch's attention, whose scores are divided by sqrt(head width): the query is scaled by it.
    torch.manual_seed(0)
    width, heads, experts = 16, 4, 5
    theirs = torch.nn.MultiheadAttention(width, heads)
    weights, biases = theirs.in_proj_weight.detach().chunk(3), torch.randn(3, width)
    out = theirs.out_proj
    gate = {part: (weights[i], biases[i]) for i, part in enumerate(_GATE[:3])} | {
        "output": (out.weight.detach(), out.bias.detach())
    }
    images, classes = torch.randn(3, width), torch.randn(experts, 2, width)
    up = 10 * (width // heads) ** 0.5
    theirs.in_proj_weight.data = torch.cat([weights[0] * up, weights[1], weights[2]])
    theirs.in_proj_bias.data = torch.cat([biases[0] * up, biases[1], biases[2]])
    ours = _mixture(images, classes, gate, heads)
    for c in range(2):
        keys = classes[:, c][:, None].expand(-1, len(images), -1)
        mixed, _ = theirs(images[None], keys, keys)
        torch.testing.assert_close(ours[:, c], (images * mixed[0]).sum(-1), atol=1e-4, rtol=1e-4)


def test_the_size_of_the_gate():
    shapes = choose_method(config_of("pfedmoap")).shapes(encoder().clip, encoder().classes)
    assert sum(np.prod(shape) for name, shape in shapes.items() if name.startswith("gate")) == 66_048
    assert (_stride(512), _stride(1024), _stride(128), _stride(32)) == (4, 8, 1, 1)


def test_without_experts_it_is_promptfl():
    ours, plain = learner_of("pfedmoap"), learner_of("promptfl")
    assert (ours.extractor.logits(ours.initial()) == plain.extractor.logits(plain.initial())).all()
    assert trained(ours)[0]["text"].tobytes() == trained(plain)[0]["text"].tobytes()


def test_the_order_of_the_experts_does_not_matter():
    learner = learner_of("pfedmoap")
    one = learner.extractor.logits(with_experts(learner))
    other = learner.extractor.logits(with_experts(learner, EXPERT_PROMPTS[::-1].copy()))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-5)


def test_experts_change_the_predictions():
    learner = learner_of("pfedmoap")
    assert not torch.allclose(
        learner.extractor.logits(with_experts(learner)), learner.extractor.logits(learner.initial())
    )


def test_prompt_and_gate_are_trained_and_experts_are_not():
    # The bias of the keys cancels out in the softmax: only decay to zero changes it.
    learner = learner_of("pfedmoap", "decay_to=zero")
    after, _ = learner.train(with_experts(learner), CHOSEN, 0)
    for name in learner.initial():
        assert (after[name] != learner.initial()[name]).any(), name
    assert (after[_EXPERTS] == EXPERT_PROMPTS).all()


def test_experts_are_encoded_once_a_round(monkeypatch):
    learner = learner_of("pfedmoap")
    calls = []
    tower = encoder().clip.text
    monkeypatch.setattr(tower, "forward", lambda *args, run=tower.forward: (calls.append(1), run(*args))[1])
    learner.train(with_experts(learner), CHOSEN, 0)
    assert len(calls) == 3 + 2 * 3  # three experts, two epochs of three batches with the client's own prompt


def test_the_gate_has_its_own_learning_rate():
    slow = learner_of("pfedmoap", "options.gate_lr=1e-12")
    after, _ = slow.train(with_experts(slow), CHOSEN, 0)
    name = _gate_name("query")
    assert np.abs(after[name] - slow.initial()[name]).max() < 1e-6
    assert np.abs(after["text"] - slow.initial()["text"]).max() > 1e-4


def test_inference_uses_the_own_prompt_and_training_starts_from_the_average():
    learner = learner_of("pfedmoap")
    after, _ = trained(learner)
    averaged = {**after, "text": learner.initial()["text"]}
    assert (learner.extractor.logits(averaged) == learner.extractor.logits(after)).all()
    again, _ = learner.train(averaged, CHOSEN, 0)
    assert again["text"].tobytes() == after["text"].tobytes()


def test_heads_must_divide_the_input_of_the_gate():
    with pytest.raises(ConfigError, match=r"options\.heads: must divide the 128 dimensions"):
        learner_of("pfedmoap", "options.heads=3")


def test_shared_and_personal_arrays():
    gate = {f"gate {part}": 16384 for part in ("query", "key", "value", "output")}
    assert floats_of("pfedmoap") == ({"text": 2048}, gate | {f"{name} bias": 128 for name in gate})

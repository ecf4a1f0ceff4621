"""PromptFL and PromptProx, on numbers worked by hand."""

import numpy as np
import pytest
import torch

from fedcopl.methods import choose_method
from methods.toolbox import config_of, encoder, floats_of, learner_of, trained


def test_the_proximal_term_by_hand():
    # V = (1, 2, 3), V^r = (0, 0, 1), mu = 0.5: penalty 2.25, gradient (0.5, 1.0, 1.0)
    method = choose_method(config_of("promptprox", "options.mu=0.5"))
    now = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    penalty = method.penalty({"text": now}, {"text": torch.tensor([0.0, 0.0, 1.0])})
    assert penalty.item() == 2.25
    penalty.backward()
    assert now.grad.tolist() == [0.5, 1.0, 1.0]


def test_one_step_with_the_proximal_term_by_hand():
    # w = 1, w_g = 0, task gradient 0.2, mu = 0.5, lr 0.1: 1 - 0.1 * (0.2 + 0.5) = 0.93
    method = choose_method(config_of("promptprox", "options.mu=0.5"))
    w = torch.tensor([1.0], requires_grad=True)
    (0.2 * w.sum() + method.penalty({"text": w}, {"text": torch.zeros(1)})).backward()
    torch.optim.SGD([w], 0.1).step()
    assert w.item() == pytest.approx(0.93)


def test_mu_zero_is_promptfl_bit_for_bit():
    one, other = trained(learner_of("promptfl"))[0], trained(learner_of("promptprox", "options.mu=0"))[0]
    assert one["text"].tobytes() == other["text"].tobytes()


def test_a_large_mu_keeps_the_prompt_near_the_average():
    # lr * mu < 1, or the pull itself would overshoot
    moves = []
    for mu in (0, 20):
        steps = ("step=plain", "lr=0.01", "epochs=10", "momentum=0", "weight_decay=0", "clip_norm=0")
        learner = learner_of("promptprox", f"options.mu={mu}", *steps)
        moves.append(np.linalg.norm(trained(learner)[0]["text"] - learner.initial()["text"]))
    assert moves[1] < moves[0] / 2


@pytest.mark.parametrize("name", ["promptfl", "promptprox"])
def test_dual_shares_both_prompts(name):
    method = choose_method(config_of(name, "options.modality=dual"))
    assert method.shared() == ("visual", "text")
    assert set(method.shapes(encoder().clip, encoder().classes)) == {"visual", "text"}
    after, _ = trained(learner_of(name, "options.modality=dual"))
    assert set(after) == {"visual", "text"}


def test_dual_promptfl_equals_fedcopl_with_both_prompts_shared():
    one = trained(learner_of("promptfl", "options.modality=dual"))[0]
    other = trained(learner_of("fedcopl", "aggregate=both"))[0]
    assert all(one[key].tobytes() == other[key].tobytes() for key in one)


def test_shared_and_personal_arrays():
    assert floats_of("promptfl") == floats_of("promptprox") == ({"text": 2048}, {})

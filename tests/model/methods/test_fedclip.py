"""FedCLIP against section 10 of baselines.md."""

import torch
import torch.nn.functional as F

from fedcopl.model.methods import choose_method
from model.methods.toolbox import config_of, encoder, images, learner_of


def test_the_adapter_by_hand():
    # I = (3, 4), A = identity, B = diag(1, -1), biases 0
    named = {"down": torch.eye(2), "down bias": torch.zeros(2), "up": torch.diag(torch.tensor([1.0, -1.0]))}
    named["up bias"] = torch.zeros(2)
    seen = choose_method(config_of("fedclip")).images(encoder(), torch.tensor([[3.0, 4.0]]), named)
    torch.testing.assert_close(seen, torch.tensor([[0.983931, 0.178547]]), atol=1e-6, rtol=0)


def test_an_adapter_that_says_nothing_is_zero_shot():
    learner = learner_of("fedclip")
    silent = {name: value * (0 if name.startswith("up") else 1) for name, value in learner.initial().items()}
    ours = learner.log_probabilities(silent).argmax(1)
    assert (ours == learner.log_probabilities(None).argmax(1)).all()


def test_it_reads_features_that_are_not_normalised():
    raw = choose_method(config_of("fedclip")).frozen(encoder(), images().tokens(images().places[:5]))
    assert not torch.allclose(raw.norm(dim=-1), torch.ones(5))
    torch.testing.assert_close(F.normalize(raw, dim=-1), encoder().image_features(images().tokens(images().places[:5])))

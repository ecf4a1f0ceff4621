"""FedCLIP: an adapter on image features, worked by hand."""

import torch
import torch.nn.functional as F

from fedcopl.methods import choose_method
from methods.toolbox import config_of, encoder, floats_of, images, learner_of


def test_the_adapter_by_hand():
    # I = (3, 4), A = identity, B = diag(1, -1), biases 0
    named = {"down": torch.eye(2), "down bias": torch.zeros(2), "up": torch.diag(torch.tensor([1.0, -1.0]))}
    named["up bias"] = torch.zeros(2)
    features = choose_method(config_of("fedclip")).image_features(encoder(), torch.tensor([[3.0, 4.0]]), named)
    torch.testing.assert_close(features, torch.tensor([[0.983931, 0.178547]]), atol=1e-6, rtol=0)


def test_an_adapter_with_zero_output_is_zero_shot():
    learner = learner_of("fedclip")
    zero_output = {name: value * (0 if name.startswith("up") else 1) for name, value in learner.initial().items()}
    ours = learner.log_probabilities(zero_output).argmax(1)
    assert (ours == learner.log_probabilities(None).argmax(1)).all()


def test_the_adapter_gets_unnormalised_features():
    raw = choose_method(config_of("fedclip")).frozen_features(encoder(), images().tokens(images().rows[:5]))
    assert not torch.allclose(raw.norm(dim=-1), torch.ones(5))
    torch.testing.assert_close(F.normalize(raw, dim=-1), encoder().image_features(images().tokens(images().rows[:5])))


def test_the_contrastive_loss_by_hand():
    from fedcopl.methods.fedclip import _contrast

    # Two images, two texts: rows give -log(e^2 / (e^2 + 1)) and -log(e / (e + e^0)), and so do columns.
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    rows = (torch.log(1 + torch.exp(torch.tensor(-2.0))) + torch.log(1 + torch.exp(torch.tensor(-1.0)))) / 2
    torch.testing.assert_close(_contrast(logits), rows)  # symmetric, so the columns give the same


def test_the_contrastive_loss_treats_other_images_of_the_class_as_negatives():
    import numpy as np

    from fedcopl.algorithm.select import Selection
    from methods.toolbox import SETS, trained

    same = Selection(np.arange(8), np.zeros(8, np.int64))
    _, ce = trained(learner_of("fedclip"), same)
    _, contrastive = trained(learner_of("fedclip", "options.loss=contrastive"), same)
    assert contrastive >= np.log(8) - 0.2  # all texts are equal, so the loss is that of chance
    assert ce != contrastive
    sets = [trained(learner_of("fedclip", *pairs), SETS)[1] for pairs in ([], ["options.loss=contrastive"])]
    assert sets[0] == sets[1]  # candidate sets keep their own loss


def test_shared_and_personal_arrays():
    assert floats_of("fedclip") == ({"down": 16384, "down bias": 128, "up": 16384, "up bias": 128}, {})

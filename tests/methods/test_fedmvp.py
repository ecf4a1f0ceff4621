"""FedMVP: the prompts of each image, against the tower's own prompts, and the consistency by hand."""

import pytest
import torch
import torch.nn.functional as F

from fedcopl.errors import ConfigError
from fedcopl.methods import choose_method
from fedcopl.methods.base import Batch
from methods.toolbox import CHOSEN, config_of, encoder, floats_of, images, learner_of, trained


def tokens(count=3):
    return images().tokens(CHOSEN.index[:count])


def features(named, *pairs):
    method = choose_method(config_of("fedmvp", *pairs))
    with torch.no_grad():
        return method.image_features(encoder(), tokens(), named)


def start(*pairs):
    learner = learner_of("fedmvp", *pairs)
    return learner.model.params(learner.initial())


def test_prompts_are_further_tokens_of_the_first_block():
    """Without values and biases H' is the bias of the last layer, so the prompts are known."""
    named = {name: torch.zeros_like(value) for name, value in start().items()}
    named["contract bias"] = torch.randn(128, generator=torch.Generator().manual_seed(1))
    vision = encoder().clip.vision
    with torch.no_grad():
        prompt = vision.norm_first(named["contract bias"]).expand(3, 4, -1)
        expected = F.normalize(vision(torch.cat([tokens(), prompt], dim=1)), dim=-1)
    torch.testing.assert_close(features(named), expected)
    assert not torch.allclose(features(named), features(named, "options.prompts=1"), atol=1e-3)


def test_prompts_depend_on_the_image_and_on_the_texts():
    named = start()
    other = named | {"text map": torch.zeros_like(named["text map"])}
    assert not torch.allclose(features(named), features(other), atol=1e-4)
    # One image among others has the features that it has alone.
    method = choose_method(config_of("fedmvp"))
    with torch.no_grad():
        alone = method.image_features(encoder(), tokens()[:1], named)
    torch.testing.assert_close(alone, features(named)[:1], atol=1e-5, rtol=1e-4)


def test_values_are_not_normalised():
    """Texts at twice the length have the same normalised keys, and values of twice the length."""
    named = start()
    longer = named | {name: 2 * named[name] for name in ("text map", "text map bias")}
    assert not torch.allclose(features(named), features(longer), atol=1e-4)


def test_the_consistency_by_hand():
    # cosines 1 and 0.6: 10 (1 - 0.8) = 2, on top of a loss of 0.5
    ours, plain = torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    index, label = CHOSEN.index[:2], CHOSEN.label[:2]
    batch = Batch(encoder(), ours, torch.zeros(10, 2), {}, index, label, None, lambda: plain)
    half = torch.tensor(0.5)
    for weight, expected in ((10, 2.5), (0, 0.5)):
        method = choose_method(config_of("fedmvp", f"options.consistency={weight}"))
        loss = method.loss(batch, lambda logits: half)
        assert loss.item() == pytest.approx(expected)


def test_the_consistency_keeps_features_near_zero_shot_clip():
    near, far = (trained(learner_of("fedmvp", f"options.consistency={weight}"))[0] for weight in (100, 0))
    plain = learner_of("zeroshot").extractor.zero_shot_features()[0]
    cosines = [
        F.cosine_similarity(torch.cat(learner_of("fedmvp").extractor.features(after)), plain).mean()
        for after in (near, far)
    ]
    assert cosines[0] > cosines[1]


def test_all_arrays_are_shared():
    shared, own = floats_of("fedmvp")
    # a map of the texts, four maps with three biases, 8 x 128 wide and back
    assert sum(shared.values()) == 5 * 128**2 + 4 * 128 + 1024 * 129 + 128 * 512 + 128
    assert own == {}
    assert choose_method(config_of("fedmvp")).averaged() == ("prompt generators",)


def test_heads_must_divide_the_width():
    with pytest.raises(ConfigError, match=r"options\.heads: must divide the 128 dimensions of a visual prompt"):
        learner_of("fedmvp", "options.heads=3")

"""FedTPG: the prompt generator, against torch's own layers and in cases that can be worked by hand."""

import pytest
import torch

from fedcopl.errors import ConfigError
from fedcopl.methods import choose_method
from fedcopl.methods.fedtpg import LAYERS, generated
from methods.toolbox import config_of, encoder, floats_of, learner_of

SIZES = ((8, 8), (8, 6), (8, 6), (8, 8), (64, 8), (64,), (8, 32), (8,))


def generator(seed=0):
    torch.manual_seed(seed)
    return {"queries": torch.randn(3, 8)} | {name: torch.randn(size) for name, size in zip(LAYERS, SIZES, strict=True)}


def test_it_is_torchs_attention_and_feed_forward_block():
    named, texts = generator(), torch.randn(5, 6)
    attention = torch.nn.MultiheadAttention(8, 4, bias=False, kdim=6, vdim=6)
    maps = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight, attention.out_proj.weight)
    for weight, name in zip(maps, LAYERS[:4], strict=True):
        weight.data = named[name]
    queries, keys = torch.nn.LayerNorm(8)(named["queries"]), torch.nn.LayerNorm(6)(texts)
    attended, _ = attention(queries, keys, keys)
    wide = torch.nn.LayerNorm(8)(attended) @ named["expand"].T + named["expand bias"]
    hidden = wide[:, :32] * torch.nn.GELU()(wide[:, 32:])
    expected = attended + hidden @ named["contract"].T + named["contract bias"]
    torch.testing.assert_close(generated(texts, named, 4), expected, atol=1e-4, rtol=1e-4)


def test_one_class_gets_all_attention():
    # LN of (3, 1, 3, 1, 3, 1) is (1, -1, ...) up to LN's 1e-5; the value map doubles it, the feed-forward block is off.
    named = generator() | {"contract": torch.zeros(8, 32), "contract bias": torch.zeros(8)}
    named |= {"value map": 2 * torch.eye(8, 6), "output map": torch.eye(8)}
    expected = torch.tensor([2.0, -2, 2, -2, 2, -2, 0, 0]).repeat(3, 1)
    torch.testing.assert_close(generated(torch.tensor([[3.0, 1] * 3]), named, 4), expected, atol=1e-4, rtol=0)


def test_the_order_of_the_classes_does_not_matter():
    named, texts = generator(), torch.randn(5, 6)
    torch.testing.assert_close(generated(texts, named, 4), generated(texts.flip(0), named, 4), atol=1e-4, rtol=1e-4)


def test_the_generated_prompt_is_the_context():
    ours, plain = learner_of("fedtpg"), learner_of("promptfl")
    named = ours.model.named(ours.initial())
    text = generated(encoder().class_features(None), named, 4).numpy()
    torch.testing.assert_close(ours.side.logits(ours.initial()), plain.side.logits({"text": text}))


def test_everything_is_shared():
    shared, own = floats_of("fedtpg")
    # 16 queries, four maps, 8 x 128 wide and back, with biases
    assert (sum(shared.values()), own) == (16 * 128 + 4 * 128**2 + 1024 * 129 + 128 * 512 + 128, {})
    assert choose_method(config_of("fedtpg")).averaged() == ("prompt generators",)


def test_heads_must_divide_the_width():
    with pytest.raises(ConfigError, match=r"options\.heads: must divide the 128 coordinates"):
        learner_of("fedtpg", "options.heads=3")

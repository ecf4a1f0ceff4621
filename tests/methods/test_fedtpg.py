"""FedTPG: the prompt generator, against torch's layers and by hand."""

import pytest
import torch

from fedcopl.errors import ConfigError
from fedcopl.methods import choose_method
from fedcopl.methods.cross_attention import cross_attention, layer_shapes, standardised
from methods.toolbox import config_of, encoder, floats_of, learner_of


def layers(seed=0):
    torch.manual_seed(seed)
    return {name: torch.randn(size) for name, size in layer_shapes(8, 6).items()}


def block(named, queries, keys, values):
    """Compute the block with torch's modules, for 4 heads, 8 coordinates and keys of 6."""
    attention = torch.nn.MultiheadAttention(8, 4, kdim=6, vdim=6, batch_first=True)
    maps = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight, attention.out_proj.weight)
    for weight, part in zip(maps, ("query", "key", "value", "output"), strict=True):
        weight.data = named[f"{part} map"]
    attention.in_proj_bias.data = torch.cat([named["query map bias"], torch.zeros(8), named["value map bias"]])
    attention.out_proj.bias.data = named["output map bias"]
    attended, _ = attention(queries, keys, values)
    wide = torch.nn.LayerNorm(8)(attended) @ named["expand"].T + named["expand bias"]
    hidden = wide[..., :32] * torch.nn.GELU()(wide[..., 32:])
    return attended + hidden @ named["contract"].T + named["contract bias"]


def test_it_is_torchs_attention_and_feed_forward_block():
    named, queries, keys, values = layers(), torch.randn(3, 8), torch.randn(5, 6), torch.randn(5, 6)
    ours = cross_attention(queries, keys, values, named, 4)
    torch.testing.assert_close(ours, block(named, queries, keys, values), atol=1e-4, rtol=1e-4)
    # A batch of queries over the same keys gives the result of each query alone.
    both = torch.stack([queries, torch.randn(3, 8)])
    torch.testing.assert_close(cross_attention(both, keys, values, named, 4)[0], ours, atol=1e-4, rtol=1e-4)


def test_one_class_gets_all_attention():
    # The value map doubles the first six coordinates; without biases and feed-forward layer that is the output.
    named = {name: torch.zeros_like(value) for name, value in layers().items()}
    named |= {"value map": 2 * torch.eye(8, 6), "output map": torch.eye(8)}
    made = cross_attention(torch.randn(3, 8), torch.randn(1, 6), torch.tensor([[1.0, -1] * 3]), named, 4)
    torch.testing.assert_close(made, torch.tensor([2.0, -2, 2, -2, 2, -2, 0, 0]).repeat(3, 1))


def test_the_order_of_the_classes_does_not_matter():
    named, queries, texts = layers(), torch.randn(3, 8), torch.randn(5, 6)
    one, other = (cross_attention(queries, rows, rows, named, 4) for rows in (texts, texts.flip(0)))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_the_generated_prompt_is_the_context():
    ours, plain = learner_of("fedtpg"), learner_of("promptfl")
    named, texts = ours.model.params(ours.initial()), standardised(encoder().class_features(None))
    text = cross_attention(standardised(named["queries"]), texts, texts, named, 4).numpy()
    torch.testing.assert_close(ours.extractor.logits(ours.initial()), plain.extractor.logits({"text": text}))


def test_all_arrays_are_shared():
    shared, own = floats_of("fedtpg")
    # 16 queries, four maps and three biases, 8 x 128 wide and back, with biases
    assert (sum(shared.values()), own) == (16 * 128 + 4 * 128**2 + 3 * 128 + 1024 * 129 + 128 * 512 + 128, {})
    assert choose_method(config_of("fedtpg")).averaged() == ("prompt generators",)


def test_heads_must_divide_the_width():
    with pytest.raises(ConfigError, match=r"options\.heads: must divide the 128 dimensions"):
        learner_of("fedtpg", "options.heads=3")

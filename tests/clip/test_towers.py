"""The fast path has the loss and the gradients of a plain implementation."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from clip.plain_clip import plain_block, plain_padded_text, plain_text, plain_vision, rows_of
from fedcopl.clip.blocks import TowerShape
from fedcopl.clip.text_towers import CausalText, PaddedText, pad_rows, split_sentences
from fedcopl.clip.vision_towers import VisionTower, _PoolingHead
from fedcopl.errors import ModelError

START, END = 1, 49


def towers(
    seed: int, width: int, depth: int, dtype: torch.dtype, activation="quick_gelu", norm_first=True
) -> tuple[VisionTower, CausalText]:
    generator = torch.Generator().manual_seed(seed)
    shape = TowerShape(width, depth, heads=width // 8, hidden=2 * width, activation=activation)
    vision = VisionTower(shape, patch_size=4, image_size=12, output=16, patch_bias=False, norm_first=norm_first)
    text = CausalText(shape, vocabulary=50, positions=20, output=16)
    for tower in (vision, text):
        for parameter in tower.parameters():
            torch.nn.init.normal_(parameter, std=0.2, generator=generator)
            parameter.requires_grad_(False)
    return vision.to(dtype), text.to(dtype)


@st.composite
def cases(draw):
    classes = draw(st.integers(1, 6))
    words = st.lists(st.integers(2, END - 1), min_size=1, max_size=5)
    rows = [[START, *draw(words), END] for _ in range(classes)]
    return {
        "rows": rows,
        "seed": draw(st.integers(0, 1000)),
        "width": draw(st.sampled_from([8, 16, 32])),
        "depth": draw(st.integers(1, 4)),
        "prompted": draw(st.integers(0, 4)),
        "vectors": draw(st.integers(1, 3)),
        "context": draw(st.integers(0, 6)),
        "activation": draw(st.sampled_from(["quick_gelu", "gelu"])),
        "norm_first": draw(st.booleans()),
    }


def losses_and_gradients(case, dtype):
    """(loss, gradient of the visual prompt, gradient of the context) of the fast and of the plain path."""
    generator = torch.Generator().manual_seed(case["seed"] + 1)
    vision, text = towers(case["seed"], case["width"], case["depth"], dtype, case["activation"], case["norm_first"])
    pixels = torch.randn(5, 3, 12, 12, generator=generator, dtype=dtype)
    levels = min(case["prompted"], case["depth"])
    visual = torch.randn(levels, case["vectors"], case["width"], generator=generator, dtype=dtype)
    context = torch.randn(case["context"], case["width"], generator=generator, dtype=dtype)
    label = torch.randint(len(case["rows"]), (5,), generator=generator)
    sentences = split_sentences(case["rows"])
    tokens = vision.embed(pixels)

    def outcome(encode_image, encode_text):
        prompts = [visual.clone().requires_grad_(), context.clone().requires_grad_()]
        images, classes = (
            F.normalize(encode_image(prompts[0]), dim=-1),
            F.normalize(encode_text(prompts[1]), dim=-1),
        )
        loss = F.cross_entropy(20 * images @ classes.T, label)
        loss.backward()
        return [loss.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad for p in prompts)]

    fast = outcome(lambda v: vision(tokens, tuple(v)), lambda c: text(sentences, c))
    plain = outcome(lambda v: plain_vision(vision, tokens, v), lambda c: plain_text(text, case["rows"], c))
    return fast, plain


@settings(max_examples=40)
@given(cases())
def test_the_fast_path_equals_plain_clip_in_float64(case):
    for ours, reference in zip(*losses_and_gradients(case, torch.float64), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-10)


def test_the_fast_path_equals_plain_clip_in_float32():
    rows = [[START, 5, 6, END], [START, 5, 7, 8, END], [START, 5, 9, END]]
    case = {
        "rows": rows,
        "seed": 3,
        "width": 32,
        "depth": 3,
        "prompted": 2,
        "vectors": 3,
        "context": 4,
        "activation": "gelu",
        "norm_first": True,
    }
    fast, plain = losses_and_gradients(case, torch.float32)
    torch.testing.assert_close(fast[0], plain[0], rtol=1e-6, atol=1e-6)
    for ours, reference in zip(fast[1:], plain[1:], strict=True):
        assert (ours - reference).norm() <= 1e-5 * reference.norm()


@settings(max_examples=25)
@given(
    st.integers(0, 1000),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 6),
    st.sampled_from(["gelu", "gelu_tanh"]),
)
def test_the_fast_path_of_siglip_equals_plain_attention(seed, depth, prompted, length, activation):
    generator = torch.Generator().manual_seed(seed)
    shape = TowerShape(16, depth, heads=2, hidden=24, activation=activation, epsilon=1e-6)
    options = {"patch_bias": True, "norm_first": False, "pooling": "attention"}
    vision = random_tower(VisionTower(shape, patch_size=4, image_size=13, output=16, **options), generator)
    text = random_tower(PaddedText(shape, vocabulary=50, positions=12, output=16), generator)
    rows = [[5, 6, END], [7, END], [8, 9, 10, 11, END]]
    tokens = vision.embed(torch.randn(4, 3, 13, 13, generator=generator, dtype=torch.float64))
    visual = torch.randn(min(prompted, depth), 2, 16, generator=generator, dtype=torch.float64)
    context = torch.randn(length, 16, generator=generator, dtype=torch.float64)
    sentences = pad_rows(rows, 0, 12)

    def outcome(encode_image, encode_text):
        prompts = [visual.clone().requires_grad_(), context.clone().requires_grad_()]
        images, classes = F.normalize(encode_image(prompts[0]), dim=-1), F.normalize(encode_text(prompts[1]), dim=-1)
        loss = F.cross_entropy(20 * images @ classes.T, torch.tensor([0, 1, 2, 1]))
        loss.backward()
        return [loss.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad for p in prompts)]

    fast = outcome(lambda v: vision(tokens, tuple(v)), lambda c: text(sentences, c))
    plain = outcome(lambda v: plain_vision(vision, tokens, v), lambda c: plain_padded_text(text, rows, c, pad=0))
    for ours, reference in zip(fast, plain, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-10)


def random_tower(tower, generator):
    for parameter in tower.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return tower.requires_grad_(False).double()


def test_a_patch_is_pooled_like_an_image_of_one_patch():
    shape = TowerShape(16, 1, heads=2, hidden=24, activation="gelu_tanh")
    pool = random_tower(_PoolingHead(shape), torch.Generator().manual_seed(0))
    patches = torch.randn(2, 5, 16, dtype=torch.float64)
    expected = torch.stack([pool(patches[:, [i]]) for i in range(5)], dim=1)
    torch.testing.assert_close(pool.per_patch(patches), expected)


def test_the_position_of_visual_prompts_does_not_matter():
    # A prompt has no position, so its place before or after the image tokens must not matter.
    vision, _ = towers(0, 16, 3, torch.float64)
    tokens = vision.embed(torch.randn(2, 3, 12, 12, dtype=torch.float64))
    prompts = torch.randn(2, 4, 16, dtype=torch.float64)
    x = tokens
    for level, block in enumerate(vision.blocks):
        if level < 2:
            x = torch.cat([x[:, :1], prompts[level].expand(2, -1, -1), x[:, 1:]], dim=1)
        x = plain_block(block, x, causal=False)
        x = torch.cat([x[:, :1], x[:, 5:]], dim=1) if level < 2 else x
    expected = vision.project(vision.norm_last(x[:, 0]))
    torch.testing.assert_close(vision(tokens, tuple(prompts)), expected, rtol=1e-10, atol=1e-12)


def test_prompts_of_length_zero_change_no_bit():
    vision, text = towers(1, 32, 3, torch.float32)
    tokens = vision.embed(torch.randn(4, 3, 12, 12))
    assert torch.equal(vision(tokens), vision(tokens, tuple(torch.empty(2, 0, 32))))
    sentences = split_sentences([[START, 5, 6, END], [START, 7, END]])
    assert torch.equal(text(sentences), text(sentences, torch.empty(0, 32)))


def test_only_prompts_get_gradients():
    vision, text = towers(2, 16, 2, torch.float32)
    visual, context = torch.randn(1, 2, 16, requires_grad=True), torch.randn(3, 16, requires_grad=True)
    sentences = split_sentences([[START, 5, END], [START, 6, END]])
    (vision(vision.embed(torch.randn(2, 3, 12, 12)), tuple(visual)) @ text(sentences, context).T).sum().backward()
    assert visual.grad.abs().sum() > 0
    assert context.grad.abs().sum() > 0
    assert all(p.grad is None for tower in (vision, text) for p in tower.parameters())


@given(st.lists(st.lists(st.integers(2, 48), max_size=5), min_size=1, max_size=6))
def test_splitting_sentences_keeps_all_tokens(words):
    rows = [[START, *row, END] for row in words]
    sentences = split_sentences(rows)
    assert rows_of(sentences) == rows
    assert len(sentences.shared) >= 1


def test_the_shared_prefix_is_the_longest():
    sentences = split_sentences([[1, 5, 6, 7, 49], [1, 5, 6, 8, 9, 49]])
    assert sentences.shared.tolist() == [1, 5, 6]
    assert sentences.rest.tolist() == [[7, 49, 49], [8, 9, 49]]
    assert sentences.end.tolist() == [1, 2]


def test_class_order_changes_only_the_order():
    _, text = towers(4, 16, 2, torch.float64)
    rows = [[START, 5, END], [START, 6, 7, END], [START, 8, END]]
    context = torch.randn(2, 16, dtype=torch.float64)
    turned = text(split_sentences(rows[::-1]), context).flip(0)
    torch.testing.assert_close(text(split_sentences(rows), context), turned, rtol=1e-12, atol=1e-12)


def test_a_sentence_that_is_too_long_is_refused():
    _, text = towers(0, 8, 1, torch.float32)
    with pytest.raises(ModelError, match="has 23 tokens, at most 20 fit"):
        text(split_sentences([[START, 5, END]]), torch.zeros(20, 8))


def test_a_sentence_that_is_too_long_for_siglip_is_refused():
    text = random_tower(PaddedText(TowerShape(8, 1, 1, 8), vocabulary=50, positions=12, output=4), None)
    with pytest.raises(ModelError, match="has 13 tokens, at most 12 fit"):
        text(pad_rows([[5, 6, END]], 0, 12), torch.zeros(10, 8, dtype=torch.float64))


@pytest.mark.parametrize(("width", "patch", "side"), [(768, 32, 224), (768, 16, 224), (48, 8, 32), (1152, 14, 56)])
def test_the_embedding_of_an_image_does_not_depend_on_its_batch(width, patch, side):
    shape = TowerShape(width, 1, heads=1, hidden=8)
    tower = VisionTower(shape, patch_size=patch, image_size=side, output=8, patch_bias=width == 1152, norm_first=True)
    generator = torch.Generator().manual_seed(0)
    for parameter in (*tower.patches.parameters(), tower.class_token, tower.positions):
        torch.nn.init.normal_(parameter, std=0.02, generator=generator)
    images = torch.randn(VisionTower.embed_batch, 3, side, side, generator=generator)
    with torch.no_grad():
        alone = torch.cat([tower.embed(image) for image in images.split(1)])
        for company in (2, 3, VisionTower.embed_batch):
            assert torch.equal(torch.cat([tower.embed(group) for group in images.split(company)]), alone)

"""The model of cost in docs/scale.md against torch's own counter, and against what autograd really keeps."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedcopl.clip.blocks import TowerShape
from fedcopl.clip.formats.layouts import Parts
from fedcopl.clip.frozen_clip import Clip
from fedcopl.clip.preprocess import ImageTransform
from fedcopl.clip.text_towers import BertText, CausalText, PaddedText, ReadPadded, ReadUpToEnd
from fedcopl.clip.timing import try_product, try_towers
from fedcopl.clip.tokenizer import clip_tokenizer
from fedcopl.clip.tower_work import (
    embedding_work,
    image_work,
    prompt_work,
    text_work,
    token_bytes,
    weight_bytes,
    words_of,
)
from fedcopl.clip.vision_tower import VisionTower
from fedcopl.clip.weightless import NAMED, weightless_clip

WITHIN = 0.2  # what docs/scale.md promises; most are far nearer
VECTORS, CONTEXT, BATCH = 5, 16, 4
NAMES = ["dotted", "crosshatched", "a field of wheat", "polka dotted cloth"] * 5


def counted(work):
    """FLOP there and back, by torch."""
    with FlopCounterMode(display=False) as counter:
        made = work()
        there = counter.get_total_flops()
        if made.requires_grad:
            made.sum().backward()
    return there, counter.get_total_flops() - there


def prompts(clip):
    levels, width = clip.vision.usual_prompt_levels, clip.vision.prompt_width
    device = clip.text.positions.device
    visual = torch.zeros(levels, VECTORS, width, device=device, requires_grad=True)
    return levels, visual, torch.zeros(CONTEXT, clip.text.shape.width, device=device, requires_grad=True)


@pytest.mark.parametrize("name", NAMED)
def test_flop_are_those_that_torch_counts(name):
    clip = weightless_clip(name)
    pixels = torch.empty(BATCH, 3, clip.image_size, clip.image_size, device="meta")
    levels, visual, context = prompts(clip)
    assert counted(lambda: clip.vision.embed(pixels)) == (embedding_work(clip).forward * BATCH, 0)
    tokens = clip.vision.embed(pixels)
    assert tokens[0].nbytes == token_bytes(clip)

    there, back = counted(lambda: clip.vision(tokens, tuple(visual)))
    said = image_work(clip, VECTORS, levels) * BATCH + prompt_work(clip, VECTORS, levels)
    assert there == said.forward
    assert back == pytest.approx(said.backward, rel=0.01)

    there, back = counted(lambda: clip.text(clip.sentences([f"{name}." for name in NAMES]), context))
    said = text_work(clip, len(NAMES), words_of(clip, NAMES), CONTEXT)
    assert there == said.forward
    assert back == pytest.approx(said.backward, rel=0.01)


SMALL = {
    "few tokens": (TowerShape(64, 3, 4, 256), 8, 32),
    "many tokens": (TowerShape(96, 4, 4, 384), 8, 64),
    "shallow": (TowerShape(128, 2, 2, 512), 4, 32),
    "deep": (TowerShape(64, 6, 1, 128), 16, 64),
}


def small_clip(shape, patch, image, pooling="class token", text=CausalText, reading=None, **kind):
    """Random weights; the text tower has the same shape."""
    vision = VisionTower(
        shape, patch=patch, image=image, output=shape.width, patch_bias=False, norm_first=True, pooling=pooling
    )
    words = text(shape, vocabulary=49408, positions=40, output=shape.width, **kind)
    transform = ImageTransform(image, image)
    reading = reading or ReadUpToEnd(None)
    clip = Clip("small", Parts(vision, words, 100.0, clip_tokenizer(pad_id=0), transform, reading))
    generator = torch.Generator().manual_seed(0)
    for parameter in clip.parameters():
        torch.nn.init.normal_(parameter, std=0.02, generator=generator)
    return clip


def kept_bytes(work, clip):
    """What autograd holds on to until the way back, but for weights."""
    known = {parameter.untyped_storage().data_ptr() for parameter in clip.parameters()}
    held = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            held[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that no other gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        work()
    return sum(size for size, _ in held.values())


@pytest.mark.parametrize("sizes", SMALL.values(), ids=SMALL)
def test_what_is_kept_for_the_way_back_is_what_autograd_keeps(sizes):
    clip = small_clip(*sizes)
    levels, visual, context = prompts(clip)
    tokens = clip.vision.embed(torch.zeros(BATCH, 3, clip.image_size, clip.image_size))
    images = kept_bytes(lambda: clip.vision(tokens, tuple(visual)), clip)
    assert images == pytest.approx(image_work(clip, VECTORS, levels).kept * BATCH, rel=WITHIN)
    sentences = clip.sentences([f"{name}." for name in NAMES])
    texts = kept_bytes(lambda: clip.text(sentences, context), clip)
    assert texts == pytest.approx(text_work(clip, len(NAMES), words_of(clip, NAMES), CONTEXT).kept, rel=WITHIN)


OTHERS = {
    "SigLIP": {"pooling": "attention", "text": PaddedText, "reading": ReadPadded(0, 40)},
    "BERT": {"text": BertText, "reading": ReadPadded(0), "kinds": 2, "hidden_output": None},
}


@pytest.mark.parametrize("kind", OTHERS.values(), ids=OTHERS)
def test_other_towers_cost_what_torch_counts(kind):
    clip = small_clip(*SMALL["many tokens"], **kind)
    levels, visual, context = prompts(clip)
    tokens = clip.vision.embed(torch.zeros(BATCH, 3, 64, 64))
    attending = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)  # the counter knows no other here
    with attending:
        seen = counted(lambda: clip.vision(tokens, tuple(visual)))
        read = counted(lambda: clip.text(clip.sentences([f"{name}." for name in NAMES]), context))
    image = image_work(clip, VECTORS, levels) * BATCH + prompt_work(clip, VECTORS, levels)
    text = text_work(clip, len(NAMES), words_of(clip, NAMES), CONTEXT)
    for counts, said in ((seen, image), (read, text)):
        assert counts == pytest.approx((said.forward, said.backward), rel=WITHIN)


def test_weights_without_memory_have_their_size():
    assert weight_bytes(weightless_clip("ViT-B/32")) == 4 * 151_277_312  # as OpenAI's, without the temperature


def test_rates_are_of_this_machine():
    clip = small_clip(*SMALL["few tokens"])
    rates, bare = try_towers(clip), try_product(torch.device("cpu"))
    for rate in (rates.images, rates.texts, bare.images):
        assert 1e6 < rate < 1e15

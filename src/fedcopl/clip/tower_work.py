"""How much the frozen towers have to compute and to remember, from their sizes alone: `docs/scale.md`.

A product of (a, b) and (b, c) is 2 a b c FLOP. Frozen weights have no gradients, so the way back costs as much as
the way there in products with weights, and twice as much in attention. What is no product (norms, activations) is left
out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import nn

from .blocks import TowerShape
from .encoder import CHUNK_TOKENS
from .frozen_clip import Clip
from .resnet import Bottleneck, ResNetTower
from .text_towers import CausalText, PaddedText
from .vision_tower import VisionTower

FLOAT = 4  # bytes


@dataclass(frozen=True)
class TowerWork:
    """FLOP forward, FLOP of the way back, and the bytes that the way back needs kept meanwhile."""

    forward: float
    backward: float = 0.0
    kept: float = 0.0

    def __add__(self, other: "TowerWork") -> "TowerWork":
        return TowerWork(self.forward + other.forward, self.backward + other.backward, self.kept + other.kept)

    def __mul__(self, times: float) -> "TowerWork":
        return TowerWork(self.forward * times, self.backward * times, self.kept * times)

    @property
    def both_ways(self) -> float:
        return self.forward + self.backward


NO_WORK = TowerWork(0.0)


def embedding_work(clip: Clip) -> TowerWork:
    """An image's pixels made into tokens: once, as no prompt plays a part in it."""
    vision = clip.vision
    if isinstance(vision, VisionTower):
        patches = (vision.image // vision.patch) ** 2
        return TowerWork(2 * patches * 3 * vision.patch**2 * vision.shape.width)
    return TowerWork(_resnet_embedding(vision))


def images_in_a_lot(clip: Clip, images: int) -> int:
    """How many of them a tower looks at at a time, on one thread of a processor."""
    if not isinstance(clip.vision, VisionTower):
        return images
    return math.ceil(images / max(1, math.ceil(images * len(clip.vision.positions) / CHUNK_TOKENS)))


def token_bytes(clip: Clip) -> int:
    """Of an image's tokens, as they are kept between rounds."""
    if isinstance(clip.vision, VisionTower):
        return FLOAT * clip.vision.positions.numel()
    return FLOAT * clip.vision.attnpool.positional_embedding.numel()


def image_work(clip: Clip, vectors: int = 0, levels: int = 0) -> TowerWork:
    """One image's tokens through the vision tower, with so many prompt vectors at the first so many blocks."""
    vision = clip.vision
    if isinstance(vision, ResNetTower):
        return _pool_work(vision, vectors if levels else 0)
    shape, tokens = vision.shape, len(vision.positions)
    blocks = [_block_work(shape, tokens, tokens + (vectors if level < levels else 0)) for level in range(shape.depth)]
    if vision.pool is None:
        blocks[-1] = _read_work(shape, tokens, 1, tokens + (vectors if shape.depth - 1 < levels else 0))
        end = TowerWork(*2 * (2 * shape.width * vision.output,))
    else:
        end = _read_work(shape, tokens, 1, tokens)
    return _less_first_projection(sum(blocks, end), shape, tokens)


def prompt_work(clip: Clip, vectors: int, levels: int) -> TowerWork:
    """Keys and values of the visual prompts: once a step, not for each image."""
    flop = levels * vectors * 2 * 2 * clip.vision.prompt_width**2
    return TowerWork(flop, flop)


def text_work(clip: Clip, classes: int, words: int, context: int) -> TowerWork:
    """All classes' sentences of at most so many tokens after what they share: the start and the context."""
    text, shape = clip.text, clip.text.shape
    shared = 1 + context if isinstance(text, CausalText) else 0
    own = words if shared else text.reads if isinstance(text, PaddedText) else context + words
    whole = _block_work(shape, shared, shared) + _block_work(shape, own, shared + own) * classes
    last = _read_work(shape, own, 1, shared + own) * classes + _seen_work(shape, shared)
    end = TowerWork(*2 * (2 * shape.width * text.output * classes,))
    return _less_first_projection(whole * (shape.depth - 1) + last + end, shape, own * classes)


def words_of(clip: Clip, classes: Sequence[str]) -> int:
    """Tokens of the longest class name with its full stop and end."""
    sentences = clip.sentences([f"{name}." for name in classes])
    return int(sentences.rest.shape[1]) if len(sentences.shared) else int(sentences.end.max()) + 1


def weight_bytes(clip: Clip) -> int:
    return sum(parameter.nbytes for parameter in (*clip.parameters(), *clip.buffers()))


def _block_work(shape: TowerShape, tokens: int, keys: int) -> TowerWork:
    """All tokens through a block, each looking at so many keys."""
    width, hidden = shape.width, shape.hidden
    products = 2 * tokens * (4 * width**2 + 2 * width * hidden)
    looks = 4 * tokens * keys * width
    # Both norms' inputs, queries with the keys and values they were made with, what was attended, the hidden layer;
    # and keys and values once more beside those of others.
    kept = FLOAT * (tokens * (6 * width + hidden) + 2 * keys * width * (keys != tokens))
    return TowerWork(products + looks, products + 2 * looks, kept)


def _less_first_projection(work: TowerWork, shape: TowerShape, tokens: int) -> TowerWork:
    """What goes in has no gradient, images as little as words: nothing goes back through the first projection."""
    return TowerWork(work.forward, max(work.backward - 2 * tokens * 3 * shape.width**2, 0.0), work.kept)


def _read_work(shape: TowerShape, tokens: int, rows: int, keys: int) -> TowerWork:
    """A last block of which only some rows are read."""
    width, hidden = shape.width, shape.hidden
    products = 2 * rows * (2 * width**2 + 2 * width * hidden)
    looks = 4 * rows * keys * width
    seen = _seen_work(shape, tokens)
    kept = FLOAT * (rows * (4 * width + hidden) + 2 * keys * width * (keys != tokens))
    return TowerWork(products + looks, products + 2 * looks, kept) + seen


def _seen_work(shape: TowerShape, tokens: int) -> TowerWork:
    """Keys and values only."""
    products = 2 * tokens * 2 * shape.width**2
    return TowerWork(products, products, FLOAT * 3 * tokens * shape.width)


def _pool_work(tower: ResNetTower, vectors: int) -> TowerWork:
    """A ResNet has no block after its tokens but the pool; its keys and values need no way back."""
    cells, width = tower.attnpool.positional_embedding.shape
    looks = 4 * (cells + vectors) * width
    end = 2 * width * tower.output
    forward = 2 * (2 * cells + 1) * width**2 + looks + end
    return TowerWork(forward, 2 * looks + end, FLOAT * (4 * cells + 2 * vectors) * width)


def _resnet_embedding(tower: ResNetTower) -> float:
    cells = (tower.image // 2) ** 2
    flop = sum(_convolution(conv, cells) for conv in (tower.conv1, tower.conv2, tower.conv3))
    cells //= 4
    for stage in (tower.layer1, tower.layer2, tower.layer3, tower.layer4):
        for block in cast(Sequence[Bottleneck], stage):
            flop += _convolution(block.conv1, cells) + _convolution(block.conv2, cells)
            cells //= _shrinks(block)
            flop += _convolution(block.conv3, cells)
            flop += 0 if block.downsample is None else _convolution(cast(nn.Conv2d, block.downsample[0]), cells)
    return flop


def _convolution(layer: nn.Conv2d, cells: int) -> float:
    """Every cell that comes out is a product of the kernel with what it covers."""
    side, _ = layer.kernel_size
    return 2 * cells * layer.in_channels * layer.out_channels * side**2


def _shrinks(block: Bottleneck) -> int:
    """How many cells of the grid become one."""
    return cast(int, block.pool.kernel_size) ** 2 if isinstance(block.pool, nn.AvgPool2d) else 1

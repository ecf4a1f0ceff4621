"""CLIP's and SigLIP's vision transformers, written so that prompts cost as little as they can.

Every shortcut here is algebra, not approximation:

* a visual prompt is thrown away after its block, so it only needs keys and values, once per step and not per image;
* only the class token of the last block is read; a pooling head asks one question, the same of every image.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import ACTIVATIONS, Block, LotSizes, TowerShape, beside, in_double, keys_values, queries, take_row

Pooling = Literal["class token", "attention"]


class PoolingHead(nn.Module):
    """SigLIP's: one learnt query over all patches, then an MLP."""

    def __init__(self, shape: TowerShape):
        super().__init__()
        self.heads = shape.heads
        self.probe = nn.Parameter(torch.empty(1, 1, shape.width))
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width, shape.epsilon)
        self.up = nn.Linear(shape.width, shape.hidden)
        self.down = nn.Linear(shape.hidden, shape.width)
        self.activate = ACTIVATIONS[shape.activation]

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, width) -> (B, width)."""
        query = queries(self.query_key_value, self.probe, self.heads).expand(len(patches), -1, -1, -1)
        key, value = keys_values(self.query_key_value, patches, self.heads)
        attended = F.scaled_dot_product_attention(query, key, value)
        return self._finish(attended.transpose(1, 2).flatten(2))[:, 0]

    def each_alone(self, patches: Tensor) -> Tensor:
        """(B, N, width) -> (B, N, width): what the head would say if that patch were all there is.

        Attention over one token is the token's value, whatever the query.
        """
        width = patches.shape[-1]
        weight, bias = self.query_key_value.weight[2 * width :], self.query_key_value.bias[2 * width :]
        return self._finish(F.linear(patches, weight, bias))

    def _finish(self, attended: Tensor) -> Tensor:
        x = self.out(attended)
        finished: Tensor = x + self.down(self.activate(self.up(self.norm_mlp(x))))
        return finished


class VisionTower(nn.Module):
    """A vision transformer; a prompt for block l enters as `prompts[l]`, (P, width).

    It is read at a class token, projected by a matrix, or through a pooling head, whose output needs none.
    """

    embedded_alike = 8  # images at once: the patches of each are made by themselves, but weights are laid out only once

    def __init__(
        self,
        shape: TowerShape,
        *,
        patch: int,
        image: int,
        output: int,
        patch_bias: bool,
        norm_first: bool,
        pooling: Pooling = "class token",
    ):
        super().__init__()
        self.shape, self.patch, self.image, self.output = shape, patch, image, output
        self.prompt_width, self.prompt_levels = shape.width, shape.depth
        self.usual_prompt_levels = shape.depth - 1  # as the authors do: 11 of 12
        self.patches = nn.Conv2d(3, shape.width, patch, patch, bias=patch_bias)
        has_class = pooling == "class token"
        self.class_token = nn.Parameter(torch.empty(shape.width)) if has_class else None
        self.before_patches = int(has_class)  # tokens that are no patches
        self.positions = nn.Parameter(torch.empty((image // patch) ** 2 + self.before_patches, shape.width))
        self.norm_first = nn.LayerNorm(shape.width, shape.epsilon) if norm_first else nn.Identity()
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm_last = nn.LayerNorm(shape.width, shape.epsilon)
        self.pool = None if has_class else PoolingHead(shape)
        self.project = nn.Linear(shape.width, output, bias=False) if has_class else nn.Identity()

    def embed(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) -> tokens (B, N or N + 1, width). Prompts play no part: do this once per image."""
        tokens = self.patches(pixels).flatten(2).transpose(1, 2)
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(len(tokens), 1, -1), tokens], dim=1)
        normed: Tensor = self.norm_first(tokens + self.positions)
        return normed

    def forward(self, tokens: Tensor, prompts: Sequence[Tensor] = ()) -> Tensor:
        """Embedded tokens -> features (B, output), not normalised."""
        return self.of_each([tokens], [prompts])

    def of_each(self, tokens: Sequence[Tensor], prompts: Sequence[Sequence[Tensor]], fewest_alike: int = 1) -> Tensor:
        """The same for several lots of images, each under prompts of its own, all of one shape: one after the other.

        Of the last block only a row of each image is left: lots of fewer than `fewest_alike` are read by themselves.
        """
        sizes, levels = [len(own) for own in tokens], [torch.stack(level) for level in zip(*prompts, strict=True)]
        x = _joined(tokens)
        *before, last = cast(Sequence[Block], self.blocks)
        for level, block in enumerate(before):
            x = _attend(block, x, levels[level : level + 1], sizes)
        return self._read(last, x, levels[len(before) :], sizes, runs(sizes, fewest_alike))

    def _read(self, last: Block, tokens: Tensor, prompts: Sequence[Tensor], sizes: LotSizes, read: LotSizes) -> Tensor:
        """What comes of the last block, (B, output); `read` says how many images at a time."""
        if self.pool is not None:
            seen = self.norm_last(_attend(last, tokens, prompts, sizes))
            return _joined([self.pool(part) for part in _parts(seen, read)])
        seen = last.seen(tokens)
        key, value = keys_values(last.query_key_value, seen, last.heads)
        key, value = _with_prompts(last, key, value, prompts, sizes)
        parts = zip(*(_parts(x, read) for x in (tokens, seen, key, value)), strict=True)
        return _joined([self.project(self.norm_last(_attend_first(last, *part))) for part in parts])

    def blank_states(self) -> Iterator[Tensor]:
        """The patches of a blank image at the input of each block, (N, width), in double precision on the CPU.

        One block at a time, so that no second tower is ever in memory.
        """
        tokens = self._blank_tokens()
        for block in cast(Sequence[Block], self.blocks):
            yield tokens[0, self.before_patches :]
            precise = in_double(block)
            tokens = precise.finish(tokens, F.scaled_dot_product_attention(*precise.queries_keys_values(tokens)))

    def _blank_tokens(self) -> Tensor:
        """Where every pixel is 0, a patch is nothing but the bias."""
        bias = torch.zeros(self.shape.width) if self.patches.bias is None else self.patches.bias.cpu()
        tokens = bias.expand(len(self.positions) - self.before_patches, -1)
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.cpu()[None], tokens])
        normed: Tensor = in_double(self.norm_first)(tokens.double() + self.positions.cpu().double())[None]
        return normed

    def patch_features(self, tokens: Tensor) -> Tensor:
        """Every patch as if it were the image, (B, N, output): for methods that look at parts of an image.

        Projected like the class token, or through the pooling head by itself.
        """
        for block in cast(Sequence[Block], self.blocks):
            tokens = _attend(block, tokens, (), ())
        patches = self.norm_last(tokens[:, self.before_patches :])
        features: Tensor = self.project(patches) if self.pool is None else self.pool.each_alone(patches)
        return features


def runs(sizes: LotSizes, fewest: int) -> list[int]:
    """How many rows go together: neighbours that have at least so many each, and every other by itself.

    >>> runs([9, 4, 2, 1, 5], fewest=4)
    [13, 2, 1, 5]
    """
    together: list[int] = []
    for before, size in zip([0, *sizes], sizes, strict=False):
        if together and min(before, size) >= fewest:
            together[-1] += size
        else:
            together.append(size)
    return together


def _parts(x: Tensor, sizes: LotSizes) -> Sequence[Tensor]:
    """One part stays what it is: to split it would be one more copy on the way back."""
    return (x,) if len(sizes) == 1 else x.split([*sizes])


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts])


def _attend(block: Block, tokens: Tensor, prompts: Sequence[Tensor], sizes: LotSizes) -> Tensor:
    """All tokens through a block; `prompts` is this block's, (K, P, width), or there is none."""
    return block.finish(tokens, _attended(block, tokens, prompts, sizes))


def _attended(block: Block, tokens: Tensor, prompts: Sequence[Tensor], sizes: LotSizes) -> Tensor:
    """By itself, so that queries, keys and values are gone when the MLP needs the memory."""
    query, key, value = block.queries_keys_values(tokens)
    key, value = _with_prompts(block, key, value, prompts, sizes)
    return F.scaled_dot_product_attention(query, key, value)


def _attend_first(block: Block, tokens: Tensor, seen: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Only the first token of each image through a block, (B, width)."""
    first_row = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
    query = queries(block.query_key_value, take_row(seen, first_row), block.heads)
    return block.finish(tokens[:, :1], F.scaled_dot_product_attention(query, key, value))[:, 0]


def _with_prompts(
    block: Block, key: Tensor, value: Tensor, prompts: Sequence[Tensor], sizes: LotSizes
) -> tuple[Tensor, Tensor]:
    if not prompts or not prompts[0].shape[1]:
        return key, value
    prompt_key, prompt_value = block.keys_values(prompts[0])
    return beside(prompt_key, key, first=False, sizes=sizes), beside(prompt_value, value, first=False, sizes=sizes)

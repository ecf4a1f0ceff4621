"""Vision transformers of CLIP and SigLIP with visual prompts.

The fast path is exact:

* a visual prompt is dropped after its block, so it only needs keys and values, once per step and not per image;
* the last block computes only the class token; a pooling head has one query for all images.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import ACTIVATIONS, Block, TowerShape, concat_shared, in_double, keys_values, queries

_Pooling = Literal["class token", "attention"]


class PoolingHead(nn.Module):
    """SigLIP's attention pooling: one learnt query over all patches, then an MLP."""

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

    def per_patch(self, patches: Tensor) -> Tensor:
        """Pool each patch alone, (B, N, width): attention over one token is the token's value."""
        width = patches.shape[-1]
        weight, bias = self.query_key_value.weight[2 * width :], self.query_key_value.bias[2 * width :]
        return self._finish(F.linear(patches, weight, bias))

    def _finish(self, attended: Tensor) -> Tensor:
        x = self.out(attended)
        finished: Tensor = x + self.down(self.activate(self.up(self.norm_mlp(x))))
        return finished


class VisionTower(nn.Module):
    """A vision transformer; `prompts[l]`, (P, width), are the prompts of block l.

    The output is the projected class token, or that of a pooling head.
    """

    embed_batch = 8  # images at once; each is embedded independently of the others

    def __init__(
        self,
        shape: TowerShape,
        *,
        patch: int,
        image: int,
        output: int,
        patch_bias: bool,
        norm_first: bool,
        pooling: _Pooling = "class token",
    ):
        super().__init__()
        self.shape, self.patch, self.image, self.output = shape, patch, image, output
        self.prompt_width, self.prompt_levels = shape.width, shape.depth
        self.usual_prompt_levels = shape.depth - 1  # as in the authors' code: 11 of 12
        self.patches = nn.Conv2d(3, shape.width, patch, patch, bias=patch_bias)
        has_class = pooling == "class token"
        self.class_token = nn.Parameter(torch.empty(shape.width)) if has_class else None
        self.before_patches = int(has_class)  # number of tokens before the patches
        self.positions = nn.Parameter(torch.empty((image // patch) ** 2 + self.before_patches, shape.width))
        self.norm_first = nn.LayerNorm(shape.width, shape.epsilon) if norm_first else nn.Identity()
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm_last = nn.LayerNorm(shape.width, shape.epsilon)
        self.pool = None if has_class else PoolingHead(shape)
        self.project = nn.Linear(shape.width, output, bias=False) if has_class else nn.Identity()

    def embed(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) -> tokens (B, N or N + 1, width), independent of prompts."""
        tokens = self.patches(pixels).flatten(2).transpose(1, 2)
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(len(tokens), 1, -1), tokens], dim=1)
        normed: Tensor = self.norm_first(tokens + self.positions)
        return normed

    def forward(self, tokens: Tensor, prompts: Sequence[Tensor] = ()) -> Tensor:
        """Compute features (B, output), not normalised, from embedded tokens."""
        *before, last = cast(Sequence[Block], self.blocks)
        x = tokens
        for block, prompt in zip_longest(before, prompts[: len(before)]):
            x = block.finish(x, _attention(block, x, prompt))
        prompt = prompts[-1] if len(prompts) == len(self.blocks) else None
        if self.pool is not None:
            pooled: Tensor = self.pool(self.norm_last(last.finish(x, _attention(last, x, prompt))))
            return pooled
        features: Tensor = self.project(self.norm_last(_class_token(last, x, prompt)))
        return features

    def blank_states(self) -> Iterator[Tensor]:
        """Yield a blank image's patches at the input of each block, (N, width), in double precision on the CPU.

        Blocks are copied one at a time to save memory.
        """
        tokens = self._blank_tokens()
        for block in cast(Sequence[Block], self.blocks):
            yield tokens[0, self.before_patches :]
            precise = in_double(block)
            tokens = precise.finish(tokens, F.scaled_dot_product_attention(*precise.queries_keys_values(tokens)))

    def _blank_tokens(self) -> Tensor:
        """Embed an image of zeros, whose patches are the bias."""
        bias = torch.zeros(self.shape.width) if self.patches.bias is None else self.patches.bias.cpu()
        tokens = bias.expand(len(self.positions) - self.before_patches, -1)
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.cpu()[None], tokens])
        normed: Tensor = in_double(self.norm_first)(tokens.double() + self.positions.cpu().double())[None]
        return normed

    def patch_features(self, tokens: Tensor) -> Tensor:
        """Return features of every patch, (B, N, output), projected like the class token or pooled alone."""
        for block in cast(Sequence[Block], self.blocks):
            tokens = block.finish(tokens, _attention(block, tokens, None))
        patches = self.norm_last(tokens[:, self.before_patches :])
        features: Tensor = self.project(patches) if self.pool is None else self.pool.per_patch(patches)
        return features


def _attention(block: Block, tokens: Tensor, prompt: Tensor | None) -> Tensor:
    """Return the attention output of all tokens; frees queries, keys and values before the MLP."""
    query, key, value = block.queries_keys_values(tokens)
    return F.scaled_dot_product_attention(query, *_with_prompt(block, key, value, prompt))


def _class_token(block: Block, tokens: Tensor, prompt: Tensor | None) -> Tensor:
    """Return the block's output at the first token of each image, (B, width)."""
    first_row = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
    query, key, value = block.query_keys_values_of_row(tokens, first_row)
    attended = F.scaled_dot_product_attention(query, *_with_prompt(block, key, value, prompt))
    return block.finish(tokens[:, :1], attended)[:, 0]


def _with_prompt(block: Block, key: Tensor, value: Tensor, prompt: Tensor | None) -> tuple[Tensor, Tensor]:
    if prompt is None or not len(prompt):
        return key, value
    prompt_key, prompt_value = block.keys_values(prompt[None])
    return concat_shared(prompt_key, key, first=False), concat_shared(prompt_value, value, first=False)

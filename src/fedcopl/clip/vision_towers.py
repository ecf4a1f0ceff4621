"""Image encoders with visual prompts: the vision transformers of CLIP and SigLIP, and CLIP's ResNet.

The fast path of the transformers is exact:

* a visual prompt is dropped after its block, so it only needs keys and values, once per step and not per image;
* the last block computes only the class token; a pooling head has one query for all images.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import zip_longest
from typing import Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import Block, TowerShape, concat_shared

_Pooling = Literal["class token", "attention"]
_Part = TypeVar("_Part", bound=nn.Module)


class _PoolingHead(Block):
    """SigLIP's attention pooling: one learnt query over all patches without a norm, then an MLP."""

    def __init__(self, shape: TowerShape):
        super().__init__(shape)
        self.norm_attention = nn.Identity()
        self.probe = nn.Parameter(torch.empty(1, 1, shape.width))

    def forward(self, patches: Tensor) -> Tensor:
        """Pool the patches of each image, (B, N, width) -> (B, width)."""
        query = self._queries(self.probe).expand(len(patches), -1, -1, -1)
        attended = F.scaled_dot_product_attention(query, *self.keys_values(patches))
        return self._project(attended.transpose(1, 2).flatten(2))[:, 0]

    def per_patch(self, patches: Tensor) -> Tensor:
        """Pool each patch alone, (B, N, width): attention over one token is the token's value."""
        width = patches.shape[-1]
        weight, bias = self.query_key_value.weight[2 * width :], self.query_key_value.bias[2 * width :]
        return self._project(F.linear(patches, weight, bias))

    def _project(self, attended: Tensor) -> Tensor:
        x = self.out(attended)
        projected: Tensor = x + self.mlp(self.norm_mlp(x))
        return projected


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
        self.pool = None if has_class else _PoolingHead(shape)
        self.project = nn.Linear(shape.width, output, bias=False) if has_class else nn.Identity()

    def embed(self, pixels: Tensor) -> Tensor:
        """Embed pixels, (B, 3, H, W), as tokens, (B, N or N + 1, width), independent of prompts."""
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
            precise = _in_double(block)
            tokens = precise.finish(tokens, F.scaled_dot_product_attention(*precise.queries_keys_values(tokens)))

    def _blank_tokens(self) -> Tensor:
        """Embed an image of zeros, whose patches are the bias."""
        bias = torch.zeros(self.shape.width) if self.patches.bias is None else self.patches.bias.cpu()
        tokens = bias.expand(len(self.positions) - self.before_patches, -1)
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.cpu()[None], tokens])
        normed: Tensor = _in_double(self.norm_first)(tokens.double() + self.positions.cpu().double())[None]
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


def _in_double(module: _Part) -> _Part:
    """Copy a module to the CPU in double precision, where rounding is far below that of float32."""
    return deepcopy(module).cpu().double()


_EXPANSION = 4  # a bottleneck ends with this many times its inner width
SHRINK = 32  # pixels of the input per cell of the last grid, in each direction
_HEAD_WIDTH = 64


class _FrozenNorm(nn.Module):
    """Batch normalisation by the stored statistics."""

    def __init__(self, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.register_buffer("running_mean", torch.empty(width))
        self.register_buffer("running_var", torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, training=False)


class _Bottleneck(nn.Module):
    """A bottleneck block with stride 1; a block that halves the grid averages 2 x 2 cells instead."""

    def __init__(self, width_in: int, width: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width_in, width, 1, bias=False), _FrozenNorm(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), _FrozenNorm(width)
        self.conv3, self.bn3 = nn.Conv2d(width, width * _EXPANSION, 1, bias=False), _FrozenNorm(width * _EXPANSION)
        self.pool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.downsample = None
        if stride > 1 or width_in != width * _EXPANSION:
            shortcut = nn.Conv2d(width_in, width * _EXPANSION, 1, bias=False)
            self.downsample = nn.Sequential(shortcut, _FrozenNorm(width * _EXPANSION))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)))
        inner = F.relu(self.bn2(self.conv2(inner)))
        inner = self.bn3(self.conv3(self.pool(inner)))
        return F.relu(inner + (x if self.downsample is None else self.downsample(self.pool(x))))


class _AttentionPool(nn.Module):
    """Attention of the grid's mean over all cells, itself and the prompt."""

    def __init__(self, width: int, cells: int, output: int):
        super().__init__()
        self.heads = width // _HEAD_WIDTH
        self.positional_embedding = nn.Parameter(torch.empty(cells + 1, width))
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.c_proj = nn.Linear(width, output)

    def embed(self, grid: Tensor) -> Tensor:
        """Turn the grid into tokens with positions, the mean first: (B, width, h, w) -> (B, 1 + h w, width)."""
        cells = grid.flatten(2).transpose(1, 2)
        return torch.cat([cells.mean(1, keepdim=True), cells], dim=1) + self.positional_embedding

    def forward(self, tokens: Tensor, prompt: Tensor | None) -> Tensor:
        query, key, value = self.q_proj(tokens[:, :1]), self.k_proj(tokens), self.v_proj(tokens)
        query, key, value = (self._split_heads(x) for x in (query, key, value))
        if prompt is not None and len(prompt):
            key = concat_shared(self._split_heads(self.k_proj(prompt[None])), key, first=False)
            value = concat_shared(self._split_heads(self.v_proj(prompt[None])), value, first=False)
        attended = F.scaled_dot_product_attention(query, key, value)
        features: Tensor = self.c_proj(attended.transpose(1, 2).flatten(1))
        return features

    def all_positions(self, tokens: Tensor) -> Tensor:
        """Return the output for every position as the query, (B, 1 + cells, output)."""
        query, key, value = (self._split_heads(project(tokens)) for project in (self.q_proj, self.k_proj, self.v_proj))
        attended = F.scaled_dot_product_attention(query, key, value)
        features: Tensor = self.c_proj(attended.transpose(1, 2).flatten(2))
        return features

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)


class ResNetTower(nn.Module):
    """CLIP's ResNet with the interface of `VisionTower`: a stem of three convolutions, pooling instead of strides.

    Only `prompts[0]`, (P, width), is used: further keys and values of the attention pooling at its end. The modules
    have the names of OpenAI's checkpoints.
    """

    embed_batch = 1  # the sums of a convolution may depend on the batch size

    def __init__(self, *, stem: int, depths: Sequence[int], image: int, output: int):
        super().__init__()
        width = stem * SHRINK
        self.image, self.output = image, output
        self.prompt_width = width
        self.prompt_levels = self.usual_prompt_levels = 1
        self.conv1, self.bn1 = nn.Conv2d(3, stem // 2, 3, 2, padding=1, bias=False), _FrozenNorm(stem // 2)
        self.conv2, self.bn2 = nn.Conv2d(stem // 2, stem // 2, 3, padding=1, bias=False), _FrozenNorm(stem // 2)
        self.conv3, self.bn3 = nn.Conv2d(stem // 2, stem, 3, padding=1, bias=False), _FrozenNorm(stem)
        self.layer1 = _stage(stem, stem, depths[0], stride=1)
        self.layer2 = _stage(stem * 4, stem * 2, depths[1], stride=2)
        self.layer3 = _stage(stem * 8, stem * 4, depths[2], stride=2)
        self.layer4 = _stage(stem * 16, stem * 8, depths[3], stride=2)
        self.attnpool = _AttentionPool(width, (image // SHRINK) ** 2, output)

    def embed(self, pixels: Tensor) -> Tensor:
        """Embed pixels, (B, 3, H, W), as tokens, (B, 1 + cells, width), independent of prompts."""
        x = F.relu(self.bn1(self.conv1(pixels)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.avg_pool2d(F.relu(self.bn3(self.conv3(x))), 2)
        return self.attnpool.embed(self.layer4(self.layer3(self.layer2(self.layer1(x)))))

    def forward(self, tokens: Tensor, prompts: Sequence[Tensor] = ()) -> Tensor:
        """Compute features, (B, output), not normalised, from embedded tokens."""
        features: Tensor = self.attnpool(tokens, prompts[0] if len(prompts) else None)
        return features

    def blank_states(self) -> Iterator[Tensor]:
        """Yield the cells of a blank image's last grid, (cells, width), in double precision on the CPU."""
        blank = torch.zeros(1, 3, self.image, self.image, dtype=torch.float64)
        yield _in_double(self).embed(blank)[0, 1:]

    def patch_features(self, tokens: Tensor) -> Tensor:
        """Return the pooled features of every cell, (B, cells, output)."""
        return self.attnpool.all_positions(tokens)[:, 1:]


def _stage(width_in: int, width: int, depth: int, *, stride: int) -> nn.Sequential:
    first = _Bottleneck(width_in, width, stride)
    return nn.Sequential(first, *(_Bottleneck(width * _EXPANSION, width, 1) for _ in range(depth - 1)))

"""Image encoders with visual prompts: the vision transformers of CLIP and SigLIP, and CLIP's ResNet.

Two optimisations of the transformers do not change the result:

* a visual prompt is dropped after its block, so only its keys and values are computed, once for all images;
* the last block computes only the class token; a pooling head computes one query for all images.
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
_Module = TypeVar("_Module", bound=nn.Module)


class _PoolingHead(Block):
    """SigLIP's attention pooling: one learnt query attends to all patches, without a layer norm; then an MLP."""

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
        """Pool each patch separately, (B, N, width): attention over a single token is the token's value."""
        width = patches.shape[-1]
        weight, bias = self.query_key_value.weight[2 * width :], self.query_key_value.bias[2 * width :]
        return self._project(F.linear(patches, weight, bias))

    def _project(self, attended: Tensor) -> Tensor:
        x = self.out(attended)
        projected: Tensor = x + self.mlp(self.norm_mlp(x))
        return projected


class VisionTower(nn.Module):
    """A vision transformer whose output is the projected class token or that of a pooling head.

    `prompts[l]`, (P, width), are the visual prompts of block l.
    """

    embed_batch = 8  # in a larger batch, the last bits of an image's tokens may depend on the other images

    def __init__(
        self,
        shape: TowerShape,
        *,
        patch_size: int,
        image_size: int,
        output: int,
        patch_bias: bool,
        norm_first: bool,
        pooling: _Pooling = "class token",
    ):
        super().__init__()
        self.shape, self.patch_size, self.image_size, self.output = shape, patch_size, image_size, output
        self.prompt_width, self.prompt_levels = shape.width, shape.depth
        self.usual_prompt_levels = shape.depth - 1  # 11 of 12 blocks, as in the authors' code
        self.patches = nn.Conv2d(3, shape.width, patch_size, patch_size, bias=patch_bias)
        has_class = pooling == "class token"
        self.class_token = nn.Parameter(torch.empty(shape.width)) if has_class else None
        self.before_patches = int(has_class)  # number of tokens before the patches
        self.positions = nn.Parameter(torch.empty((image_size // patch_size) ** 2 + self.before_patches, shape.width))
        self.norm_first = nn.LayerNorm(shape.width, shape.epsilon) if norm_first else nn.Identity()
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm_last = nn.LayerNorm(shape.width, shape.epsilon)
        self.pool = None if has_class else _PoolingHead(shape)
        self.project = nn.Linear(shape.width, output, bias=False) if has_class else nn.Identity()

    def embed(self, pixels: Tensor) -> Tensor:
        """Embed the patches of images, (B, 3, H, W), as tokens, (B, N or N + 1, width)."""
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
        features: Tensor = self.project(self.norm_last(_class_token_output(last, x, prompt)))
        return features

    def blank_states(self) -> Iterator[Tensor]:
        """Yield the patches of an image of zeros at the input of each block, (N, width), in float64 on the CPU."""
        tokens = self._blank_tokens()
        for block in cast(Sequence[Block], self.blocks):
            yield tokens[0, self.before_patches :]
            double = _to_double(block)  # one block at a time saves memory
            tokens = double.finish(tokens, F.scaled_dot_product_attention(*double.queries_keys_values(tokens)))

    def _blank_tokens(self) -> Tensor:
        """Embed an image of zeros, whose patches are the bias of the embedding."""
        bias = torch.zeros(self.shape.width) if self.patches.bias is None else self.patches.bias.cpu()
        tokens = bias.expand(len(self.positions) - self.before_patches, -1)
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.cpu()[None], tokens])
        normed: Tensor = _to_double(self.norm_first)(tokens.double() + self.positions.cpu().double())[None]
        return normed

    def patch_features(self, tokens: Tensor) -> Tensor:
        """Return the features of all patches, (B, N, output), each projected or pooled like the image's feature."""
        for block in cast(Sequence[Block], self.blocks):
            tokens = block.finish(tokens, _attention(block, tokens, None))
        patches = self.norm_last(tokens[:, self.before_patches :])
        features: Tensor = self.project(patches) if self.pool is None else self.pool.per_patch(patches)
        return features


def _attention(block: Block, tokens: Tensor, prompt: Tensor | None) -> Tensor:
    """Return the attention output of all tokens; queries, keys and values are freed on return."""
    query, key, value = block.queries_keys_values(tokens)
    return F.scaled_dot_product_attention(query, *_with_prompt(block, key, value, prompt))


def _class_token_output(block: Block, tokens: Tensor, prompt: Tensor | None) -> Tensor:
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


def _to_double(module: _Module) -> _Module:
    """Copy a module to the CPU in float64."""
    return deepcopy(module).cpu().double()


_EXPANSION = 4  # output width of a bottleneck relative to its inner width
SHRINK = 32  # side of the input image relative to that of the last feature map
_HEAD_WIDTH = 64


class _FrozenNorm(nn.Module):
    """Batch normalisation with the stored mean and variance."""

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
    """CLIP's bottleneck block: its convolutions have stride 1, and average pooling halves the feature map."""

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
    """CLIP's attention pooling: the mean of the feature map attends to itself, all cells and the prompt."""

    def __init__(self, width: int, cells: int, output: int):
        super().__init__()
        self.heads = width // _HEAD_WIDTH
        self.positional_embedding = nn.Parameter(torch.empty(cells + 1, width))
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.c_proj = nn.Linear(width, output)

    def embed(self, feature_map: Tensor) -> Tensor:
        """Embed the mean and the cells of a feature map as tokens: (B, width, h, w) -> (B, 1 + h w, width)."""
        cells = feature_map.flatten(2).transpose(1, 2)
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

    def pool_by_each_token(self, tokens: Tensor) -> Tensor:
        """Pool the tokens once with each token as the query, without a prompt: (B, 1 + cells, output)."""
        query, key, value = (self._split_heads(project(tokens)) for project in (self.q_proj, self.k_proj, self.v_proj))
        attended = F.scaled_dot_product_attention(query, key, value)
        features: Tensor = self.c_proj(attended.transpose(1, 2).flatten(2))
        return features

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)


class ResNetTower(nn.Module):
    """CLIP's ResNet with the interface of `VisionTower`; its modules have the names of OpenAI's checkpoints.

    There is one visual prompt, `prompts[0]`, (P, width): further keys and values of the attention pooling.
    """

    embed_batch = 1  # the rounding of a convolution may depend on the batch size

    def __init__(self, *, stem: int, depths: Sequence[int], image_size: int, output: int):
        super().__init__()
        width = stem * SHRINK
        self.image_size, self.output = image_size, output
        self.prompt_width = width
        self.prompt_levels = self.usual_prompt_levels = 1
        self.conv1, self.bn1 = nn.Conv2d(3, stem // 2, 3, 2, padding=1, bias=False), _FrozenNorm(stem // 2)
        self.conv2, self.bn2 = nn.Conv2d(stem // 2, stem // 2, 3, padding=1, bias=False), _FrozenNorm(stem // 2)
        self.conv3, self.bn3 = nn.Conv2d(stem // 2, stem, 3, padding=1, bias=False), _FrozenNorm(stem)
        self.layer1 = _stage(stem, stem, depths[0], stride=1)
        self.layer2 = _stage(stem * 4, stem * 2, depths[1], stride=2)
        self.layer3 = _stage(stem * 8, stem * 4, depths[2], stride=2)
        self.layer4 = _stage(stem * 16, stem * 8, depths[3], stride=2)
        self.attnpool = _AttentionPool(width, (image_size // SHRINK) ** 2, output)

    def embed(self, pixels: Tensor) -> Tensor:
        """Compute the tokens of the attention pooling, (B, 1 + cells, width), from images, (B, 3, H, W)."""
        x = F.relu(self.bn1(self.conv1(pixels)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.avg_pool2d(F.relu(self.bn3(self.conv3(x))), 2)
        return self.attnpool.embed(self.layer4(self.layer3(self.layer2(self.layer1(x)))))

    def forward(self, tokens: Tensor, prompts: Sequence[Tensor] = ()) -> Tensor:
        """Compute features, (B, output), not normalised, from embedded tokens."""
        features: Tensor = self.attnpool(tokens, prompts[0] if len(prompts) else None)
        return features

    def blank_states(self) -> Iterator[Tensor]:
        """Yield the cells of the last feature map of an image of zeros, (cells, width), in float64 on the CPU."""
        blank = torch.zeros(1, 3, self.image_size, self.image_size, dtype=torch.float64)
        yield _to_double(self).embed(blank)[0, 1:]

    def patch_features(self, tokens: Tensor) -> Tensor:
        """Return the features of all cells, (B, cells, output), each pooled with its cell as the query."""
        return self.attnpool.pool_by_each_token(tokens)[:, 1:]


def _stage(width_in: int, width: int, depth: int, *, stride: int) -> nn.Sequential:
    first = _Bottleneck(width_in, width, stride)
    return nn.Sequential(first, *(_Bottleneck(width * _EXPANSION, width, 1) for _ in range(depth - 1)))

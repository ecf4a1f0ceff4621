"""CLIP's ResNet: three convolutions as a stem, pooling instead of strides, attention as the last pooling.

Visual prompts enter at the attention pooling, as further keys and values. The modules have the names of OpenAI's
checkpoints.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import concat_shared, in_double

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
    """_Bottleneck block with stride 1; a block that halves the grid averages 2 x 2 cells instead."""

    def __init__(self, width_in: int, width: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width_in, width, 1, bias=False), _FrozenNorm(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), _FrozenNorm(width)
        self.conv3, self.bn3 = (
            nn.Conv2d(width, width * _EXPANSION, 1, bias=False),
            _FrozenNorm(width * _EXPANSION),
        )
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
        """(B, width, h, w) -> (B, 1 + h w, width): the mean first, with positions added."""
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
    """CLIP's ResNet with the interface of `VisionTower`; only `prompts[0]`, (P, width), is used."""

    embed_batch = 1  # the sums of a convolution may depend on the batch size

    def __init__(self, *, stem: int, depths: Sequence[int], image: int, output: int):
        super().__init__()
        width = stem * SHRINK
        self.image, self.output = image, output
        self.prompt_width = width
        self.prompt_levels = self.usual_prompt_levels = 1
        self.conv1, self.bn1 = (
            nn.Conv2d(3, stem // 2, 3, stride=2, padding=1, bias=False),
            _FrozenNorm(stem // 2),
        )
        self.conv2, self.bn2 = (
            nn.Conv2d(stem // 2, stem // 2, 3, padding=1, bias=False),
            _FrozenNorm(stem // 2),
        )
        self.conv3, self.bn3 = nn.Conv2d(stem // 2, stem, 3, padding=1, bias=False), _FrozenNorm(stem)
        self.layer1 = _stage(stem, stem, depths[0], stride=1)
        self.layer2 = _stage(stem * 4, stem * 2, depths[1], stride=2)
        self.layer3 = _stage(stem * 8, stem * 4, depths[2], stride=2)
        self.layer4 = _stage(stem * 16, stem * 8, depths[3], stride=2)
        self.attnpool = _AttentionPool(width, (image // SHRINK) ** 2, output)

    def embed(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) -> tokens (B, 1 + cells, width), independent of prompts."""
        x = F.relu(self.bn1(self.conv1(pixels)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.avg_pool2d(F.relu(self.bn3(self.conv3(x))), 2)
        return self.attnpool.embed(self.layer4(self.layer3(self.layer2(self.layer1(x)))))

    def forward(self, tokens: Tensor, prompts: Sequence[Tensor] = ()) -> Tensor:
        """Embedded tokens -> features (B, output), not normalised."""
        features: Tensor = self.attnpool(tokens, prompts[0] if len(prompts) else None)
        return features

    def blank_states(self) -> Iterator[Tensor]:
        """Yield the cells of a blank image's last grid, (cells, width), in double precision on the CPU."""
        blank = torch.zeros(1, 3, self.image, self.image, dtype=torch.float64)
        yield in_double(self).embed(blank)[0, 1:]

    def patch_features(self, tokens: Tensor) -> Tensor:
        """Return the pooled features of every cell, (B, cells, output)."""
        return self.attnpool.all_positions(tokens)[:, 1:]


def _stage(width_in: int, width: int, depth: int, *, stride: int) -> nn.Sequential:
    first = _Bottleneck(width_in, width, stride)
    return nn.Sequential(first, *(_Bottleneck(width * _EXPANSION, width, 1) for _ in range(depth - 1)))

"""CLIP with prompts the plain way, as public prompt-learning code does it: the reference for the fast path.

Prompts are appended to the sequence and cut off after the block, every token goes through every block, and every
sentence runs at the tower's full length.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedcopl.clip.blocks import Block
from fedcopl.clip.text_towers import CausalText, PaddedText, Sentences
from fedcopl.clip.vision_towers import VisionTower, _PoolingHead

Attend = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


def attention_by_hand(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """softmax(Q K^T / sqrt(d)) V: nothing shared with the code under test."""
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores.softmax(-1) @ value


def attention_by_torch(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """Torch's fused attention: for measuring time fairly."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=causal)


def plain_block(block: Block, x: Tensor, causal: bool, attend: Attend = attention_by_hand) -> Tensor:
    """A pre-norm transformer block over all tokens."""
    batch, length, width = x.shape
    normed = F.layer_norm(x, (width,), block.norm_attention.weight, block.norm_attention.bias, block.norm_attention.eps)
    projected = F.linear(normed, block.query_key_value.weight, block.query_key_value.bias)
    query, key, value = (
        part.reshape(batch, length, block.heads, width // block.heads).permute(0, 2, 1, 3)
        for part in projected.split(width, dim=-1)
    )
    attended = attend(query, key, value, causal).permute(0, 2, 1, 3).reshape(batch, length, width)
    x = x + F.linear(attended, block.out.weight, block.out.bias)
    hidden = block.activate(F.linear(block.norm_mlp(x), block.up.weight, block.up.bias))
    return x + F.linear(hidden, block.down.weight, block.down.bias)


def plain_vision(tower: VisionTower, tokens: Tensor, prompts: Tensor, attend: Attend = attention_by_hand) -> Tensor:
    count = tokens.shape[1]
    for level, block in enumerate(tower.blocks):
        if level < len(prompts):
            tokens = torch.cat([tokens, prompts[level].expand(len(tokens), -1, -1)], dim=1)
        tokens = plain_block(block, tokens, causal=False, attend=attend)[:, :count]
    if tower.pool is not None:
        return plain_pool(tower.pool, tower.norm_last(tokens))
    return tower.project(tower.norm_last(tokens[:, 0]))


def plain_pool(pool: _PoolingHead, tokens: Tensor) -> Tensor:
    """Attention by torch's function, with queries and keys from different tokens, as in `transformers`."""
    attention = nn.MultiheadAttention(tokens.shape[-1], pool.heads, batch_first=True, dtype=tokens.dtype)
    attention.in_proj_weight, attention.in_proj_bias = pool.query_key_value.weight, pool.query_key_value.bias
    attention.out_proj.weight, attention.out_proj.bias = pool.out.weight, pool.out.bias
    (x,) = attention(pool.probe.expand(len(tokens), -1, -1), tokens, tokens)[0].unbind(1)
    return x + F.linear(pool.activate(pool.up(pool.norm_mlp(x))), pool.down.weight, pool.down.bias)


def plain_text(tower: CausalText, rows: list[list[int]], context: Tensor, attend: Attend = attention_by_hand) -> Tensor:
    """Encode sentences padded to full length; the end token does not attend to later tokens."""
    length = len(tower.positions) - len(context)
    padded = torch.tensor([row + [row[-1]] * (length - len(row)) for row in rows])
    words = tower.embedding(padded)
    x = torch.cat([words[:, :1], context.expand(len(rows), -1, -1), words[:, 1:]], dim=1) + tower.positions
    for block in tower.blocks:
        x = plain_block(block, x, causal=True, attend=attend)
    end = torch.tensor([len(row) - 1 + len(context) for row in rows])
    return tower.project(tower.norm_last(x[torch.arange(len(rows)), end]))


def plain_padded_text(tower: PaddedText, rows: list[list[int]], context: Tensor, pad: int) -> Tensor:
    """SigLIP's text tower: bidirectional attention over context, words and padding; the feature is the last token's."""
    length = len(tower.positions) - len(context)
    words = tower.embedding(torch.tensor([row + [pad] * (length - len(row)) for row in rows]))
    x = torch.cat([context.expand(len(rows), -1, -1), words], dim=1) + tower.positions
    for block in tower.blocks:
        x = plain_block(block, x, causal=False)
    return tower.project(tower.norm_last(x[:, -1]))


def rows_of(sentences: Sentences) -> list[list[int]]:
    return [
        [*sentences.shared.tolist(), *rest[: end + 1]]
        for rest, end in zip(sentences.rest.tolist(), sentences.end.tolist(), strict=True)
    ]

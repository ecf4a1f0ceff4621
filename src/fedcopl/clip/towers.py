"""CLIP's two transformers, written so that prompts cost as little as they can.

Every shortcut here is algebra, not approximation:

* a visual prompt is thrown away after its block, so it only needs keys and values, once per step and not per image;
* only the class token of the last vision block is read, and only the end-of-text token of the last text block;
* text attention is causal, so the tokens that all classes share (start, context, common words) are run once.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ModelError

Activation = Literal["quick_gelu", "gelu"]
Part = TypeVar("Part", bound=nn.Module)


@dataclass(frozen=True)
class TowerShape:
    """The sizes of one transformer, as its checkpoint gives them."""

    width: int
    depth: int
    heads: int
    hidden: int
    activation: Activation = "quick_gelu"
    epsilon: float = 1e-5


QUICK = 1.702


def quick_gelu(x: Tensor) -> Tensor:
    """OpenAI's approximation of GELU: x sigmoid(1.702 x) = silu(1.702 x) / 1.702, which torch has as one pass."""
    if torch.is_grad_enabled() and x.requires_grad:
        activated: Tensor = _QuickGelu.apply(x)  # type: ignore[no-untyped-call]
        return activated
    return F.silu(x * QUICK) / QUICK


class _QuickGelu(torch.autograd.Function):
    """The factors cancel in the derivative, so backward is one pass over one saved tensor instead of four over two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scaled = x * QUICK
        ctx.save_for_backward(scaled)
        return F.silu(scaled).div_(QUICK)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (scaled,) = ctx.saved_tensors
        passed: Tensor = torch.ops.aten.silu_backward(gradient, scaled)
        return passed


class Block(nn.Module):
    """One pre-norm transformer block whose attention may look at extra keys and values."""

    def __init__(self, shape: TowerShape):
        super().__init__()
        self.heads = shape.heads
        self.norm_attention = nn.LayerNorm(shape.width, shape.epsilon)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width, shape.epsilon)
        self.up = nn.Linear(shape.width, shape.hidden)
        self.down = nn.Linear(shape.hidden, shape.width)
        self.activate = quick_gelu if shape.activation == "quick_gelu" else F.gelu

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, heads, N, D / heads)."""
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.query_key_value(self.norm_attention(x)).chunk(3, dim=-1)
        return self.split_heads(query), self.split_heads(key), self.split_heads(value)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Only what others may look at: for tokens whose own output nobody reads."""
        return self._keys_values_of_normed(self.norm_attention(x))

    def _keys_values_of_normed(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        width = normed.shape[-1]
        projected = F.linear(normed, self.query_key_value.weight[width:], self.query_key_value.bias[width:])
        key, value = projected.chunk(2, dim=-1)
        return self.split_heads(key), self.split_heads(value)

    def query_keys_values_of_row(self, x: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The query of one row of each sequence, `row` (B,), and the keys and values of all rows."""
        width = x.shape[-1]
        normed = self.norm_attention(x)
        query = F.linear(take_row(normed, row), self.query_key_value.weight[:width], self.query_key_value.bias[:width])
        return self.split_heads(query), *self._keys_values_of_normed(normed)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Residual attention output, then the MLP. `attended` is (B, heads, N, D / heads)."""
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        finished: Tensor = x + self.down(self.activate(self.up(self.norm_mlp(x))))
        return finished


def take_row(x: Tensor, row: Tensor) -> Tensor:
    """x (B, N, D), row (B,) -> (B, 1, D)."""
    return x.gather(1, row[:, None, None].expand(-1, 1, x.shape[-1]))


def beside(shared: Tensor, own: Tensor, *, first: bool) -> Tensor:
    """Put keys or values that all sequences share, (1, heads, P, d), beside each one's own (B, heads, N, d)."""
    expanded = shared.expand(own.shape[0], -1, -1, -1)
    return torch.cat([expanded, own] if first else [own, expanded], dim=2)


class VisionTower(nn.Module):
    """A CLIP vision transformer; a prompt for block l enters as `prompts[l]`, (P, width)."""

    def __init__(self, shape: TowerShape, *, patch: int, image: int, output: int, patch_bias: bool, norm_first: bool):
        super().__init__()
        self.shape, self.patch, self.image = shape, patch, image
        self.prompt_width, self.prompt_levels = shape.width, shape.depth
        self.usual_prompt_levels = shape.depth - 1  # as the authors do: 11 of 12
        self.patches = nn.Conv2d(3, shape.width, patch, patch, bias=patch_bias)
        self.class_token = nn.Parameter(torch.empty(shape.width))
        self.positions = nn.Parameter(torch.empty((image // patch) ** 2 + 1, shape.width))
        self.norm_first = nn.LayerNorm(shape.width, shape.epsilon) if norm_first else nn.Identity()
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm_last = nn.LayerNorm(shape.width, shape.epsilon)
        self.project = nn.Linear(shape.width, output, bias=False)

    def embed(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) -> tokens (B, N + 1, width). Prompts play no part: do this once per image."""
        patches = self.patches(pixels).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(len(patches), 1, -1)
        normed: Tensor = self.norm_first(torch.cat([class_token, patches], dim=1) + self.positions)
        return normed

    def forward(self, tokens: Tensor, prompts: Sequence[Tensor] = ()) -> Tensor:
        """Embedded tokens -> features (B, output), not normalised."""
        *before, last = cast(Sequence[Block], self.blocks)
        for level, block in enumerate(before):
            query, key, value = block.queries_keys_values(tokens)
            key, value = _with_prompt(block, key, value, prompts, level)
            tokens = block.finish(tokens, F.scaled_dot_product_attention(query, key, value))
        first_row = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
        query, key, value = last.query_keys_values_of_row(tokens, first_row)
        key, value = _with_prompt(last, key, value, prompts, len(before))
        read = last.finish(tokens[:, :1], F.scaled_dot_product_attention(query, key, value))
        features: Tensor = self.project(self.norm_last(read[:, 0]))
        return features

    def blank_states(self) -> Iterator[Tensor]:
        """The patches of a blank image at the input of each block, (N, width), in double precision on the CPU.

        One block at a time, so that no second tower is ever in memory.
        """
        tokens = self._blank_tokens()
        for block in cast(Sequence[Block], self.blocks):
            yield tokens[0, 1:]
            precise = in_double(block)
            tokens = precise.finish(tokens, F.scaled_dot_product_attention(*precise.queries_keys_values(tokens)))

    def _blank_tokens(self) -> Tensor:
        """Where every pixel is 0, a patch is nothing but the bias."""
        bias = torch.zeros(self.shape.width) if self.patches.bias is None else self.patches.bias.cpu()
        patches = bias.expand(len(self.positions) - 1, -1)
        tokens = torch.cat([self.class_token.cpu()[None], patches]).double() + self.positions.cpu().double()
        normed: Tensor = in_double(self.norm_first)(tokens)[None]
        return normed

    def patch_features(self, tokens: Tensor) -> Tensor:
        """Every patch projected like the class token, (B, N, output): for methods that look at parts of an image."""
        for block in cast(Sequence[Block], self.blocks):
            query, key, value = block.queries_keys_values(tokens)
            tokens = block.finish(tokens, F.scaled_dot_product_attention(query, key, value))
        features: Tensor = self.project(self.norm_last(tokens[:, 1:]))
        return features


def in_double(module: Part) -> Part:
    """A copy on the CPU in double precision: there its last bits are far below those of a float32."""
    return deepcopy(module).cpu().double()


def _with_prompt(
    block: Block, key: Tensor, value: Tensor, prompts: Sequence[Tensor], level: int
) -> tuple[Tensor, Tensor]:
    if level >= len(prompts) or not len(prompts[level]):
        return key, value
    prompt_key, prompt_value = block.keys_values(prompts[level][None])
    return beside(prompt_key, key, first=False), beside(prompt_value, value, first=False)


@dataclass(frozen=True)
class Sentences:
    """Tokenised sentences, split into the beginning they all share and what follows in each.

    Both keep at least one token: the shared part its start token, each rest its end token.
    """

    shared: Tensor  # (P,) token ids, the start token first
    rest: Tensor  # (C, S) token ids, padded after the end token
    end: Tensor  # (C,) position of the end token in `rest`

    def to(self, device: torch.device) -> "Sentences":
        return Sentences(self.shared.to(device), self.rest.to(device), self.end.to(device))


def split_sentences(rows: Sequence[Sequence[int]]) -> Sentences:
    """Find the shared beginning of token rows that each run from start token to end token."""
    shortest = min(len(row) for row in rows)
    shared = next(
        (i for i in range(1, shortest - 1) if len({row[i] for row in rows}) > 1),
        max(shortest - 1, 1),
    )
    longest = max(len(row) for row in rows) - shared
    rest = [list(row[shared:]) + [row[-1]] * (longest - len(row) + shared) for row in rows]
    end = [len(row) - shared - 1 for row in rows]
    return Sentences(torch.tensor(rows[0][:shared]), torch.tensor(rest), torch.tensor(end))


class TextTower(nn.Module):
    """CLIP's causal text transformer over sentences that share their beginning."""

    def __init__(self, shape: TowerShape, *, vocabulary: int, positions: int, output: int):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(vocabulary, shape.width)
        self.positions = nn.Parameter(torch.empty(positions, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm_last = nn.LayerNorm(shape.width, shape.epsilon)
        self.project = nn.Linear(shape.width, output, bias=False)

    def forward(self, sentences: Sentences, context: Tensor | None = None) -> Tensor:
        """Features (C, output), not normalised. `context` (m, width) goes between start token and the words."""
        shared, rest = self._embed(sentences, context)
        mask = _causal_beside(shared.shape[1], rest.shape[1], rest.device)
        *before, last = cast(Sequence[Block], self.blocks)
        for block in before:
            shared, rest = _causal_block(block, shared, rest, mask)
        read = _causal_end(last, shared, rest, mask, sentences.end)
        features: Tensor = self.project(self.norm_last(read))
        return features

    def _embed(self, sentences: Sentences, context: Tensor | None) -> tuple[Tensor, Tensor]:
        start = self.embedding(sentences.shared)
        if context is not None:
            start = torch.cat([start[:1], context, start[1:]])
        length = len(start) + sentences.rest.shape[1]
        if length > len(self.positions):
            raise ModelError(f"a class sentence takes {length} tokens; this model reads at most {len(self.positions)}")
        rest = self.embedding(sentences.rest) + self.positions[len(start) : length]
        return (start + self.positions[: len(start)])[None], rest


def _causal_beside(shared: int, rest: int, device: torch.device) -> Tensor:
    """Who may be looked at, (rest, shared + rest): all of the shared beginning, and the rest up to oneself."""
    everything = torch.ones(rest, shared, dtype=torch.bool, device=device)
    return torch.cat([everything, torch.ones(rest, rest, dtype=torch.bool, device=device).tril()], dim=1)


def _causal_block(block: Block, shared: Tensor, rest: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    shared_query, shared_key, shared_value = block.queries_keys_values(shared)
    query, key, value = block.queries_keys_values(rest)
    attended = F.scaled_dot_product_attention(
        query, beside(shared_key, key, first=True), beside(shared_value, value, first=True), attn_mask=mask
    )
    shared_attended = F.scaled_dot_product_attention(shared_query, shared_key, shared_value, is_causal=True)
    return block.finish(shared, shared_attended), block.finish(rest, attended)


def _causal_end(block: Block, shared: Tensor, rest: Tensor, mask: Tensor, end: Tensor) -> Tensor:
    """The last block's output at each sentence's end token, (C, width)."""
    shared_key, shared_value = block.keys_values(shared)
    query, key, value = block.query_keys_values_of_row(rest, end)
    attended = F.scaled_dot_product_attention(
        query,
        beside(shared_key, key, first=True),
        beside(shared_value, value, first=True),
        attn_mask=mask[end][:, None, None],
    )
    return block.finish(take_row(rest, end), attended)[:, 0]

"""The transformer block of all towers, and its activations."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal["quick_gelu", "gelu", "gelu_tanh"]
_Part = TypeVar("_Part", bound=nn.Module)


@dataclass(frozen=True)
class TowerShape:
    """Sizes of one transformer."""

    width: int
    depth: int
    heads: int
    hidden: int
    activation: Activation = "quick_gelu"
    epsilon: float = 1e-5


_QUICK = 1.702


def quick_gelu(x: Tensor) -> Tensor:
    """Compute OpenAI's approximation of GELU in place: x sigmoid(1.702 x) = silu(1.702 x) / 1.702.

    In place, because x is not used again and a second array of its size would not fit into the cache.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        activated: Tensor = _QuickGelu.apply(x)  # type: ignore[no-untyped-call]
        return activated
    return F.silu(x.mul_(_QUICK), inplace=True).div_(_QUICK)


class _QuickGelu(torch.autograd.Function):
    """Quick-GELU with a backward of one pass over one saved tensor: the factors cancel in the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scaled = x.mul_(_QUICK)
        ctx.save_for_backward(scaled)
        return F.silu(scaled).div_(_QUICK)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (scaled,) = ctx.saved_tensors
        passed: Tensor = torch.ops.aten.silu_backward(gradient, scaled)
        return passed


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute GELU by the tanh approximation, as in SigLIP."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
}


class Block(nn.Module):
    """A pre-norm transformer block whose attention may use extra keys and values."""

    def __init__(self, shape: TowerShape):
        super().__init__()
        self.heads = shape.heads
        self.norm_attention = nn.LayerNorm(shape.width, shape.epsilon)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width, shape.epsilon)
        self.up = nn.Linear(shape.width, shape.hidden)
        self.down = nn.Linear(shape.hidden, shape.width)
        self.activate = ACTIVATIONS[shape.activation]

    def attention_input(self, x: Tensor) -> Tensor:
        """Return the input of the attention."""
        normed: Tensor = self.norm_attention(x)
        return normed

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of all tokens, each (B, heads, N, D / heads)."""
        query, key, value = self.query_key_value(self.attention_input(x)).chunk(3, dim=-1)
        return _split_heads(query, self.heads), _split_heads(key, self.heads), _split_heads(value, self.heads)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values only, for tokens whose own output is not used."""
        return keys_values(self.query_key_value, self.attention_input(x), self.heads)

    def query_keys_values_of_row(self, x: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query of one row of each sequence, `row` (B,), and the keys and values of all rows."""
        x = self.attention_input(x)
        query = queries(self.query_key_value, take_row(x, row), self.heads)
        return query, *keys_values(self.query_key_value, x, self.heads)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the attention output, (B, heads, N, D / heads), then apply the MLP."""
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        del attended  # the MLP needs the memory
        return x + self.mlp(self.norm_mlp(x))

    def mlp(self, x: Tensor) -> Tensor:
        """Apply the two linear layers with the activation between them."""
        output: Tensor = self.down(self.activate(self.up(x)))
        return output


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Split the heads: (B, N, D) -> (B, heads, N, D / heads)."""
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def queries(query_key_value: nn.Linear, x: Tensor, heads: int) -> Tensor:
    """Compute queries, (B, heads, N, D / heads), with the first third of the joint projection."""
    width = x.shape[-1]
    return _split_heads(F.linear(x, query_key_value.weight[:width], query_key_value.bias[:width]), heads)


def keys_values(query_key_value: nn.Linear, x: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Compute keys and values, (B, heads, N, D / heads), with the other two thirds of the joint projection."""
    width = x.shape[-1]
    key, value = F.linear(x, query_key_value.weight[width:], query_key_value.bias[width:]).chunk(2, dim=-1)
    return _split_heads(key, heads), _split_heads(value, heads)


def take_row(x: Tensor, row: Tensor) -> Tensor:
    """Return row `row[b]` of each sequence: x (B, N, D), row (B,) -> (B, 1, D)."""
    return x.gather(1, row[:, None, None].expand(-1, 1, x.shape[-1]))


def concat_shared(shared: Tensor, own: Tensor, *, first: bool) -> Tensor:
    """Concatenate keys or values shared by all sequences, (1, heads, P, d), with those of each, (B, heads, N, d)."""
    expanded = shared.expand(len(own), -1, -1, -1)
    return torch.cat([expanded, own] if first else [own, expanded], dim=2)


def in_double(module: _Part) -> _Part:
    """Copy a module to the CPU in double precision, where rounding is far below that of float32."""
    return deepcopy(module).cpu().double()

"""The transformer block of all towers, and its activations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal["quick_gelu", "gelu", "gelu_tanh"]


@dataclass(frozen=True)
class TowerShape:
    """Sizes of one transformer."""

    width: int
    depth: int
    heads: int
    hidden: int
    activation: Activation = "quick_gelu"
    epsilon: float = 1e-5


_QUICK_GELU_SCALE = 1.702


def quick_gelu(x: Tensor) -> Tensor:
    """Compute OpenAI's approximation of GELU, x sigmoid(1.702 x) = silu(1.702 x) / 1.702, and overwrite x.

    No caller needs x again, and a second array of its size would not fit into the processor's cache.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        activated: Tensor = _QuickGelu.apply(x)  # type: ignore[no-untyped-call]
        return activated
    return F.silu(x.mul_(_QUICK_GELU_SCALE), inplace=True).div_(_QUICK_GELU_SCALE)


class _QuickGelu(torch.autograd.Function):
    """Quick-GELU that saves one tensor; the backward is one pass, because the factors cancel in the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scaled = x.mul_(_QUICK_GELU_SCALE)
        ctx.save_for_backward(scaled)
        return F.silu(scaled).div_(_QUICK_GELU_SCALE)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (scaled,) = ctx.saved_tensors
        input_gradient: Tensor = torch.ops.aten.silu_backward(gradient, scaled)
        return input_gradient


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute the tanh approximation of GELU, which SigLIP uses."""
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {  # `fingerprint` includes the functions' names
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
}


class Block(nn.Module):
    """A pre-norm transformer block whose attention may use extra keys and values."""

    def __init__(self, shape: TowerShape):
        super().__init__()
        self.heads = shape.heads
        self.norm_attention: nn.Module = nn.LayerNorm(shape.width, shape.epsilon)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width, shape.epsilon)
        self.up = nn.Linear(shape.width, shape.hidden)
        self.down = nn.Linear(shape.hidden, shape.width)
        self.activate = _ACTIVATIONS[shape.activation]

    def attention_input(self, x: Tensor) -> Tensor:
        """Normalise the tokens for the attention."""
        normed: Tensor = self.norm_attention(x)
        return normed

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of all tokens, each (B, heads, N, D / heads)."""
        query, key, value = self.query_key_value(self.attention_input(x)).chunk(3, dim=-1)
        return _split_heads(query, self.heads), _split_heads(key, self.heads), _split_heads(value, self.heads)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of tokens whose output is not used."""
        return self._keys_values(self.attention_input(x))

    def query_keys_values_of_row(self, x: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query of token `row[b]` of each sequence b, and the keys and values of all its tokens."""
        x = self.attention_input(x)
        return self._queries(take_row(x, row)), *self._keys_values(x)

    def _queries(self, x: Tensor) -> Tensor:
        """Compute queries with the first third of the rows of the joint projection."""
        width = x.shape[-1]
        projected = F.linear(x, self.query_key_value.weight[:width], self.query_key_value.bias[:width])
        return _split_heads(projected, self.heads)

    def _keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute keys and values with the last two thirds of the rows of the joint projection."""
        width = x.shape[-1]
        projected = F.linear(x, self.query_key_value.weight[width:], self.query_key_value.bias[width:])
        key, value = projected.chunk(2, dim=-1)
        return _split_heads(key, self.heads), _split_heads(value, self.heads)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the projected attention output, (B, heads, N, D / heads), to the tokens, then the output of the MLP."""
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        del attended  # frees memory for the MLP
        return x + self.mlp(self.norm_mlp(x))

    def mlp(self, x: Tensor) -> Tensor:
        """Apply the two linear layers with the activation between them."""
        output: Tensor = self.down(self.activate(self.up(x)))
        return output


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape (B, N, D) to (B, heads, N, D / heads)."""
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def take_row(x: Tensor, row: Tensor) -> Tensor:
    """Return token `row[b]` of each sequence b: x (B, N, D), row (B,) -> (B, 1, D)."""
    return x.gather(1, row[:, None, None].expand(-1, 1, x.shape[-1]))


def concat_shared(shared: Tensor, batch: Tensor, *, first: bool) -> Tensor:
    """Concatenate keys or values of common tokens, (1, heads, P, d), with those of each sequence, (B, heads, N, d).

    With `first` the common tokens come first.
    """
    expanded = shared.expand(len(batch), -1, -1, -1)
    return torch.cat([expanded, batch] if first else [batch, expanded], dim=2)

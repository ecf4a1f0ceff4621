"""A block of cross-attention and a gated feed-forward layer, with which FedTPG and FedMVP generate prompts."""

import torch.nn.functional as F
from torch import Tensor

from .base import NamedTensors
from .prompts import Shape

_WIDER = 4  # hidden width of the feed-forward layer, relative to the block's


def layer_shapes(width: int, inputs: int) -> dict[str, Shape]:
    """Return the names and shapes of the block's arrays; a bias of the keys would cancel out and is left out.

    Args:
        width: w, the width of queries and output.
        inputs: The width of keys and values.
    """
    hidden = _WIDER * width
    return {
        "query map": (width, width),
        "query map bias": (width,),
        "key map": (width, inputs),
        "value map": (width, inputs),
        "value map bias": (width,),
        "output map": (width, width),
        "output map bias": (width,),
        "expand": (2 * hidden, width),
        "expand bias": (2 * hidden,),
        "contract": (width, hidden),
        "contract bias": (width,),
    }


LAYERS = tuple(layer_shapes(1, 1))


def cross_attention(queries: Tensor, keys: Tensor, values: Tensor, params: NamedTensors, heads: int) -> Tensor:
    """Return A + W_2 GEGLU(W_1 LN(A)), (..., m, w), where A is the attention of the queries over the keys.

    GEGLU(a, b) = a gelu(b). Scores are divided by sqrt(w / heads), as in torch's multi-head attention.

    Args:
        queries: (..., m, w).
        keys: (n, inputs).
        values: (n, inputs).
        params: The arrays of `layer_shapes`.
        heads: Number of heads, which divides w.
    """
    query, key, value = (
        rows.unflatten(-1, (heads, -1)).transpose(-3, -2)  # (..., heads, rows, w / heads)
        for rows in (
            _linear(queries, "query map", params),
            F.linear(keys, params["key map"]),
            _linear(values, "value map", params),
        )
    )
    weights = (query @ key.mT / key.shape[-1] ** 0.5).softmax(-1)
    attended = _linear((weights @ value).transpose(-3, -2).flatten(-2), "output map", params)
    hidden, gates = _linear(standardised(attended), "expand", params).chunk(2, dim=-1)
    return attended + _linear(hidden * F.gelu(gates), "contract", params)


def standardised(rows: Tensor) -> Tensor:
    """Return LN(rows), a layer norm without scale and offset."""
    return F.layer_norm(rows, rows.shape[-1:])


def _linear(rows: Tensor, name: str, params: NamedTensors) -> Tensor:
    return F.linear(rows, params[name], params[f"{name} bias"])

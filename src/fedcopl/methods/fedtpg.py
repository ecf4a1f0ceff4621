"""FedTPG (Qiu et al., ICLR 2024): a prompt generator, averaged, that makes the text prompt from the class names.

With E (C, d) the frozen features of the classes' hand-written sentences and learnt queries Q (m, w),

    A = attention(LN(Q) W_q, LN(E) W_k, LN(E) W_v) W_o,    P = A + W_2 GEGLU(W_1 LN(A)),

where attention has four heads with scores over sqrt(w / 4), and GEGLU(a, b) = a gelu(b) has four times the width. P is
the context of all classes. The server averages the whole generator, so clients with different classes share it, and it
makes a prompt for classes that nobody trained on.

Choices: one cross-attention and one feed-forward block. The layer norms have no scale and offset and the attention has
no biases (a bias on keys changes nothing). Layers begin uniform in +- 1 / sqrt(inputs), torch's default, and the
queries normal, as in the authors' code; so the first prompt is not neutral. Training is our SGD. Not built: the
self-attention blocks and prompts of deeper layers that the authors' generator can also have.
"""

import numpy as np
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..clip.encoder import Array, Encoder
from ..clip.frozen_clip import Clip
from ..config import Section
from ..errors import ConfigError
from ..rng import stream
from .base import Named
from .promptfl import FrozenImages
from .prompts import Shape, initial_prompts, text_shape

LAYERS = ("query map", "key map", "value map", "output map", "expand", "expand bias", "contract", "contract bias")
WIDER = 4  # hidden width of the feed-forward block, relative to the prompt's


class FedTPGOptions(Section):
    """Settings of FedTPG."""

    heads: int = Field(4, ge=1)
    """of the cross-attention"""


class FedTPG(FrozenImages):
    """A generator of the text prompt from the class names, averaged (FedTPG)."""

    title, words = "FedTPG", dict.fromkeys(("queries", *LAYERS), "prompt generators")
    Options = FedTPGOptions
    of_classes = ("queries", *LAYERS)

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        vectors, width = text_shape(clip, self.config.model)
        if width % self.options.heads:
            raise ConfigError(f"options.heads: must divide the {width} coordinates of a text prompt")
        size, hidden = clip.feature_size, WIDER * width
        sizes: tuple[Shape, ...] = (
            (width, width),
            (width, size),
            (width, size),
            (width, width),
            (2 * hidden, width),
            (2 * hidden,),
            (width, hidden),
            (width,),
        )
        return {"queries": (vectors, width)} | dict(zip(LAYERS, sizes, strict=True))

    def shared(self) -> tuple[str, ...]:
        return self.of_classes

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        """Return normal queries, and layers uniform in +- 1 / sqrt(inputs)."""
        shapes = self.shapes(clip, classes)
        first = initial_prompts({"queries": shapes.pop("queries")}, self.config.train.init_std, self.config.seed)
        for name, shape in shapes.items():
            inputs = shapes[name.removesuffix(" bias")][-1]
            values = stream(self.config.seed, f"initial {name}").uniform(-1, 1, shape) / np.sqrt(inputs)
            first[name] = values.astype(np.float32)
        return first

    def classes(self, encoder: Encoder, named: Named) -> Tensor:
        return encoder.class_features(generated(encoder.class_features(None), named, self.options.heads))


def generated(texts: Tensor, named: Named, heads: int) -> Tensor:
    """Return the context P, (m, w), from the class features E, (C, d), and the arrays of the generator."""
    queries, keys = _standardised(named["queries"]), _standardised(texts)
    query, key, value = (
        F.linear(rows, named[f"{part} map"]).unflatten(-1, (heads, -1)).transpose(0, 1)  # (heads, rows, w / heads)
        for part, rows in (("query", queries), ("key", keys), ("value", keys))
    )
    weights = (query @ key.mT / key.shape[-1] ** 0.5).softmax(-1)
    attended = F.linear((weights @ value).transpose(0, 1).flatten(1), named["output map"])
    values, gates = F.linear(_standardised(attended), named["expand"], named["expand bias"]).chunk(2, dim=-1)
    return attended + F.linear(values * F.gelu(gates), named["contract"], named["contract bias"])


def _standardised(rows: Tensor) -> Tensor:
    return F.layer_norm(rows, rows.shape[-1:])

"""FedCLIP (Lu et al., 2023): an averaged adapter on frozen image features, without prompts.

With I (d,) the image feature before normalisation, the adapter weighs its coordinates by attention,

    a(I) = softmax(B tanh(A I + a_0) + b_0),    f = a(I) I / |a(I) I|,    z_c = s <f, w_c>,

with A, B (d, d) trained and averaged, and w_c from the text template. Ours: SGD instead of Adam, and the average
weighted by images, as for every method; `options.loss` has the authors' contrastive loss.
"""

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..clip.encoder import Array, Encoder
from ..clip.frozen_clip import Clip
from ..config import Section
from ..rng import stream
from .base import Batch, Criterion, FrozenTexts, NamedTensors
from .prompts import Shape


class _FedCLIPOptions(Section):
    """Settings of FedCLIP."""

    loss: Literal["ce", "contrastive"] = "ce"
    """cross-entropy over all classes, or the authors' contrastive loss between images and texts of a batch"""


class FedCLIP(FrozenTexts):
    """An adapter on image features, averaged (FedCLIP)."""

    title = "FedCLIP"
    display_names = dict.fromkeys(("down", "down bias", "up", "up bias"), "adapters")
    caches_frozen = True
    image_arrays = ("down", "down bias", "up", "up bias")
    Options = _FedCLIPOptions

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        size = clip.feature_size
        return {"down": (size, size), "down bias": (size,), "up": (size, size), "up bias": (size,)}

    def shared(self) -> tuple[str, ...]:
        return self.image_arrays

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        """Return values uniform in +- 1 / sqrt(d), the default of torch's layers."""
        shapes = self.shapes(clip, classes)
        bound = 1 / np.sqrt(shapes["down"][0])
        return {
            name: stream(self.config.seed, f"initial {name}").uniform(-bound, bound, shape).astype(np.float32)
            for name, shape in shapes.items()
        }

    def frozen_features(self, encoder: Encoder, tokens: Tensor) -> Tensor:
        return encoder.raw_image_features(tokens)

    def zero_shot_features(self, frozen: Tensor) -> Tensor:
        return F.normalize(frozen, dim=-1)

    def image_features(self, encoder: Encoder, frozen: Tensor, params: NamedTensors) -> Tensor:
        hidden = torch.tanh(F.linear(frozen, params["down"], params["down bias"]))
        attention = F.linear(hidden, params["up"], params["up bias"]).softmax(-1)
        return F.normalize(attention * frozen, dim=-1)

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        """Return the loss of `options.loss`; candidate sets always have their own loss."""
        if self.options.loss == "ce" or batch.candidates is not None:
            return super().loss(batch, criterion)
        texts = batch.classes[torch.from_numpy(batch.label).to(batch.classes.device)]
        return _contrast(batch.encoder.logits(batch.images, texts))


def _contrast(logits: Tensor) -> Tensor:
    """Return CLIP's contrastive loss on (B, B) logits; other pairs of the same class are negatives."""
    pairs = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.T, pairs)) / 2

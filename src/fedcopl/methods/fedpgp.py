"""FedPGP (Cui et al., ICML 2024): a global text prompt, and a low-rank adaptation of it that stays at the client.

The client's prompt is P = G + U V, with the averaged G (m, w) and personal U (m, b), V (b, w) of rank b. With T_0 the
class features from the text template, T_G those by G and T those by P, the loss adds for each class

    mu * -log( exp(cos(T_0, T_G) / tau) / (exp(cos(T_0, T_G) / tau) + exp(cos(T_G, T) / tau)) ),

averaged over the classes: G is pulled to zero-shot CLIP, so that it generalises, and pushed from the personal prompt.

Choices: rank 8, mu = 0.5 and tau = 0.5 as in the authors' script for CIFAR-10 with a Dirichlet skew. T_0 is from the
run's template; the authors' code encodes placeholder words. U and V are random at the start, as in their code, so the
first prompt is neutral only up to U V, of about 0.001. Not built: their options for class-specific
contexts and other positions of the class name.
"""

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..clip.encoder import Encoder
from ..clip.frozen_clip import Clip
from ..config import Section
from .base import Batch, Criterion, FrozenImages, NamedTensors
from .prompts import Shape, text_shape


class _FedPGPOptions(Section):
    """Settings of FedPGP."""

    rank: int = Field(8, ge=1)
    """b: rank of the personal adaptation"""
    mu: float = Field(0.5, ge=0)
    """weight of the contrastive loss; 0: none"""
    temperature: float = Field(0.5, gt=0)
    """tau of the contrastive loss"""


class FedPGP(FrozenImages):
    """An averaged text prompt, regularised towards zero-shot CLIP, plus a personal low-rank one (FedPGP)."""

    title, display_names = "FedPGP", {"global text": "global text prompts"}
    class_arrays = ("global text", "low rank left", "low rank right")
    Options = _FedPGPOptions

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        vectors, width = text_shape(clip, self.config.model)
        rank: int = self.options.rank
        return {"global text": (vectors, width), "low rank left": (vectors, rank), "low rank right": (rank, width)}

    def shared(self) -> tuple[str, ...]:
        return ("global text",)

    def class_features(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        """Return the class features T by G + U V, (C, d)."""
        return encoder.class_features(params["global text"] + params["low rank left"] @ params["low rank right"])

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        """Return the loss on the pseudo labels plus mu times the contrastive loss."""
        label_loss, mu = super().loss(batch, criterion), float(self.options.mu)
        if mu == 0:
            return label_loss
        zero_shot, shared = (batch.encoder.class_features(text) for text in (None, batch.params["global text"]))
        return label_loss + mu * _contrast(zero_shot, shared, batch.classes, self.options.temperature)


def _contrast(zero_shot: Tensor, shared: Tensor, personal: Tensor, temperature: float) -> Tensor:
    """Return the contrastive loss that moves features `shared` to `zero_shot` and from `personal`, (C, d) each."""
    positive, negative = F.cosine_similarity(zero_shot, shared), F.cosine_similarity(shared, personal)
    return -(torch.stack([positive, negative]) / temperature).log_softmax(0)[0].mean()

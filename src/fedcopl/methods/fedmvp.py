"""FedMVP (Singha et al., ICCV 2025): visual prompts that an averaged network makes from each image and the class texts.

With the patches X (N, v) of an image as they enter the first block, the text features E (A, d) of the classes'
attributes, and K = E W_e^T + b_e (A, v), the PromptFormer computes

    H = attention(LN(X) W_q, LN(K) W_k, K W_v) W_o,    H' = H + W_2 GEGLU(W_1 LN(H)),    (N, v)

with four heads and biases. The N rows of H', averaged in p groups of neighbours, are p visual prompts, which
enter the first block beside the patches. With f the resulting image feature and f_0 that of zero-shot CLIP, the loss on
the pseudo labels adds the consistency

    lambda (1 - mean cos(f, f_0)).

The server averages the whole PromptFormer. Class features are those of zero-shot CLIP, so nothing is tied to classes.

Choices: p = 4, four heads and lambda = 10 as in the authors' code. **Without a language model's attributes**: E has one
row for each class, from the run's template, where the authors have several sentences about the looks of a class and
average the logits over them. Patches are taken after CLIP's first norm and prompts pass it too (the authors' norm comes
after the prompts are made). The layer norms here have no scale and offset; all layers begin uniform in +- 1 /
sqrt(inputs), so the first prompts are not neutral. Training is our SGD on every batch. Not built: the flipped image in
f_0, and the switch to low-rank updates once the loss is below 0.5.
"""

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..clip.encoder import Array, Encoder
from ..clip.frozen_clip import Clip
from ..clip.vision_towers import VisionTower
from ..config import Section
from ..errors import ConfigError
from .base import Batch, Criterion, FrozenTexts, NamedTensors
from .cross_attention import LAYERS, cross_attention, layer_shapes, standardised
from .prompts import Shape, initial_layers

_PROMPTFORMER = ("text map", "text map bias", *LAYERS)


class _FedMVPOptions(Section):
    """Settings of FedMVP, as in its authors' code."""

    prompts: int = Field(4, ge=1)
    """p: visual prompts made of each image"""
    heads: int = Field(4, ge=1)
    """heads of the cross-attention"""
    consistency: float = Field(10.0, ge=0)
    """lambda: weight of the distance to the features of zero-shot CLIP; 0: none"""


class FedMVP(FrozenTexts):
    """A network that makes visual prompts of each image and the class texts, averaged (FedMVP)."""

    title, display_names = "FedMVP", dict.fromkeys(_PROMPTFORMER, "prompt generators")
    image_arrays = _PROMPTFORMER
    Options = _FedMVPOptions

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        width = clip.vision.prompt_width
        if width % self.options.heads:
            raise ConfigError(f"options.heads: must divide the {width} dimensions of a visual prompt")
        texts: dict[str, Shape] = {"text map": (width, clip.feature_size), "text map bias": (width,)}
        return texts | layer_shapes(width, width)

    def shared(self) -> tuple[str, ...]:
        return _PROMPTFORMER

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        return initial_layers(self.shapes(clip, classes), self.config.seed)

    def image_features(self, encoder: Encoder, frozen: Tensor, params: NamedTensors) -> Tensor:
        """Return f(x), (B, d), from tokens, (B, 1 + N, v), and the prompts that are made of them."""
        vision, texts = encoder.clip.vision, encoder.class_features(None)
        # A ResNet has one token before its patches, their mean.
        first_patch = vision.before_patches if isinstance(vision, VisionTower) else 1
        keys = F.linear(texts, params["text map"], params["text map bias"])
        patches = standardised(frozen[:, first_patch:])
        visual_prompts = cross_attention(patches, standardised(keys), keys, params, self.options.heads)  # (B, N, v)
        prompts = F.adaptive_avg_pool1d(visual_prompts.mT, self.options.prompts).mT  # (B, p, v)
        if isinstance(vision, VisionTower):
            prompts = vision.norm_first(prompts)
        return encoder.image_features(torch.cat([frozen, prompts], dim=1))

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        """Return the loss on the pseudo labels plus the distance to the features of zero-shot CLIP."""
        label_loss, weight = super().loss(batch, criterion), float(self.options.consistency)
        if weight == 0:
            return label_loss
        return label_loss + weight * (1 - F.cosine_similarity(batch.images, batch.zero_shot()).mean())

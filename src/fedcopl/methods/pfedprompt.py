"""pFedPrompt (Guo et al., WWW 2023): a shared text prompt, and attention over each client's own images.

There is no published code. This is a reconstruction: Tip-Adapter's kernel over the client's own pseudo-labelled images,
or, taking its "spatial visual features" literally, CALIP's attention between patches and classes.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ..algorithm.image_memory import Memory, build_memory, memory_logits, spatial_logits
from ..algorithm.select import Selection
from ..clip.encoder import Array, Encoder
from ..config import RunConfig, Section
from .base import Batch, Criterion, FrozenImages, Method, NamedTensors, in_double

_KEYS, _VALUES, _IMAGES = "memory keys", "memory values", "memory images"


class _PFedPromptOptions(Section):
    """Settings of pFedPrompt; the constants are Tip-Adapter's usual ones, and CALIP's."""

    attention: Literal["memory", "spatial"] = "memory"
    """over the client's stored images, or between the patches of an image and the classes"""
    memory_weight: float = Field(1.0, ge=0)
    """alpha: weight of the memory; 0 is PromptFL"""
    sharpness: float = Field(5.5, gt=0)
    """beta of the kernel exp(-beta (1 - cosine)); for `softmax` the inverse temperature"""
    kernel: Literal["exp", "softmax"] = "exp"
    """of the similarity to stored images"""
    memory_per_class: int = Field(16, ge=1)
    """images stored of each class, the most confident"""
    memory_in_training: bool = False
    """use the memory in training too, without an image's own key"""
    text_weight: float = Field(1.0, ge=0)
    """for `spatial`: b2, weight of classes attended by patches"""
    image_weight: float = Field(0.05, ge=0)
    """for `spatial`: b3, weight of images attended by classes"""


class _MemoryPFedPrompt(FrozenImages):
    """Averages the text prompt, trained on text logits; labelling and evaluation add a memory of images."""

    title = "pFedPrompt"
    Options = _PFedPromptOptions
    remembers_by_class = (_KEYS, _VALUES, _IMAGES)

    def shared(self) -> tuple[str, ...]:
        return ("text",)

    def remember(self, frozen: Callable[[], Tensor], selection: Selection, classes: int) -> dict[str, Array]:
        memory = build_memory(in_double(frozen()), selection, classes, self.options.memory_per_class)
        # Image numbers are exact in float32 up to 16 million; all arrays of a client have one type.
        return {name: part.astype(np.float32) for name, part in zip((_KEYS, _VALUES, _IMAGES), memory, strict=True)}

    def personal(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        return self._with_memory(self.logits(encoder, images, classes, params), images, params, None)

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        if not self.options.memory_in_training:
            return super().loss(batch, criterion)
        logits = self.logits(batch.encoder, batch.images, batch.classes, batch.params)
        return criterion(self._with_memory(logits, batch.images, batch.params, batch.index))

    def _with_memory(
        self, logits: Tensor, images: Tensor, params: NamedTensors, own: NDArray[np.int64] | None
    ) -> Tensor:
        """Add alpha phi(A) L to the logits; `own` are the client's own images, whose keys are left out."""
        weight: float = self.options.memory_weight
        if weight == 0 or _KEYS not in params:
            return logits
        memory = Memory(
            in_double(params[_KEYS]), in_double(params[_VALUES]), in_double(params[_IMAGES]).astype(np.int64)
        )
        sharpness, kernel = self.options.sharpness, self.options.kernel
        added = memory_logits(in_double(images), memory, sharpness=sharpness, kernel=kernel, images=own)
        return logits + weight * torch.from_numpy(added).to(logits)


class _SpatialPFedPrompt(FrozenImages):
    """Averages the text prompt; labelling and evaluation add attention between patches and classes."""

    title = "pFedPrompt"
    Options = _PFedPromptOptions

    def shared(self) -> tuple[str, ...]:
        return ("text",)

    def frozen(self, encoder: Encoder, tokens: Tensor) -> Tensor:
        """Return f(x) and the features of the patches, (B, 1 + M, d)."""
        return torch.cat([encoder.image_features(tokens)[:, None], encoder.patch_features(tokens)], dim=1)

    def plain_images(self, frozen: Tensor) -> Tensor:
        return frozen[:, 0]

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        return encoder.logits(images[:, 0], classes)

    def personal(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        logits, both = self.logits(encoder, images, classes, params), in_double(images)
        added = spatial_logits(
            both[:, 0],
            both[:, 1:],
            in_double(classes),
            scale=float(encoder.clip.logit_scale),
            text_weight=self.options.text_weight,
            image_weight=self.options.image_weight,
        )
        return logits + torch.from_numpy(added).to(logits)


def pfedprompt(config: RunConfig) -> Method:
    """A shared text prompt, and a memory of each client's own images (pFedPrompt, reconstructed)."""
    return _SpatialPFedPrompt(config) if config.options.get("attention") == "spatial" else _MemoryPFedPrompt(config)

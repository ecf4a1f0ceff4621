"""pFedPrompt (Guo et al., WWW 2023): a shared text prompt, and attention over each client's own images.

There is no published code. This is a reconstruction: Tip-Adapter's kernel over the client's own pseudo-labelled images,
or, by the words "spatial visual features" of the paper, CALIP's attention between patches and classes. Neither is
trained, and nothing of them is sent. Image features are L2-normalised.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ..algorithm import FloatArray, IntArray
from ..algorithm.select import Selection, rank_in_group
from ..clip.encoder import Array, Encoder
from ..config import RunConfig, Section
from .base import Batch, Criterion, FrozenImages, Method, NamedTensors, in_double

_Kernel = Literal["exp", "softmax"]
_KEYS, _VALUES, _IMAGES = "memory keys", "memory values", "memory images"


class _PFedPromptOptions(Section):
    """Settings of pFedPrompt; the constants are Tip-Adapter's usual ones, and CALIP's."""

    attention: Literal["memory", "spatial"] = "memory"
    """over the client's stored images, or between the patches of an image and the classes"""
    memory_weight: float = Field(1.0, ge=0)
    """alpha: weight of the memory; 0 is PromptFL"""
    sharpness: float = Field(5.5, gt=0)
    """beta of the kernel exp(-beta (1 - cosine)); for `softmax` the inverse temperature"""
    kernel: _Kernel = "exp"
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
    class_memory = (_KEYS, _VALUES, _IMAGES)

    def shared(self) -> tuple[str, ...]:
        return ("text",)

    def build_memory(self, frozen: Callable[[], Tensor], selection: Selection, classes: int) -> dict[str, Array]:
        memory = _build_memory(in_double(frozen()), selection, classes, self.options.memory_per_class)
        # All arrays of a client have one dtype; image numbers are exact in float32 up to 16 million.
        return {name: part.astype(np.float32) for name, part in zip((_KEYS, _VALUES, _IMAGES), memory, strict=True)}

    def inference_logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        return self._with_memory(self.logits(encoder, images, classes, params), images, params, None)

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        if not self.options.memory_in_training:
            return super().loss(batch, criterion)
        logits = self.logits(batch.encoder, batch.images, batch.classes, batch.params)
        return criterion(self._with_memory(logits, batch.images, batch.params, batch.index))

    def _with_memory(
        self, logits: Tensor, images: Tensor, params: NamedTensors, index: NDArray[np.int64] | None
    ) -> Tensor:
        """Add alpha phi(A) L to the logits; with the `index` of each image, its own key is left out."""
        weight: float = self.options.memory_weight
        if weight == 0 or _KEYS not in params:
            return logits
        memory = _Memory(
            in_double(params[_KEYS]), in_double(params[_VALUES]), in_double(params[_IMAGES]).astype(np.int64)
        )
        sharpness, kernel = self.options.sharpness, self.options.kernel
        memory_logits = _memory_logits(in_double(images), memory, sharpness=sharpness, kernel=kernel, images=index)
        return logits + weight * torch.from_numpy(memory_logits).to(logits)


class _SpatialPFedPrompt(FrozenImages):
    """Averages the text prompt; labelling and evaluation add attention between patches and classes."""

    title = "pFedPrompt"
    Options = _PFedPromptOptions

    def shared(self) -> tuple[str, ...]:
        return ("text",)

    def frozen_features(self, encoder: Encoder, tokens: Tensor) -> Tensor:
        """Return f(x) and the features of the patches, (B, 1 + M, d)."""
        return torch.cat([encoder.image_features(tokens)[:, None], encoder.patch_features(tokens)], dim=1)

    def zero_shot_features(self, frozen: Tensor) -> Tensor:
        return frozen[:, 0]

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        return encoder.logits(images[:, 0], classes)

    def inference_logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        """Add CALIP's attention between patches and classes to the logits."""
        logits, features = self.logits(encoder, images, classes, params), in_double(images)
        spatial_logits = _spatial_logits(
            features[:, 0],  # f(x)
            features[:, 1:],  # patches
            in_double(classes),
            scale=float(encoder.clip.logit_scale),
            text_weight=self.options.text_weight,
            image_weight=self.options.image_weight,
        )
        return logits + torch.from_numpy(spatial_logits).to(logits)


def pfedprompt(config: RunConfig) -> Method:
    """A shared text prompt, and a memory of each client's own images (pFedPrompt, reconstructed)."""
    return _SpatialPFedPrompt(config) if config.options.get("attention") == "spatial" else _MemoryPFedPrompt(config)


class _Memory(NamedTuple):
    """A key-value cache of m images, as in Tip-Adapter."""

    keys: FloatArray  # (m, d) image features
    values: FloatArray  # (m, C) one-hot pseudo labels, or 1/k for each of k candidates
    images: IntArray  # (m,) indices among the client's images


def _build_memory(features: FloatArray, selection: Selection, classes: int, per_class: int) -> _Memory:
    """Build a memory of the `per_class` most confident images of each class, the first of the class in a selection.

    Args:
        features: Features of all images of the client, (n, d).
        classes: C.
    """
    index, label, candidates = selection
    by_class = np.argsort(label, kind="stable")
    kept = by_class[rank_in_group(label[by_class]) < per_class]
    values = np.eye(classes)[label[kept]] if candidates is None else candidates[kept].astype(np.float64)
    return _Memory(features[index[kept]], values / values.sum(axis=1, keepdims=True), index[kept])


def _memory_logits(
    features: FloatArray,
    memory: _Memory,
    *,
    sharpness: float = 5.5,
    kernel: _Kernel = "exp",
    images: IntArray | None = None,
) -> FloatArray:
    """Return the memory's logits phi(A) L, (n, C), with the cosines A of image and key, (n, m), and the values L.

    Args:
        features: Image features, (n, d).
        memory: Keys and values; an empty memory gives zeros.
        sharpness: beta of "exp", the inverse temperature of "softmax".
        kernel: "exp": phi(A) = exp(-beta (1 - A)); "softmax": phi(A) = softmax(beta A) over the keys.
        images: Indices of these images among the client's, (n,), whose own keys are left out, because an image would
            confirm its pseudo label; None: no key is left out.
    """
    scores = sharpness * (features @ memory.keys.T - 1)
    if images is not None:
        scores = np.where(images[:, None] == memory.images, -np.inf, scores)
    kernels: dict[str, Callable[[FloatArray], FloatArray]] = {"exp": np.exp, "softmax": _softmax}
    logits: FloatArray = kernels[kernel](scores) @ memory.values
    return logits


def _spatial_logits(
    features: FloatArray,
    patches: FloatArray,
    text: FloatArray,
    *,
    scale: float,
    text_weight: float,
    image_weight: float,
) -> FloatArray:
    """Return the logits b2 s f W'^T + b3 s f' W^T, (n, C), of CALIP's attention between patches and classes.

    With A = 2 F W^T, W' = softmax over patches (A)^T F are class features made of patches, and f' = mean + max over
    patches of softmax over classes (A) W are image features made of classes.

    Args:
        features: f, (n, d).
        patches: F, (n, M, d).
        text: W, (C, d).
        scale: s.
        text_weight: b2.
        image_weight: b3.
    """
    similarity = 2 * patches @ text.T
    by_patch = np.einsum("nid,nd->ni", patches, features)
    by_text = np.einsum("nci,ni->nc", _softmax(similarity.swapaxes(1, 2)), by_patch)  # f W'^T without the large W'
    patch_classes = _softmax(similarity) @ text
    by_image = (patch_classes.mean(axis=1) + patch_classes.max(axis=1)) @ text.T
    logits: FloatArray = scale * (text_weight * by_text + image_weight * by_image)
    return logits


def _softmax(scores: FloatArray) -> FloatArray:
    """Return the softmax along the last axis; zeros if all scores are -inf."""
    highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(highest), highest, 0.0))
    shares: FloatArray = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1.0)  # the highest weight is 1
    return shares

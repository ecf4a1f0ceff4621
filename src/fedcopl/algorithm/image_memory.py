"""pFedPrompt, on the client: logits of a new image from the client's own images and their features.

Guo et al. (WWW 2023) publish neither code nor constants: the kernel is Tip-Adapter's, the spatial variant CALIP's.
Nothing here is trained, and nothing of it is sent. All features are of length 1 (L2-normalised).
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from . import FloatArray, IntArray
from .select import Selection, rank_in_group

_Kernel = Literal["exp", "softmax"]


class Memory(NamedTuple):
    """The remembered images: m keys."""

    keys: FloatArray  # (m, d) image features
    values: FloatArray  # (m, C) 1 for the pseudo label of each, or 1/k for each of its k candidates
    images: IntArray  # (m,) which of the client's images each key is


def build_memory(features: FloatArray, selection: Selection, classes: int, per_class: int = 16) -> Memory:
    """Build a memory of the `per_class` most confident images of each class, which a selection lists first.

    features is (n, d), of all the client's images.
    """
    index, label, candidates = selection
    by_class = np.argsort(label, kind="stable")
    kept = by_class[rank_in_group(label[by_class]) < per_class]
    values = np.eye(classes)[label[kept]] if candidates is None else candidates[kept].astype(np.float64)
    return Memory(features[index[kept]], values / values.sum(axis=1, keepdims=True), index[kept])


def memory_logits(
    features: FloatArray,
    memory: Memory,
    *,
    sharpness: float = 5.5,
    kernel: _Kernel = "exp",
    images: IntArray | None = None,
) -> FloatArray:
    """Return what the memory adds to the logits of each image, before the weight alpha: phi(A) L, (n, C).

    features is (n, d), A (n, m) the cosines of image and key, L the values.
    kernel "exp" is phi(A) = exp(-sharpness (1 - A)), "softmax" is softmax(sharpness A) over the keys, so sharpness is
    beta in the one and 1 / temperature in the other. An empty memory adds nothing.
    images (n,) are the indices of these images if they are the client's own: their own keys are then left out,
    as an image would otherwise confirm its own pseudo-label.
    """
    closeness = sharpness * (features @ memory.keys.T - 1)
    if images is not None:
        closeness = np.where(images[:, None] == memory.images, -np.inf, closeness)
    kernels: dict[str, Callable[[FloatArray], FloatArray]] = {"exp": np.exp, "softmax": _softmax}
    logits: FloatArray = kernels[kernel](closeness) @ memory.values
    return logits


def spatial_logits(
    features: FloatArray,
    patches: FloatArray,
    text: FloatArray,
    *,
    scale: float,
    text_weight: float,
    image_weight: float,
) -> FloatArray:
    """Return what parameter-free attention between patches and classes adds to the logits s f W^T, (n, C).

    features is f (n, d), patches F (n, M, d), text W (C, d), scale s. With A = 2 F W^T, each class becomes the patches
    that resemble it, W' = softmax over patches (A)^T F, and each image the classes of its patches,
    f' = mean + max over patches of softmax over classes (A) W. The gain is b2 s f W'^T + b3 s f' W^T, where b2 is
    text_weight and b3 image_weight.
    """
    likeness = 2 * patches @ text.T
    by_patch = np.einsum("nid,nd->ni", patches, features)
    by_text = np.einsum("nci,ni->nc", _softmax(likeness.swapaxes(1, 2)), by_patch)  # f W'^T, W' itself is large
    spoken = _softmax(likeness) @ text
    by_image = (spoken.mean(axis=1) + spoken.max(axis=1)) @ text.T
    logits: FloatArray = scale * (text_weight * by_text + image_weight * by_image)
    return logits


def _softmax(scores: FloatArray) -> FloatArray:
    """Return the softmax along the last axis; zeros where every score is -inf."""
    highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(highest), highest, 0.0))
    shares: FloatArray = weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1.0)  # the highest weighs 1
    return shares

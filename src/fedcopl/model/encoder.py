"""A frozen CLIP over one list of classes: images and prompts in, logits out. Shared by all clients of a process."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConfigError
from .clip import Clip
from .device import Arithmetic
from .images import ClientImages

Array = NDArray[np.float32]


def clean_name(name: str) -> str:
    """A class name as it stands in a sentence."""
    return " ".join(name.replace("_", " ").split())


def zero_shot_sentences(classes: Iterable[str], template: str) -> list[str]:
    """The hand-written sentence of each class."""
    if "{}" not in template:
        raise ConfigError(f"model.template: must have {{}} where the class name goes (given: {template!r})")
    return [template.replace("{}", clean_name(name)) for name in classes]


class Encoder:
    """z_c(x) = s cos(f(x), w_c), with or without prompts."""

    def __init__(self, clip: Clip, classes: Sequence[str], template: str, arithmetic: Arithmetic):
        self.clip = clip.to(arithmetic.device)
        self.arithmetic, self.device, self.classes = arithmetic, arithmetic.device, len(classes)
        self._zero_shot = clip.sentences(zero_shot_sentences(classes, template))
        self._prompted = clip.sentences([f"{clean_name(name)}." for name in classes])
        # Every client's evaluation and labelling ask for the features of the same few contexts again.
        self._remembered = lru_cache(maxsize=64)(self._class_features_of_bytes)

    def image_features(self, tokens: Tensor, visual: Tensor | None = None) -> Tensor:
        """f(x), (B, d), of length one."""
        with self.arithmetic.towers():
            features = self.clip.vision(tokens, () if visual is None else tuple(visual))
        return F.normalize(features.float(), dim=-1)

    def class_features(self, context: Tensor | None) -> Tensor:
        """w_c, (C, d), of length one; None takes the hand-written sentences."""
        sentences = self._zero_shot if context is None else self._prompted
        with self.arithmetic.towers():
            features = self.clip.text(sentences, context)
        return F.normalize(features.float(), dim=-1)

    def logits(self, image_features: Tensor, class_features: Tensor) -> Tensor:
        return self.clip.logit_scale * image_features @ class_features.T

    @torch.inference_mode()
    def all_image_features(self, images: ClientImages, visual: Array | None) -> Tensor:
        """f(x) of all of a client's images."""
        prompt = None if visual is None else self.tensor(visual)
        parts = [self.image_features(tokens.to(self.device), prompt) for tokens in images.batches()]
        return torch.cat(parts) if parts else torch.empty(0, device=self.device)

    def frozen_class_features(self, text: Array | None) -> Tensor:
        """w_c without gradient, remembered."""
        return self._remembered(None if text is None else (text.tobytes(), text.shape))

    @torch.inference_mode()
    def _class_features_of_bytes(self, text: tuple[bytes, tuple[int, ...]] | None) -> Tensor:
        if text is None:
            return self.class_features(None)
        data, shape = text
        return self.class_features(self.tensor(np.frombuffer(data, np.float32).reshape(shape)))

    def tensor(self, array: Array) -> Tensor:
        return torch.tensor(array, device=self.device)

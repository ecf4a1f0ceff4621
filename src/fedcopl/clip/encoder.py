"""A frozen CLIP over one list of classes: images and prompts in, logits out. Shared by all clients of a process."""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConfigError
from .device import Arithmetic
from .frozen_clip import Clip
from .towers import Sentences

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
        self._names = [clean_name(name) for name in classes]
        self._prompted = clip.sentences([f"{name}." for name in self._names])

    def refuse_long_names(self, context: int) -> None:
        """Say which class name leaves no room for the context, before anybody trains."""
        for name, row in zip(self._names, self.clip.tokenizer.rows([f"{name}." for name in self._names]), strict=True):
            if len(row) + context > self.clip.positions:
                raise ConfigError(
                    f"class {name!r}: takes {len(row)} tokens, with {context} context vectors more than the "
                    f"{self.clip.positions} that {self.clip.name} reads; shorten it, or lower model.text_prompts"
                )

    def raw_image_features(self, tokens: Tensor, visual: Tensor | None = None) -> Tensor:
        """The vision tower's output, (B, d), not normalised."""
        with self.arithmetic.towers():
            features: Tensor = self.clip.vision(tokens, () if visual is None else tuple(visual))
        return features.float()

    def image_features(self, tokens: Tensor, visual: Tensor | None = None) -> Tensor:
        """f(x), (B, d), of length one."""
        return F.normalize(self.raw_image_features(tokens, visual), dim=-1)

    def patch_features(self, tokens: Tensor) -> Tensor:
        """The patches of each image in the space of the classes, (B, M, d), of length one."""
        with self.arithmetic.towers():
            features = self.clip.vision.patch_features(tokens)
        return F.normalize(features.float(), dim=-1)

    def class_features(self, context: Tensor | None) -> Tensor:
        """w_c, (C, d), of length one; None takes the hand-written sentences."""
        return self._hand_written if context is None else self._encode_sentences(self._prompted, context)

    @cached_property
    def _hand_written(self) -> Tensor:
        # Not in inference mode, whoever asks first: others train with it.
        with torch.inference_mode(False), torch.no_grad():
            return self._encode_sentences(self._zero_shot, None)

    def _encode_sentences(self, sentences: Sentences, context: Tensor | None) -> Tensor:
        with self.arithmetic.towers():
            features = self.clip.text(sentences, context)
        return F.normalize(features.float(), dim=-1)

    def logits(self, image_features: Tensor, class_features: Tensor) -> Tensor:
        return self.clip.logit_scale * image_features @ class_features.T

    def tensor(self, array: Array) -> Tensor:
        return torch.tensor(array, device=self.device)

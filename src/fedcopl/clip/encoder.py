"""A frozen CLIP over one list of classes: images and prompts in, logits out. Shared by all clients of a process."""

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConfigError
from .device import Arithmetic
from .frozen_clip import Clip
from .text_towers import Sentences
from .vision_tower import VisionTower
from .wording import Wording, clean_name

Array = NDArray[np.float32]
CHUNK_TOKENS = 1000  # tokens in one matrix product: more is no faster and takes memory, far fewer is slower


class Encoder:
    """z_c(x) = s cos(f(x), w_c), with or without prompts."""

    def __init__(self, clip: Clip, classes: Sequence[str], template: str, arithmetic: Arithmetic):
        self.clip = clip.to(arithmetic.device)
        self.arithmetic, self.device, self.classes = arithmetic, arithmetic.device, len(classes)
        wordings = Wording.of(template).sentences(classes)
        self._worded = [len(wording) for wording in wordings]
        self._zero_shot = clip.sentences([sentence for wording in wordings for sentence in wording])
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

    def chunks(self, tokens: Tensor) -> Sequence[Tensor]:
        """Split a batch into parts that are encoded one after another, so that less memory is in use.

        For inference on a CPU; a GPU, and a ResNet, take the batch whole.
        """
        if self.device.type != "cpu" or not isinstance(self.clip.vision, VisionTower):
            return (tokens,)
        return tokens.tensor_split(math.ceil(tokens.shape[0] * tokens.shape[1] / CHUNK_TOKENS))

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
            features = self._encode_sentences(self._zero_shot, None)
            return features if len(features) == self.classes else self._middles(features)

    def _middles(self, features: Tensor) -> Tensor:
        """Where a class has several sentences, it is their mean direction, as CLIP's authors do it."""
        return F.normalize(torch.stack([own.mean(0) for own in features.split(self._worded)]), dim=-1)

    def _encode_sentences(self, sentences: Sentences, context: Tensor | None) -> Tensor:
        with self.arithmetic.towers():
            features = self.clip.text(sentences, context)
        return F.normalize(features.float(), dim=-1)

    def logits(self, image_features: Tensor, class_features: Tensor) -> Tensor:
        return self.clip.logit_scale * image_features @ class_features.T

    def tensor(self, array: Array) -> Tensor:
        return torch.tensor(array, device=self.device)

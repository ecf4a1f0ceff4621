"""A frozen CLIP over one list of classes: images and prompts in, logits out. Shared by all clients of a process."""

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
from .in_company import NEVER, alike_from
from .text_towers import CausalText, Sentences
from .vision_tower import VisionTower
from .wording import Wording, clean_name

Array = NDArray[np.float32]
ROWS_AT_ONCE = 1000  # tokens in a product of matrices: with more it is no faster, with far fewer it is slower


def lots_of(rows: int) -> int:
    """Into how many lots so many rows are divided."""
    return -(-rows // ROWS_AT_ONCE)


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

    def lots(self, tokens: Tensor) -> Sequence[Tensor]:
        """The same images, few at a time where that changes no bit of what the tower makes of them.

        For looks, of which nothing is kept for the way back: then only a lot is in memory.
        """
        many = lots_of(tokens.shape[0] * tokens.shape[1]) if isinstance(self.clip.vision, VisionTower) else 1
        is_alike = many > 1 and len(tokens) // many >= self._alike_from
        return tokens.tensor_split(many) if is_alike else (tokens,)

    def image_features(self, tokens: Tensor, visual: Tensor | None = None) -> Tensor:
        """f(x), (B, d), of length one."""
        return F.normalize(self.raw_image_features(tokens, visual), dim=-1)

    def image_features_of_each(self, tokens: Sequence[Tensor], visual: Sequence[Tensor | None]) -> list[Tensor]:
        """The same of several clients' images, each with the bits that it has alone; all have prompts or none has."""
        tower, prompts = self.clip.vision, [() if own is None else tuple(own) for own in visual]
        rows = [len(level) for levels in prompts for level in levels[:1]]
        if isinstance(tower, VisionTower) and self._share(tokens, tokens[0].shape[1], *rows):
            features = tower.of_each(tokens, prompts, self._alike_from)
            return [*F.normalize(features.float(), dim=-1).split([len(own) for own in tokens])]
        return [self.image_features(*own) for own in zip(tokens, visual, strict=True)]

    def _share(self, lots: Sequence[Tensor], *rows: int) -> bool:
        """Whether there are several, whose rows in a product, so many each, have the same bits in any company."""
        return len(lots) > 1 and min(rows) >= self._alike_from

    @cached_property
    def _alike_from(self) -> int:
        if self.device.type != "cpu" or self.arithmetic.precision != "fp32":
            return NEVER
        return max(alike_from(self.clip.vision), alike_from(self.clip.text))

    def patch_features(self, tokens: Tensor) -> Tensor:
        """The patches of each image in the space of the classes, (B, M, d), of length one."""
        with self.arithmetic.towers():
            features = self.clip.vision.patch_features(tokens)
        return F.normalize(features.float(), dim=-1)

    def class_features(self, context: Tensor | None) -> Tensor:
        """w_c, (C, d), of length one; None takes the hand-written sentences."""
        return self._hand_written if context is None else self._encode_sentences(self._prompted, context)

    def class_features_of_each(self, contexts: Sequence[Tensor]) -> list[Tensor]:
        """The same for several contexts, each with the bits that it has alone."""
        tower = self.clip.text
        if isinstance(tower, CausalText) and self._share(contexts, self.classes, *map(len, contexts)):
            return [*F.normalize(tower.of_each(self._prompted, contexts), dim=-1)]
        return [self.class_features(context) for context in contexts]

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

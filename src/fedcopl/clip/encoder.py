"""Encoding images and classes with a frozen CLIP, and the embedded patches (tokens) of a client's images."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from .vision_towers import VisionTower
from .wording import Wording, clean_name

Array = NDArray[np.float32]
CHUNK_TOKENS = 1000  # tokens in one matrix product: more take memory and are no faster, far fewer are slower


class Encoder:
    """A frozen CLIP with a list of classes: z_c(x) = s cos(f(x), w_c), with or without prompts."""

    def __init__(self, clip: Clip, classes: Sequence[str], template: str, arithmetic: Arithmetic):
        self.clip = clip.to(arithmetic.device)
        self.arithmetic, self.device, self.classes = arithmetic, arithmetic.device, len(classes)
        texts_by_class = Wording.of(template).sentences(classes)
        self._text_counts = [len(texts) for texts in texts_by_class]
        self._zero_shot_texts = clip.sentences([text for texts in texts_by_class for text in texts])
        self._names = [clean_name(name) for name in classes]
        self._prompted_texts = clip.sentences([f"{name}." for name in self._names])

    def refuse_long_names(self, context: int) -> None:
        """Raise ConfigError for a class name that leaves no room for the context vectors."""
        for name, row in zip(self._names, self.clip.tokenizer.rows([f"{name}." for name in self._names]), strict=True):
            if len(row) + context > self.clip.context_length:
                raise ConfigError(
                    f"class {name!r}: its {len(row)} tokens and {context} context vectors are more than the "
                    f"{self.clip.context_length} tokens of {self.clip.name}; shorten it, or lower model.text_prompts"
                )

    def raw_image_features(self, tokens: Tensor, visual: Tensor | None = None) -> Tensor:
        """Return the vision tower's output, (B, d), not normalised; `visual` are prompts (levels, P, width)."""
        with self.arithmetic.autocast():
            features: Tensor = self.clip.vision(tokens, () if visual is None else tuple(visual))
        return features.float()

    def chunks(self, tokens: Tensor) -> Sequence[Tensor]:
        """Split a batch for inference on a CPU, which saves memory; a GPU or a ResNet encodes the batch at once."""
        if self.device.type != "cpu" or not isinstance(self.clip.vision, VisionTower):
            return (tokens,)
        return tokens.tensor_split(math.ceil(tokens.shape[0] * tokens.shape[1] / CHUNK_TOKENS))

    def image_features(self, tokens: Tensor, visual: Tensor | None = None) -> Tensor:
        """Return f(x), (B, d), of norm 1."""
        return F.normalize(self.raw_image_features(tokens, visual), dim=-1)

    def patch_features(self, tokens: Tensor) -> Tensor:
        """Return the features of each image's M patches in the space of the class features, (B, M, d), of norm 1."""
        with self.arithmetic.autocast():
            features = self.clip.vision.patch_features(tokens)
        return F.normalize(features.float(), dim=-1)

    def class_features(self, context: Tensor | None) -> Tensor:
        """Return w_c, (C, d), of norm 1, of prompts with learnt context vectors, or of the zero-shot sentences."""
        return self._zero_shot_features if context is None else self._encode_sentences(self._prompted_texts, context)

    @cached_property
    def _zero_shot_features(self) -> Tensor:
        """Features of the zero-shot sentences; several of a class are averaged and normalised, as in CLIP's paper."""
        with torch.inference_mode(False), torch.no_grad():  # an inference tensor could not be used in training
            features = self._encode_sentences(self._zero_shot_texts, None)
            if len(features) == self.classes:
                return features
            means = [of_class.mean(0) for of_class in features.split(self._text_counts)]
            return F.normalize(torch.stack(means), dim=-1)

    def _encode_sentences(self, sentences: Sentences, context: Tensor | None) -> Tensor:
        with self.arithmetic.autocast():
            features = self.clip.text(sentences, context)
        return F.normalize(features.float(), dim=-1)

    def logits(self, image_features: Tensor, class_features: Tensor) -> Tensor:
        """Return z = s cos(f, w), (B, C), of features of norm 1."""
        return self.clip.logit_scale * image_features @ class_features.T

    def tensor(self, array: Array) -> Tensor:
        """Copy an array to the device of the encoder."""
        return torch.tensor(array, device=self.device)


ENCODE_BATCH = 256  # fixed, not a setting: the last bits of a matrix product may depend on its shape
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class TokenStore:
    """Tokens of a data set's images at the input of the first block, which do not depend on prompts.

    They are embedded once and kept if they fit into `memory`, otherwise embedded from the pixels on every access.
    Keeping them saves little time for a vision transformer, and a lot for a ResNet.
    """

    clip: Clip
    pixels: NDArray[np.uint8]  # (n, 3, side, side)
    memory: float = math.inf  # bytes available for tokens or features of these images
    tokens: Tensor | None = None  # (n, N, width), on the CPU

    @classmethod
    def of(cls, clip: Clip, pixels: NDArray[np.uint8], memory: float) -> "TokenStore":
        """Return a store that keeps the tokens if they take at most `memory` bytes."""
        store = cls(clip, pixels, memory)
        if not len(pixels) or store[np.arange(1)].nbytes * len(pixels) > memory:
            return store
        return replace(store, tokens=torch.cat([store[rows] for rows in _in_batches(np.arange(len(pixels)))]))

    @torch.no_grad()
    def __getitem__(self, rows: Rows) -> Tensor:
        """Return the tokens of these rows, (n, N, width), on the CPU."""
        if self.tokens is not None:
            return self.tokens[torch.from_numpy(rows)]
        # Small batches on a CPU: the tokens of an image must not depend on the other images of the batch.
        clip = self.clip
        size = clip.vision.embed_batch if clip.device.type == "cpu" else ENCODE_BATCH
        batches = (torch.from_numpy(clip.preprocess.scale(self.pixels[batch])) for batch in _in_batches(rows, size))
        return torch.cat([clip.vision.embed(pixels.to(clip.device)).cpu() for pixels in batches])


@dataclass(frozen=True)
class ClientImages:
    """One client's rows of a token store."""

    store: TokenStore
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, index: Rows) -> "ClientImages":
        """Return the images at these positions within the client."""
        return ClientImages(self.store, self.rows[index])

    @property
    def memory(self) -> float:
        """This client's share of the store's memory, in bytes."""
        return self.store.memory * len(self.rows) / max(len(self.store.pixels), 1)

    def tokens(self, index: Rows) -> Tensor:
        """Return the tokens of the images at these positions within the client."""
        return self.store[self.rows[index]]

    def batches(self) -> Iterator[Tensor]:
        """Yield the tokens of all images in batches of `ENCODE_BATCH`."""
        return (self.store[rows] for rows in _in_batches(self.rows))


def _in_batches(rows: Rows, size: int = ENCODE_BATCH) -> Iterator[Rows]:
    return (rows[start : start + size] for start in range(0, len(rows), size))

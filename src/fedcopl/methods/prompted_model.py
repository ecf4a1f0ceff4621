"""A method on a frozen CLIP, and its image features; features that do not change are computed once."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm.holdout import evenly_spaced
from ..clip.encoder import ENCODE_BATCH, ClientImages, Encoder
from ..federation.learner import Prompts as Prompts
from .base import Method, NamedTensors, in_double
from .prompts import kind_of

_CACHE_BYTES = 128 * 2**20  # for class features: of all clients of a small model, or of 64 of a large one
_COMPARED_IMAGES = 64  # the standard error of a share is then at most six per cent
Key = tuple[tuple[str, bytes, tuple[int, ...]], ...]
"""A cache key: name, bytes and shape of each array."""


class _DeclaredArrays(Mapping[str, Tensor]):
    """The arrays that a method declares as `image_arrays` or `class_arrays`, the keys of its cached features.

    Raises:
        LookupError: Another array is used, also by `in` and `get`, which would behave as if it did not exist.
    """

    def __init__(self, params: NamedTensors, method: Method, declaration: str):
        self._names: tuple[str, ...] = getattr(method, declaration)
        self._params, self._declaration = params, f"{type(method).__name__}.{declaration}"

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise LookupError(
                f"{self._declaration} does not declare {name!r}: add it, or features of another {name!r} are reused"
            )
        return self._params[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self._params)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class PromptedModel:
    """A method on a frozen CLIP, shared by all clients of a process, with a cache of class features.

    Raises:
        ConfigError: A class name leaves no room for the longest of the method's text prompts.
    """

    def __init__(self, method: Method, encoder: Encoder):
        self.method, self.encoder = method, encoder
        shapes = method.shapes(encoder.clip, encoder.classes)
        encoder.refuse_long_names(
            max((shape[0] for name, shape in shapes.items() if kind_of(name) == "text"), default=0)
        )
        self._class_features: OrderedDict[Key, Tensor] = OrderedDict()  # least recently used first
        self._cached_bytes = 0

    def params(self, prompts: Prompts) -> dict[str, Tensor]:
        """Return arrays as tensors on the device of the encoder."""
        return {name: self.encoder.tensor(value) for name, value in prompts.items()}

    @torch.inference_mode()
    def cached_class_features(self, prompts: Prompts) -> Tensor:
        """Return the class features without gradient, from the cache if possible."""
        key = key_of(prompts, self.method.class_arrays)
        cache = self._class_features
        if key not in cache:
            cache[key] = self.class_features(self.params({name: prompts[name] for name, _, _ in key}))
            self._cached_bytes += _entry_bytes(key, cache[key])
            while self._cached_bytes > _CACHE_BYTES and len(cache) > 1:
                self._cached_bytes -= _entry_bytes(*cache.popitem(last=False))
        cache.move_to_end(key)
        return cache[key]

    def image_features(self, frozen: Tensor, params: NamedTensors) -> Tensor:
        """Return the image features of a batch, (B, ...)."""
        return self.method.image_features(self.encoder, frozen, _DeclaredArrays(params, self.method, "image_arrays"))

    def class_features(self, params: NamedTensors) -> Tensor:
        """Return the class features, with gradient in training."""
        return self.method.class_features(self.encoder, _DeclaredArrays(params, self.method, "class_arrays"))


def _entry_bytes(key: Key, features: Tensor) -> int:
    return features.nbytes + sum(len(data) for _, data, _ in key)


def key_of(prompts: Prompts, names: Sequence[str]) -> Key:
    """Return a cache key from the values of some arrays."""
    return tuple((name, prompts[name].tobytes(), prompts[name].shape) for name in names if name in prompts)


class FeatureExtractor:
    """Computes features and logits of some images by a method; the output of frozen layers is computed once."""

    def __init__(self, model: PromptedModel, images: ClientImages):
        self._model, self._images = model, images
        self._last: tuple[Key, list[Tensor]] | None = None  # batches of features by the arrays last used
        self._zero_shot: list[Tensor] | None = None  # batches of zero-shot CLIP's features

    def __len__(self) -> int:
        return len(self._images)

    @torch.inference_mode()
    def effect_of(self, prompts: Prompts) -> tuple[int, float | None, float]:
        """Compare prompts with zero-shot CLIP on at most 64 evenly spaced images.

        Zero-shot features of all images are computed and kept, because the first labels need them.

        Returns:
            The number of images, the mean cosine of their features with and without prompts (None if the method's
            features have another shape), and the share of images with the same prediction.
        """
        if not len(self):
            return 0, None, 1.0
        index = evenly_spaced(len(self), _COMPARED_IMAGES)
        sample = FeatureExtractor(self._model, self._images.subset(index))
        zero_shot_logits = self.zero_shot_logits()[torch.from_numpy(index)]
        unchanged = sample.logits(prompts).argmax(-1) == zero_shot_logits.argmax(-1)
        prompted = torch.cat(sample.features(self._model.method.inference_prompts(prompts)))
        zero_shot = self.zero_shot_features_of(index)
        has_cosine = prompted.shape == zero_shot.shape
        cosine = F.cosine_similarity(prompted, zero_shot).double().mean().item() if has_cosine else None
        return len(index), cosine, unchanged.double().mean().item()

    def frozen_features(self, index: NDArray[np.int64]) -> Tensor:
        """Return the output of the frozen layers for the images `index`, on the device of the encoder."""
        if self._cached is not None:
            return self._cached[torch.from_numpy(index)]
        return self._frozen(self._images.tokens(index))

    @cached_property
    def _cached(self) -> Tensor | None:
        """The output of the frozen layers for all images; None if it is not cached, or too large for the memory."""
        if not self._model.method.caches_frozen or not len(self):
            return None
        parts: list[Tensor] = []
        for tokens in self._images.batches():
            parts.append(self._frozen(tokens))
            if parts[0][0].nbytes * len(self) > self._images.memory:
                return None
        return torch.cat(parts)

    @torch.no_grad()
    def _frozen(self, tokens: Tensor) -> Tensor:
        method, encoder = self._model.method, self._model.encoder
        tokens = tokens.to(encoder.device)
        if not method.caches_frozen:
            return method.frozen_features(encoder, tokens)
        return torch.cat([method.frozen_features(encoder, chunk) for chunk in encoder.chunks(tokens)])

    def all_frozen_features(self) -> Tensor:
        """Return the output of the frozen layers for all images."""
        return torch.cat(list(self._frozen_batches())) if self._cached is None else self._cached

    def _frozen_batches(self) -> Iterable[Tensor]:
        return map(self._frozen, self._images.batches()) if self._cached is None else self._cached.split(ENCODE_BATCH)

    @torch.inference_mode()
    def features(self, prompts: Prompts) -> list[Tensor]:
        """Return the features of all images in batches; cached until an array of `image_arrays` changes."""
        key = key_of(prompts, self._model.method.image_arrays)
        if self._last is None or self._last[0] != key:
            params, caches = self._model.params(prompts), self._model.method.caches_frozen
            batches: list[Tensor] = []
            for frozen in self._frozen_batches():
                chunks = (frozen,) if caches else self._model.encoder.chunks(frozen)  # cached output is small
                batches += [self._model.image_features(chunk, params) for chunk in chunks]
            self._last = key, batches
        return self._last[1]

    @torch.inference_mode()
    def logits(self, prompts: Prompts) -> Tensor:
        """Return the logits of all images, (n, C), on the CPU."""
        method, encoder = self._model.method, self._model.encoder
        if not len(self):
            return torch.empty(0, encoder.classes)
        prompts = method.inference_prompts(prompts)
        classes, params = self._model.cached_class_features(prompts), self._model.params(prompts)
        return torch.cat(
            [method.inference_logits(encoder, images, classes, params) for images in self.features(prompts)]
        ).cpu()

    @torch.inference_mode()
    def zero_shot_logits(self) -> Tensor:
        """Return the logits of zero-shot CLIP, (n, C), on the CPU."""
        encoder = self._model.encoder
        if not len(self):
            return torch.empty(0, encoder.classes)
        classes = encoder.class_features(None)
        return torch.cat([encoder.logits(images, classes) for images in self.zero_shot_features()]).cpu()

    @torch.inference_mode()
    def zero_shot_features(self) -> list[Tensor]:
        """Return the image features of zero-shot CLIP in batches, computed once."""
        if self._zero_shot is None:
            encoder = self._model.encoder
            cached = None if self._cached is None else self._model.method.zero_shot_features(self._cached)
            self._zero_shot = [] if cached is None else [cached]
            for tokens in self._images.batches() if cached is None else ():
                self._zero_shot += map(encoder.image_features, encoder.chunks(tokens.to(encoder.device)))
        return self._zero_shot

    def zero_shot_features_of(self, index: NDArray[np.int64]) -> Tensor:
        """Return zero-shot CLIP's features of the images `index`, (m, d), on the device of the encoder."""
        return torch.cat(self.zero_shot_features())[torch.from_numpy(index)]

    def zero_shot_array(self) -> NDArray[np.float64]:
        """Return zero-shot CLIP's features of all images as a float64 array, (n, d)."""
        if not len(self):
            return np.zeros((0, self._model.encoder.clip.feature_size))
        return in_double(torch.cat(self.zero_shot_features()))

    def forget(self) -> None:
        """Drop the cached features by the last arrays, which training makes obsolete."""
        self._last = None

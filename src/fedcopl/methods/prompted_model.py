"""A method on a frozen CLIP, and its features of images; parts that do not change are computed once."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm.holdout import evenly_spaced
from ..clip.encoder import ENCODE_BATCH, ClientImages, Encoder
from ..federation.learner import Prompts as Prompts
from .base import Method, NamedTensors
from .prompts import kind_of

_CLASS_SIDES = 128 * 2**20  # bytes of cached class features: those of all clients of a small model, 64 of a large one
_COMPARED_IMAGES = 64  # a share is then known to a few per cent
Key = tuple[tuple[str, bytes, tuple[int, ...]], ...]


class _Declared(Mapping[str, Tensor]):
    """The arrays that a method declares for one side, and no others, because results are cached by their values.

    Raises:
        LookupError: Another name is used, also with `in` and `get`, which would behave as if the array did not exist.
    """

    def __init__(self, params: NamedTensors, method: Method, side: str):
        self._names: tuple[str, ...] = getattr(method, side)
        self._params, self._side = params, f"{type(method).__name__}.{side}"

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise LookupError(
                f"{self._side} does not declare {name!r}: add it, or cached results of another {name!r} would be used"
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
        self._kept: OrderedDict[Key, Tensor] = OrderedDict()  # class features, least recently used first
        self._bytes = 0  # of the cache

    def params(self, prompts: Prompts) -> dict[str, Tensor]:
        """Return arrays as tensors on the device."""
        return {name: self.encoder.tensor(value) for name, value in prompts.items()}

    @torch.inference_mode()
    def classes(self, prompts: Prompts) -> Tensor:
        """Return the class features without gradient, from the cache if possible."""
        key = key_of(prompts, self.method.of_classes)
        if key not in self._kept:
            declared = {name: prompts[name] for name, _, _ in key}
            self._kept[key] = self.classes_of(self.params(declared))
            self._bytes += _size(key, self._kept[key])
            while self._bytes > _CLASS_SIDES and len(self._kept) > 1:
                self._bytes -= _size(*self._kept.popitem(last=False))
        self._kept.move_to_end(key)
        return self._kept[key]

    def images(self, frozen: Tensor, params: NamedTensors) -> Tensor:
        """Return the image features of a batch, from the arrays that the method declares for them."""
        return self.method.images(self.encoder, frozen, _Declared(params, self.method, "of_images"))

    def classes_of(self, params: NamedTensors) -> Tensor:
        """Return the class features with gradient, from the arrays that the method declares for them."""
        return self.method.classes(self.encoder, _Declared(params, self.method, "of_classes"))


def _size(key: Key, classes: Tensor) -> int:
    return classes.nbytes + sum(len(data) for _, data, _ in key)


def key_of(prompts: Prompts, names: Sequence[str]) -> Key:
    """Return a cache key from the values of some arrays."""
    return tuple((name, prompts[name].tobytes(), prompts[name].shape) for name in names if name in prompts)


class ImageSide:
    """The features of some images by a method; parts that training does not change are computed once."""

    def __init__(self, model: PromptedModel, images: ClientImages):
        self._model, self._images = model, images
        self._last: tuple[Key, list[Tensor]] | None = None  # image features with the arrays last used
        self._plain: list[Tensor] | None = None  # image features of zero-shot CLIP

    def __len__(self) -> int:
        return len(self._images)

    @torch.inference_mode()
    def effect_of(self, prompts: Prompts) -> tuple[int, float | None, float]:
        """Compare prompts with zero-shot CLIP on at most 64 evenly spaced images.

        Zero-shot features of all images are computed and kept, because the first labels need them.

        Returns:
            The number of images compared, the mean cosine of the features with and without prompts (None where a
            method has other features), and the share of the images with the same prediction.
        """
        if not len(self):
            return 0, None, 1.0
        index = evenly_spaced(len(self), _COMPARED_IMAGES)
        rows, some = torch.from_numpy(index), ImageSide(self._model, self._images.subset(index))
        same = some.logits(prompts).argmax(-1) == self.zero_shot_logits()[rows].argmax(-1)
        prompted = torch.cat(some.features(self._model.method.inference_prompts(prompts)))
        plain = self.plain_part(index)
        has_cosine = prompted.shape == plain.shape
        cosine = F.cosine_similarity(prompted, plain).double().mean().item() if has_cosine else None
        return len(index), cosine, same.double().mean().item()

    def frozen(self, index: NDArray[np.int64]) -> Tensor:
        """Return the output of the frozen image layers for the images `index`, on the device of the encoder."""
        if self._cached is not None:
            return self._cached[torch.from_numpy(index)]
        return self._frozen(self._images.tokens(index))

    @cached_property
    def _cached(self) -> Tensor | None:
        """Output of the frozen layers for all images; None if the method does not cache it or memory is short."""
        if not self._model.method.keeps_images or not len(self):
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
        if not method.keeps_images:
            return method.frozen(encoder, tokens)
        return torch.cat([method.frozen(encoder, chunk) for chunk in encoder.chunks(tokens)])

    def all_frozen(self) -> Tensor:
        """Return the output of the frozen layers for all images."""
        return torch.cat(list(self._frozen_batches())) if self._cached is None else self._cached

    def _frozen_batches(self) -> Iterator[Tensor]:
        if self._cached is not None:
            return iter(self._cached.split(ENCODE_BATCH))
        return (self._frozen(tokens) for tokens in self._images.batches())

    @torch.inference_mode()
    def features(self, prompts: Prompts) -> list[Tensor]:
        """Return the features of all images in batches; cached until an array of `of_images` changes."""
        key = key_of(prompts, self._model.method.of_images)
        if self._last is None or self._last[0] != key:
            params, keeps = self._model.params(prompts), self._model.method.keeps_images
            parts: list[Tensor] = []
            for frozen in self._frozen_batches():
                chunks = (frozen,) if keeps else self._model.encoder.chunks(frozen)  # these are features already
                parts += [self._model.images(chunk, params) for chunk in chunks]
            self._last = key, parts
        return self._last[1]

    @torch.inference_mode()
    def logits(self, prompts: Prompts) -> Tensor:
        """Return the logits of all images, (n, C), on the CPU."""
        method, encoder = self._model.method, self._model.encoder
        if not len(self):
            return torch.empty(0, encoder.classes)
        prompts = method.inference_prompts(prompts)
        classes, params = self._model.classes(prompts), self._model.params(prompts)
        return torch.cat([method.personal(encoder, images, classes, params) for images in self.features(prompts)]).cpu()

    @torch.inference_mode()
    def zero_shot_logits(self) -> Tensor:
        """Return the logits of zero-shot CLIP, (n, C), on the CPU."""
        encoder = self._model.encoder
        if not len(self):
            return torch.empty(0, encoder.classes)
        classes = encoder.class_features(None)
        return torch.cat([encoder.logits(images, classes) for images in self.plain_features()]).cpu()

    @torch.inference_mode()
    def plain_features(self) -> list[Tensor]:
        """Return the image features of zero-shot CLIP in batches, computed once."""
        if self._plain is None:
            method, encoder = self._model.method, self._model.encoder
            kept = None if self._cached is None else method.plain_images(self._cached)
            batches = self._images.batches() if kept is None else ()
            chunks = (chunk for tokens in batches for chunk in encoder.chunks(tokens.to(encoder.device)))
            encoded = [encoder.image_features(chunk) for chunk in chunks]
            self._plain = encoded if kept is None else [kept]
        return self._plain

    def plain_part(self, index: NDArray[np.int64]) -> Tensor:
        """Return the image features of zero-shot CLIP of some images, (m, d), on the device, for use in a loss."""
        return torch.cat(self.plain_features())[torch.from_numpy(index)]

    def plain_rows(self) -> NDArray[np.float64]:
        """Return the image features of zero-shot CLIP as one float64 array, (n, d)."""
        if not len(self):
            return np.zeros((0, self._model.encoder.clip.feature_size))
        return torch.cat(self.plain_features()).cpu().double().numpy()

    def forget(self) -> None:
        """Drop the features by the last arrays, which training makes obsolete."""
        self._last = None

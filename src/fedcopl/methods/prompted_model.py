"""A method on a frozen CLIP, and images as it reads them: what is frozen is computed once."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..clip.encoder import ENCODE_BATCH, ClientImages, Encoder
from ..federation.learner import Prompts as Prompts
from .base import Method, Named

CLASS_SIDES = 128 * 2**20  # bytes of class sides that are kept: all clients' of a small model, 64 of a large one
Key = tuple[tuple[str, bytes, tuple[int, ...]], ...]


class Declared(Mapping[str, Tensor]):
    """The arrays that one side of a method declares, and no others: what is computed from them is kept by their values.

    Raises:
        LookupError: for any other name; also for `in` and `get`, which would answer as if the array were not there.
    """

    def __init__(self, named: Named, method: Method, side: str):
        self._names: tuple[str, ...] = getattr(method, side)
        self._named, self._side = named, f"{type(method).__name__}.{side}"

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise LookupError(
                f"{self._side} does not name {name!r}: add it, or results would be of an earlier {name!r}"
            )
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self._named)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class PromptedModel:
    """A method on a frozen CLIP: what all clients of a process share. It remembers what it was asked last."""

    def __init__(self, method: Method, encoder: Encoder):
        self.method, self.encoder = method, encoder
        self._kept: OrderedDict[Key, Tensor] = OrderedDict()  # class sides, those used last at the end
        self._bytes = 0  # of all that is kept

    def named(self, prompts: Prompts) -> dict[str, Tensor]:
        return {name: self.encoder.tensor(value) for name, value in prompts.items()}

    def classes(self, prompts: Prompts) -> Tensor:
        """The class side without gradient; those of the last clients are kept, which are asked for again."""
        key = key_of(prompts, self.method.of_classes)
        if key not in self._kept:
            self._keep(key, self._classes_of(key))
        self._kept.move_to_end(key)
        return self._kept[key]

    def images(self, frozen: Tensor, named: Named) -> Tensor:
        """The image side of a batch, from the arrays that the method declares for it."""
        return self.method.images(self.encoder, frozen, Declared(named, self.method, "of_images"))

    def classes_of(self, named: Named) -> Tensor:
        """The class side, with gradient, from the arrays that the method declares for it."""
        return self.method.classes(self.encoder, Declared(named, self.method, "of_classes"))

    def _keep(self, key: Key, classes: Tensor) -> None:
        self._kept[key], self._bytes = classes, self._bytes + _size(key, classes)
        while self._bytes > CLASS_SIDES and len(self._kept) > 1:
            self._bytes -= _size(*self._kept.popitem(last=False))

    @torch.inference_mode()
    def _classes_of(self, key: Key) -> Tensor:
        return self.classes_of(self._arrays(key))

    def _arrays(self, key: Key) -> Named:
        return self.named({name: np.frombuffer(data, np.float32).reshape(shape) for name, data, shape in key})


def _size(key: Key, classes: Tensor) -> int:
    return classes.nbytes + sum(len(data) for _, data, _ in key)


def key_of(prompts: Prompts, names: Sequence[str]) -> Key:
    """What certain arrays say, as something to look up by."""
    return tuple((name, prompts[name].tobytes(), prompts[name].shape) for name in names if name in prompts)


class ImageSide:
    """Some images as a method reads them. What no training changes is computed once and kept."""

    def __init__(self, model: PromptedModel, images: ClientImages):
        self._model, self._images = model, images
        self._seen: tuple[Key, list[Tensor]] | None = None  # the image side under the last prompts
        self._plain: list[Tensor] | None = None  # and without any

    def __len__(self) -> int:
        return len(self._images)

    def part(self, rows: NDArray[np.int64]) -> "ImageSide":
        """Some of these images, which keep what is computed of them for themselves."""
        return ImageSide(self._model, self._images.part(rows))

    def at_home(self, prompts: Prompts) -> Prompts:
        """A client's model as it labels and is measured."""
        return self._model.method.at_home(prompts)

    def frozen(self, index: NDArray[np.int64]) -> Tensor:
        """The frozen part of some images, on the device."""
        if self._kept is not None:
            return self._kept[torch.from_numpy(index)]
        return self._frozen(self._images.tokens(index))

    @cached_property
    def _kept(self) -> Tensor | None:
        """The frozen part of all images, where it is worth keeping and there is memory for it."""
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
        """The frozen part of all images."""
        return torch.cat(list(self._frozen_batches())) if self._kept is None else self._kept

    def _frozen_batches(self) -> Iterator[Tensor]:
        if self._kept is not None:
            return iter(self._kept.split(ENCODE_BATCH))
        return (self._frozen(tokens) for tokens in self._images.batches())

    @torch.inference_mode()
    def features(self, prompts: Prompts) -> list[Tensor]:
        """The image side of all images, in batches; computed anew only when what it depends on has changed."""
        key = key_of(prompts, self._model.method.of_images)
        if self._seen is None or self._seen[0] != key:
            named = self._model.named(prompts)
            chunks = (chunk for frozen in self._frozen_batches() for chunk in self._chunks(frozen))
            self._seen = key, [self._model.images(chunk, named) for chunk in chunks]
        return self._seen[1]

    def _chunks(self, frozen: Tensor) -> Sequence[Tensor]:
        """The parts in which a batch is encoded; features that need no tower any more stay in one piece."""
        return (frozen,) if self._model.method.keeps_images else self._model.encoder.chunks(frozen)

    @torch.inference_mode()
    def logits(self, prompts: Prompts) -> Tensor:
        """z of all images, (n, C), on the CPU."""
        method, encoder = self._model.method, self._model.encoder
        if not len(self):
            return torch.empty(0, encoder.classes)
        prompts = method.at_home(prompts)
        classes, named = self._model.classes(prompts), self._model.named(prompts)
        return torch.cat([method.personal(encoder, images, classes, named) for images in self.features(prompts)]).cpu()

    @torch.inference_mode()
    def zero_shot_logits(self) -> Tensor:
        """Plain CLIP with the hand-written sentences, whatever the method; on the CPU."""
        encoder = self._model.encoder
        if not len(self):
            return torch.empty(0, encoder.classes)
        classes = encoder.class_features(None)
        return torch.cat([encoder.logits(images, classes) for images in self.plain_features()]).cpu()

    @torch.inference_mode()
    def plain_features(self) -> list[Tensor]:
        """The image side of plain CLIP, in batches; kept, as no training changes it and it is small."""
        if self._plain is None:
            method, encoder = self._model.method, self._model.encoder
            kept = None if self._kept is None else method.plain_images(self._kept)
            batches = self._images.batches() if kept is None else ()
            chunks = (chunk for tokens in batches for chunk in encoder.chunks(tokens.to(encoder.device)))
            encoded = [encoder.image_features(chunk) for chunk in chunks]
            self._plain = encoded if kept is None else [kept]
        return self._plain

    def plain_rows(self) -> NDArray[np.float64]:
        """The same in one array, (n, d), for the algorithm, which computes in float64."""
        if not len(self):
            return np.zeros((0, self._model.encoder.clip.feature_size))
        return torch.cat(self.plain_features()).cpu().double().numpy()

    def forget(self) -> None:
        """Drop what is only of use until the next training."""
        self._seen = None

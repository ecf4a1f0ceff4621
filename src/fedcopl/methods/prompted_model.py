"""A method on a frozen CLIP, and images as it reads them: what is frozen is computed once."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..clip.encoder import Encoder
from ..clip.image_tokens import ENCODE_BATCH, ClientImages
from ..federation.learner import Prompts as Prompts
from .base import Method, Named

CLASS_SIDES = 128 * 2**20  # bytes of class sides that are kept: all clients' of a small model, 64 of a large one
Key = tuple[tuple[str, bytes, tuple[int, ...]], ...]


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

    def look_up(self, models: Sequence[Prompts]) -> None:
        """Work out the class sides of several models in one go, so that they are at hand when asked for."""
        keys = dict.fromkeys(key_of(prompts, self.method.of_classes) for prompts in models)
        missing = [key for key in keys if key not in self._kept]
        with torch.inference_mode():
            found = self.classes_of_each([self._arrays(key) for key in missing])
        for key, classes in zip(missing, found, strict=True):
            self._keep(key, classes)

    def images_of_each(self, frozen: Sequence[Tensor], named: Sequence[Named]) -> list[Tensor]:
        """The image sides of several clients' batches; a method with a way of its own is asked one by one."""
        if type(self.method).images is Method.images:
            return self.encoder.image_features_of_each(frozen, [own["visual"] for own in named])
        return [self.method.images(self.encoder, *own) for own in zip(frozen, named, strict=True)]

    def classes_of_each(self, named: Sequence[Named]) -> list[Tensor]:
        """The class sides of several clients' models, with gradient where there is one."""
        if type(self.method).classes is Method.classes:
            return self.encoder.class_features_of_each([own["text"] for own in named])
        return [self.method.classes(self.encoder, own) for own in named]

    def _keep(self, key: Key, classes: Tensor) -> None:
        self._kept[key], self._bytes = classes, self._bytes + _size(key, classes)
        while self._bytes > CLASS_SIDES and len(self._kept) > 1:
            self._bytes -= _size(*self._kept.popitem(last=False))

    @torch.inference_mode()
    def _classes_of(self, key: Key) -> Tensor:
        return self.method.classes(self.encoder, self._arrays(key))

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
        return torch.cat([method.frozen(encoder, lot) for lot in encoder.lots(tokens)])

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
        method, encoder = self._model.method, self._model.encoder
        key = key_of(prompts, method.of_images)
        if self._seen is None or self._seen[0] != key:
            named = self._model.named(prompts)
            lots = (lot for frozen in self._frozen_batches() for lot in self._lots(frozen))
            self._seen = key, [method.images(encoder, lot, named) for lot in lots]
        return self._seen[1]

    def _lots(self, frozen: Tensor) -> Sequence[Tensor]:
        """A batch as it is looked at; where what is kept of images needs no tower any more, in one piece."""
        return (frozen,) if self._model.method.keeps_images else self._model.encoder.lots(frozen)

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
            lots = (lot for tokens in batches for lot in encoder.lots(tokens.to(encoder.device)))
            encoded = [encoder.image_features(lot) for lot in lots]
            self._plain = encoded if kept is None else [kept]
        return self._plain

    @property
    def is_small_and_unseen(self) -> bool:
        """Whether these images fit into one batch, and plain CLIP has not looked at them yet."""
        return self._plain is None and self._kept is None and 0 < len(self) <= ENCODE_BATCH

    @staticmethod
    @torch.inference_mode()
    def see_plainly(sides: Sequence["ImageSide"]) -> None:
        """Let plain CLIP look at several clients' few images in one go, so that what it sees is at hand."""
        encoder = sides[0]._model.encoder
        tokens = [next(side._images.batches()).to(encoder.device) for side in sides]
        for side, features in zip(sides, encoder.image_features_of_each(tokens, [None] * len(sides)), strict=True):
            side._plain = [features]

    def plain_rows(self) -> NDArray[np.float64]:
        """The same in one array, (n, d), for the algorithm, which computes in float64."""
        if not len(self):
            return np.zeros((0, self._model.encoder.clip.feature_size))
        return torch.cat(self.plain_features()).cpu().double().numpy()

    def forget(self) -> None:
        """Drop what is only of use until the next training."""
        self._seen = None

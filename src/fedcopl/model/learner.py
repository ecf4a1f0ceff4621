"""One client's learning in torch: its probabilities, its local training, and its exam."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config import RunConfig
from ..core.schedule import cosine
from ..core.select import Selection
from ..rng import stream
from .encoder import Array, Encoder
from .images import ENCODE_BATCH, ClientImages
from .methods.base import Method, Named, as_numpy, loss_on

Prompts = Mapping[str, Array]
Key = tuple[tuple[str, bytes, tuple[int, ...]], ...]


class PromptedModel:
    """A method on a frozen CLIP: what all clients of a process share. It remembers what it was asked last."""

    def __init__(self, method: Method, encoder: Encoder):
        self.method, self.encoder = method, encoder
        # Evaluation here and everywhere asks for the same few clients' class features again.
        self._classes = lru_cache(maxsize=64)(self._classes_of)

    def named(self, prompts: Prompts) -> dict[str, Tensor]:
        return {name: self.encoder.tensor(value) for name, value in prompts.items()}

    def classes(self, prompts: Prompts) -> Tensor:
        """The class side without gradient."""
        return self._classes(key_of(prompts, self.method.of_classes))

    @torch.inference_mode()
    def _classes_of(self, key: Key) -> Tensor:
        arrays = {name: np.frombuffer(data, np.float32).reshape(shape) for name, data, shape in key}
        return self.method.classes(self.encoder, self.named(arrays))


def key_of(prompts: Prompts, names: Sequence[str]) -> Key:
    """What certain arrays say, as something to look up by."""
    return tuple((name, prompts[name].tobytes(), prompts[name].shape) for name in names)


class ImageSide:
    """Some images as a method reads them. What no training changes is computed once and kept."""

    def __init__(self, model: PromptedModel, images: ClientImages):
        self._model, self._images = model, images
        self._kept: Tensor | None = None
        self._seen: tuple[Key, list[Tensor]] | None = None  # the image side under the last prompts

    def __len__(self) -> int:
        return len(self._images)

    def frozen(self, index: NDArray[np.int64]) -> Tensor:
        """The frozen part of some images, on the device."""
        if self._model.method.keeps_images:
            return self.all_frozen()[torch.from_numpy(index)]
        return self._images.tokens(index).to(self._model.encoder.device)

    @torch.no_grad()
    def all_frozen(self) -> Tensor:
        if self._kept is None:
            self._kept = torch.cat(list(self._frozen_batches()))
        return self._kept

    @torch.no_grad()
    def _frozen_batches(self) -> Iterator[Tensor]:
        method, encoder = self._model.method, self._model.encoder
        return (method.frozen(encoder, tokens.to(encoder.device)) for tokens in self._images.batches())

    @torch.inference_mode()
    def features(self, prompts: Prompts) -> list[Tensor]:
        """The image side of all images, in batches; computed anew only when what it depends on has changed."""
        method, encoder = self._model.method, self._model.encoder
        key = key_of(prompts, method.of_images)
        if self._seen is None or self._seen[0] != key:
            named = self._model.named(prompts)
            batches = self._frozen_batches() if not method.keeps_images else iter(self.all_frozen().split(ENCODE_BATCH))
            self._seen = key, [method.images(encoder, frozen, named) for frozen in batches]
        return self._seen[1]

    @torch.inference_mode()
    def logits(self, prompts: Prompts) -> Tensor:
        """z of all images, (n, C), on the CPU."""
        method, encoder = self._model.method, self._model.encoder
        if not len(self):
            return torch.empty(0, encoder.classes)
        classes, named = self._model.classes(prompts), self._model.named(prompts)
        parts = [
            method.personal(method.logits(encoder, images, classes), images, named) for images in self.features(prompts)
        ]
        return torch.cat(parts).cpu()

    @torch.inference_mode()
    def zero_shot_logits(self) -> Tensor:
        """Plain CLIP with the hand-written sentences, whatever the method; on the CPU."""
        method, encoder = self._model.method, self._model.encoder
        if not len(self):
            return torch.empty(0, encoder.classes)
        kept = method.plain_images(self.all_frozen()) if method.keeps_images else None
        features = (
            (encoder.image_features(tokens.to(encoder.device)) for tokens in self._images.batches())
            if kept is None
            else (kept,)
        )
        classes = encoder.class_features(None)
        return torch.cat([encoder.logits(images, classes) for images in features]).cpu()

    def forget(self) -> None:
        """Drop what is only of use until the next training."""
        self._seen = None


class ClipLearner:
    """A method over one client's images. No label comes in but pseudo labels."""

    def __init__(self, model: PromptedModel, images: ClientImages, start: Prompts, config: RunConfig, number: int):
        self.model, self.images, self.start, self.config = model, images, start, config
        self.number = number  # of this client: names its random streams
        self.side = ImageSide(model, images)

    def initial(self) -> Prompts:
        return self.start

    def log_probabilities(self, prompts: Prompts | None) -> NDArray[np.float64]:
        """log p_c(x), (n_k, C), in float64 so that saturated images still rank."""
        if prompts is None:
            logits = self.side.zero_shot_logits()
        else:
            logits = self.side.logits(prompts)
            self.side.forget()
        return logits.double().log_softmax(-1).numpy()

    def remember(self, selection: Selection) -> Prompts:
        if not len(self.images):
            return {}
        return self.model.method.remember(self.side.all_frozen, selection, self.model.encoder.classes)

    def train(self, prompts: Prompts, selection: Selection, round: int) -> tuple[Prompts, float]:
        """Step 4 of the algorithm: the method's loss on the pseudo labels, SGD with an optimiser of its own."""
        names = self.model.method.shapes(self.model.encoder.clip)
        if not names:
            return prompts, float("nan")
        begin = {name: self.model.encoder.tensor(prompts[name]) for name in names}
        trained = {name: value.clone().requires_grad_() for name, value in begin.items()}
        settings = self.config.train
        optimiser = torch.optim.SGD(
            trained.values(), settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        shuffle = stream(self.config.seed, "shuffle", self.number, round)
        loss = float("nan")
        for epoch in range(settings.epochs):
            optimiser.param_groups[0]["lr"] = learning_rate(self.config, round, epoch)
            loss = self._epoch(trained, begin, optimiser, batches(selection, settings.batch, shuffle))
        return {**prompts, **{name: as_numpy(value) for name, value in trained.items()}}, loss

    def _epoch(
        self, trained: Named, begin: Named, optimiser: torch.optim.Optimizer, chosen: Iterator[Selection]
    ) -> float:
        total, images = 0.0, 0
        for batch in chosen:
            loss = self._loss(trained, batch)
            optimiser.zero_grad()
            self._backward(loss + self.model.method.penalty(trained, begin), trained)
            optimiser.step()
            total, images = total + loss.item() * len(batch.index), images + len(batch.index)
        return total / images

    def _loss(self, trained: Named, batch: Selection) -> Tensor:
        method, encoder = self.model.method, self.model.encoder
        images = method.images(encoder, self.side.frozen(batch.index), trained)
        return loss_on(method.logits(encoder, images, method.classes(encoder, trained)), batch)

    def _backward(self, loss: Tensor, trained: Named) -> None:
        scale = self.model.encoder.arithmetic.loss_scale
        (loss * scale).backward()
        for prompt in trained.values():
            if prompt.grad is not None and scale != 1:
                prompt.grad /= scale


def batches(selection: Selection, size: int, shuffle: np.random.Generator) -> Iterator[Selection]:
    """The chosen images in a new order, the last batch kept however small."""
    order = shuffle.permutation(len(selection.index))
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        candidates = None if selection.candidates is None else selection.candidates[batch]
        yield Selection(selection.index[batch], selection.label[batch], candidates)


def learning_rate(config: RunConfig, round: int, epoch: int) -> float:
    """A cosine that restarts at each refresh, or one over the whole run."""
    rounds = config.labels.refresh_every if config.train.schedule == "refresh" else config.rounds
    done = (round % rounds) * config.train.epochs + epoch
    return cosine(config.train.lr, done, rounds * config.train.epochs)


class ClipExam:
    """A client's labelled test images. The truth is here and nowhere else in the model."""

    def __init__(self, model: PromptedModel, images: ClientImages, truth: NDArray[np.int64]):
        self.model, self.side = model, ImageSide(model, images)
        self.truth = torch.from_numpy(truth)
        self._by_zero_shot: Tensor | None = None

    def score(self, prompts: Prompts | None) -> tuple[int, int]:
        return int((self.predict(prompts) == self.truth).sum()), len(self.truth)

    def answers(self, prompts: Prompts | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What was predicted, and what is true, image by image."""
        return self.predict(prompts).numpy(), self.truth.numpy()

    def predict(self, prompts: Prompts | None) -> Tensor:
        """The most probable class of each test image."""
        if prompts is not None:
            return self.side.logits(prompts).argmax(-1)
        if self._by_zero_shot is None:
            self._by_zero_shot = self.side.zero_shot_logits().argmax(-1)
        return self._by_zero_shot


@torch.inference_mode()
def score_everywhere(exams: Sequence[ClipExam], models: Sequence[Prompts]) -> list[tuple[int, int]]:
    """How many of all clients' test images each of these models gets right, of how many."""
    exams = [exam for exam in exams if len(exam.side)]
    model, truth = exams[0].model, torch.cat([exam.truth for exam in exams])
    method, encoder = model.method, model.encoder
    seen: tuple[Key, Tensor] | None = None
    scores: dict[Key, tuple[int, int]] = {}
    for prompts in models:
        whole = key_of(prompts, tuple(prompts))
        if whole not in scores:
            key = key_of(prompts, method.of_images)
            if seen is None or seen[0] != key:
                seen = key, torch.cat([batch for exam in exams for batch in exam.side.features(prompts)])
            logits = method.logits(encoder, seen[1], model.classes(prompts))
            right = method.personal(logits, seen[1], model.named(prompts)).argmax(-1).cpu() == truth
            scores[whole] = int(right.sum()), len(truth)
    return [scores[key_of(prompts, tuple(prompts))] for prompts in models]

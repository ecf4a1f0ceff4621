"""One client's learning in torch: its probabilities, its local training, and its exam."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..config import RunConfig
from ..core.schedule import cosine
from ..core.select import Selection
from ..rng import stream
from .encoder import Array, Encoder
from .images import ClientImages

Prompts = Mapping[str, Array]


@dataclass(frozen=True)
class ClipLearner:
    """Prompted CLIP over one client's images. No label comes in but pseudo labels."""

    encoder: Encoder
    images: ClientImages
    start: Prompts
    config: RunConfig
    number: int  # of this client: names its random streams

    def initial(self) -> Prompts:
        return self.start

    def log_probabilities(self, prompts: Prompts | None) -> NDArray[np.float64]:
        """log p_c(x), (n_k, C), in float64 so that saturated images still rank."""
        images = self.encoder.all_image_features(self.images, None if prompts is None else prompts["visual"])
        if not len(images):
            return np.zeros((0, self.encoder.classes))
        classes = self.encoder.frozen_class_features(None if prompts is None else prompts["text"])
        logits = self.encoder.logits(images, classes)
        return logits.cpu().double().log_softmax(-1).numpy()

    def train(self, prompts: Prompts, selection: Selection, round: int) -> tuple[Prompts, float]:
        """Step 4 of the algorithm: cross-entropy on the pseudo labels, SGD with an optimiser of its own."""
        trained = {name: self.encoder.tensor(value).requires_grad_() for name, value in prompts.items()}
        settings = self.config.train
        optimiser = torch.optim.SGD(
            trained.values(), settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )
        shuffle = stream(self.config.seed, "shuffle", self.number, round)
        loss = float("nan")
        for epoch in range(settings.epochs):
            optimiser.param_groups[0]["lr"] = learning_rate(self.config, round, epoch)
            loss = self._epoch(trained, optimiser, selection, shuffle)
        return {name: value.detach().cpu().numpy() for name, value in trained.items()}, loss

    def _epoch(
        self,
        trained: Mapping[str, Tensor],
        optimiser: torch.optim.Optimizer,
        selection: Selection,
        shuffle: np.random.Generator,
    ) -> float:
        total = 0.0
        for batch in self._batches(selection, shuffle):
            loss = self._loss(trained, batch)
            optimiser.zero_grad()
            self._backward(loss, trained)
            optimiser.step()
            total += loss.item() * len(batch.index)
        return total / len(selection.index)

    def _backward(self, loss: Tensor, trained: Mapping[str, Tensor]) -> None:
        scale = self.encoder.arithmetic.loss_scale
        (loss * scale).backward()
        for prompt in trained.values():
            if prompt.grad is not None and scale != 1:
                prompt.grad /= scale

    def _batches(self, selection: Selection, shuffle: np.random.Generator) -> Iterator[Selection]:
        order, size = shuffle.permutation(len(selection.index)), self.config.train.batch
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            yield Selection(selection.index[batch], selection.label[batch])

    def _loss(self, trained: Mapping[str, Tensor], batch: Selection) -> Tensor:
        tokens = self.images.tokens(batch.index).to(self.encoder.device)
        images = self.encoder.image_features(tokens, trained["visual"])
        logits = self.encoder.logits(images, self.encoder.class_features(trained["text"]))
        return F.cross_entropy(logits, torch.from_numpy(batch.label).to(self.encoder.device))


def learning_rate(config: RunConfig, round: int, epoch: int) -> float:
    """A cosine that restarts at each refresh, or one over the whole run."""
    rounds = config.labels.refresh_every if config.train.schedule == "refresh" else config.rounds
    done = (round % rounds) * config.train.epochs + epoch
    return cosine(config.train.lr, done, rounds * config.train.epochs)


class ClipExam:
    """A client's labelled test images. The truth is here and nowhere else in the model."""

    def __init__(self, encoder: Encoder, images: ClientImages, truth: NDArray[np.int64]):
        self._encoder, self._images = encoder, images
        self._truth = torch.from_numpy(truth)
        self._seen: tuple[bytes | None, Tensor] | None = None  # the features under the last visual prompt

    def score(self, prompts: Prompts | None) -> tuple[int, int]:
        return int((self.predict(prompts) == self._truth).sum()), len(self._truth)

    def predict(self, prompts: Prompts | None) -> Tensor:
        """The most probable class of each test image."""
        images = self._features(None if prompts is None else prompts["visual"])
        if not len(images):
            return torch.empty(0, dtype=torch.long)
        classes = self._encoder.frozen_class_features(None if prompts is None else prompts["text"])
        return self._encoder.logits(images, classes).argmax(-1).cpu()

    def _features(self, visual: Array | None) -> Tensor:
        key = None if visual is None else visual.tobytes()
        if self._seen is None or self._seen[0] != key:
            self._seen = key, self._encoder.all_image_features(self._images, visual)
        return self._seen[1]


def score_everywhere(exams: Sequence[ClipExam], prompts: Prompts | None) -> tuple[int, int]:
    """How many of all clients' test images one client's model gets right, of how many."""
    correct, examples = np.sum([exam.score(prompts) for exam in exams], axis=0)
    return int(correct), int(examples)

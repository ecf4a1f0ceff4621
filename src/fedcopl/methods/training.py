"""Step 4 of the algorithm: one client's local epochs on its pseudo labels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm.learning_rate import cosine
from ..algorithm.select import Selection
from ..config import RunConfig
from .base import Named, as_numpy
from .losses import LabelLoss, label_loss
from .prompted_model import PromptedModel, Prompts

Rows = NDArray[np.int64]


def train(
    model: PromptedModel,
    frozen: Callable[[Rows], Tensor],
    config: RunConfig,
    prompts: Prompts,
    selection: Selection,
    round: int,
    shuffle: np.random.Generator,
) -> tuple[Prompts, float]:
    """SGD with an optimiser of its own. The prompts after it, and the mean loss of the last epoch."""
    given, names = model.named(prompts), model.method.shapes(model.encoder.clip, model.encoder.classes)
    if not names:
        return prompts, float("nan")
    begin = {name: given[name] for name in names}
    with torch.no_grad():
        others = {name: value for name, value in given.items() if name not in names}
        constants = model.method.before_training(model.encoder, others)
    trained = {name: value.clone().requires_grad_() for name, value in begin.items()}
    fit = label_loss(selection, config.labels.cpl_loss, model.encoder.device)
    lesson = _Lesson(model, frozen, config, trained, begin, constants, selection, fit, _optimiser(trained, config))
    loss = float("nan")
    for epoch in range(config.train.epochs):
        loss = lesson.epoch(batches(len(selection.index), config.train.batch, shuffle), round, epoch)
    outcome = {name: as_numpy(value) for name, value in trained.items()}
    return {**prompts, **outcome, **model.method.after_training(outcome)}, loss


def _optimiser(trained: Named, config: RunConfig) -> torch.optim.Optimizer:
    """One group for each array, as each may have a learning rate of its own."""
    groups = [{"params": [value], "name": name} for name, value in trained.items()]
    settings = config.train
    return torch.optim.SGD(groups, settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay)


@dataclass(frozen=True)
class _Lesson:
    """One client's training within one round: what is trained, what stays as it is, what it is told."""

    model: PromptedModel
    frozen: Callable[[Rows], Tensor]
    config: RunConfig
    trained: Named
    begin: Named
    constants: Named
    selection: Selection
    fit: LabelLoss
    optimiser: torch.optim.Optimizer

    def epoch(self, batches: Iterator[Rows], round: int, epoch: int) -> float:
        """One pass over the chosen images; its mean loss."""
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.config, round, epoch, self.model.method.rate(group["name"]))
        total, images = 0.0, 0
        for rows in batches:
            loss = self._loss(rows)
            self.optimiser.zero_grad()
            self._backward(loss + self.model.method.penalty(self.trained, self.begin))
            self.optimiser.step()
            total, images = total + loss.item() * len(rows), images + len(rows)
        self.fit.epoch_done()
        return total / images

    def _loss(self, rows: Rows) -> Tensor:
        method, encoder = self.model.method, self.model.encoder
        named, batch = {**self.constants, **self.trained}, part_of(self.selection, rows)
        images = method.images(encoder, self.frozen(batch.index), named)
        places = torch.from_numpy(rows).to(encoder.device)
        classes = method.classes(encoder, named)
        return method.loss(encoder, images, classes, named, batch, lambda logits: self.fit(logits, places))

    def _backward(self, loss: Tensor) -> None:
        scale, longest = self.model.encoder.arithmetic.loss_scale, self.config.train.clip_norm
        (loss * scale).backward()
        for prompt in self.trained.values():
            if prompt.grad is not None and scale != 1:
                prompt.grad /= scale
        if longest:
            torch.nn.utils.clip_grad_norm_(list(self.trained.values()), longest)


def batches(count: int, size: int, shuffle: np.random.Generator) -> Iterator[Rows]:
    """The rows of the chosen images in a new order, the last batch kept however small."""
    order = shuffle.permutation(count)
    return (order[start : start + size] for start in range(0, count, size))


def part_of(selection: Selection, rows: Rows) -> Selection:
    candidates = None if selection.candidates is None else selection.candidates[rows]
    return Selection(selection.index[rows], selection.label[rows], candidates)


def learning_rate(config: RunConfig, round: int, epoch: int, highest: float) -> float:
    """A cosine that restarts at each refresh, or one over the whole run."""
    rounds = config.labels.refresh_every if config.train.schedule == "refresh" else config.rounds
    done = (round % rounds) * config.train.epochs + epoch
    return cosine(highest, done, rounds * config.train.epochs)

"""Step 4 of the algorithm: one client's local epochs on its pseudo labels."""

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.optim.sgd import sgd

from ..algorithm.select import Selection
from ..clip.encoder import Rows
from ..config import RunConfig
from ..labelers import choose_labeler
from ..priors.posterior import LogitAdjustment
from .base import Batch, NamedTensors, as_numpy
from .losses import label_loss
from .prompted_model import FeatureExtractor, PromptedModel, Prompts
from .prompts import kind_of


@dataclass(frozen=True)
class TrainJob:
    """One client's training in one round."""

    extractor: FeatureExtractor
    prompts: Prompts  # the arrays at the beginning of the round
    start: Prompts  # the initial arrays of the run, towards which weights may decay
    selection: Selection
    round: int
    shuffle: np.random.Generator  # draws the order of the images in each epoch
    lr_factor: float = 1.0
    adjustment: LogitAdjustment | None = None  # logit adjustment by the priors, a row for each selected image


class Trainer:
    """Trains a method's arrays on one client's pseudo labels, with a fresh SGD optimiser."""

    def __init__(self, model: PromptedModel, config: RunConfig, job: TrainJob):
        self._model, self._config, self._job = model, config, job
        arrays, device = model.params(job.prompts), model.encoder.device
        names = model.method.shapes(model.encoder.clip, model.encoder.classes)
        self._begin = {name: arrays[name] for name in names}
        with torch.no_grad():
            untrained = {name: value for name, value in arrays.items() if name not in names}
            self._constants = model.method.before_training(model.encoder, untrained)
        self._units = {name: _training_unit(name, value, job.start, config) for name, value in self._begin.items()}
        scaled = {name: self._units[name].scale(value) for name, value in self._begin.items()}
        self._trained = {name: value.clone().requires_grad_() for name, value in scaled.items()}
        self._optimizer = SGD(momentum=config.train.momentum, weight_decay=config.train.weight_decay)
        self._loss = label_loss(job.selection, choose_labeler(config).loss, device, job.adjustment)

    def fit(self) -> tuple[Prompts, float]:
        """Run the local epochs.

        Returns:
            All arrays of the client's model after training, and the mean loss of the last epoch.
        """
        if not self._trained:
            return self._job.prompts, float("nan")
        images, mean_loss = len(self._job.selection.index), float("nan")
        for epoch in range(self._config.train.epochs):
            for name in self._trained:
                max_lr = self._model.method.max_lr(name) * self._job.lr_factor
                self._optimizer.rates[name] = learning_rate(self._config, self._job.round, epoch, max_lr)
            total = 0.0
            order = self._job.shuffle.permutation(images)
            for start in range(0, images, self._config.train.batch):  # the last batch may be smaller
                rows = order[start : start + self._config.train.batch]
                total += self._step(rows) * len(rows)
            self._loss.epoch_done()
            mean_loss = total / images
        trained = {name: as_numpy(value) for name, value in self._unscaled_prompts().items()}
        return {**self._job.prompts, **trained, **self._model.method.after_training(trained)}, mean_loss

    def _unscaled_prompts(self) -> NamedTensors:
        return {name: self._units[name].unscale(value) for name, value in self._trained.items()}

    def _step(self, rows: Rows) -> float:
        """Take one SGD step on the images at these rows of the selection, and return their mean loss."""
        method, encoder, selection = self._model.method, self._model.encoder, self._job.selection
        params = {**self._constants, **self._unscaled_prompts()}
        index, label = selection.index[rows], selection.label[rows]
        candidates = None if selection.candidates is None else selection.candidates[rows]
        images = self._model.image_features(self._job.extractor.frozen_features(index), params)
        classes = self._model.class_features(params)
        zero_shot = partial(self._job.extractor.zero_shot_features_of, index)
        batch = Batch(encoder, images, classes, params, index, label, candidates, zero_shot)
        positions = torch.from_numpy(rows).to(encoder.device)
        loss = method.loss(batch, lambda logits: self._loss(logits, positions))
        objective = loss + method.penalty(self._unscaled_prompts(), self._begin)
        loss_scale = encoder.arithmetic.loss_scale
        (objective * loss_scale).backward()
        for prompt in self._trained.values():
            if prompt.grad is not None and loss_scale != 1:
                prompt.grad /= loss_scale
        if self._config.train.clip_norm:
            torch.nn.utils.clip_grad_norm_(list(self._trained.values()), self._config.train.clip_norm)
        self._optimizer.step(self._trained)
        return loss.item()


@dataclass(frozen=True)
class _TrainingUnit:
    """The change of variables in which an array is trained, by origin and unit of length; None leaves it unchanged.

    A prompt passes through a layer norm, so its gradient is inversely proportional to its length. With one learning
    rate, steps would differ between encoders by a factor of ten thousand; in units of the length they are equal.
    """

    origin: Tensor | None
    length: Tensor | None

    def scale(self, prompt: Tensor) -> Tensor:
        """Return (prompt - origin) / length."""
        moved = prompt if self.origin is None else prompt - self.origin
        return moved if self.length is None else moved / self.length

    def unscale(self, scaled: Tensor) -> Tensor:
        """Return scaled * length + origin, the inverse of `scale`."""
        moved = scaled if self.length is None else scaled * self.length
        return moved if self.origin is None else moved + self.origin


def _training_unit(name: str, value: Tensor, start: Prompts, config: RunConfig) -> _TrainingUnit:
    """Return the unit of a trained array; only prompts are measured in units of their length."""
    origin = torch.tensor(start[name], device=value.device) if config.train.decay_to == "init" else None
    if kind_of(name) not in ("visual", "text") or config.train.step != "relative":
        return _TrainingUnit(origin, None)
    length = value.norm(dim=-1, keepdim=True).mean(dim=-2, keepdim=True)  # mean length of the vectors of each level
    return _TrainingUnit(origin, torch.where(length > 0, length, 1.0))


@dataclass
class SGD:
    """SGD with momentum and a learning rate for each array, by torch's functional implementation.

    `torch.optim.SGD` imports torch's compiler, 70 MB and 1.6 seconds in every process that trains.
    """

    momentum: float
    weight_decay: float
    rates: dict[str, float] = field(default_factory=dict)
    _momentum_buffers: dict[str, Tensor | None] = field(default_factory=dict)

    @torch.no_grad()
    def step(self, trained: NamedTensors) -> None:
        """Update every array that has a gradient, and clear the gradients."""
        for name, value in trained.items():
            if value.grad is None:
                continue
            buffers = [self._momentum_buffers.get(name)]
            sgd(
                [value],
                [value.grad],
                buffers,
                lr=self.rates[name],
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            self._momentum_buffers[name], value.grad = buffers[0], None


def learning_rate(config: RunConfig, round: int, epoch: int, max_lr: float) -> float:
    """Return eta (1 + cos(pi e / period)) / 2: a cosine over one refresh interval or over the whole run."""
    rounds = config.labels.refresh_every if config.train.schedule == "refresh" else config.rounds
    done = (round % rounds) * config.train.epochs + epoch
    return max_lr * (1 + math.cos(math.pi * done / (rounds * config.train.epochs))) / 2

"""Step 4 of the algorithm: one client's local epochs on its pseudo labels, and how well logits fit those."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.sgd import sgd

from ..algorithm.priors import Beside
from ..algorithm.select import Selection
from ..clip.image_tokens import Rows
from ..config import RunConfig
from .base import Named, as_numpy
from .prompted_model import PromptedModel, Prompts


def cosine(highest: float, done: int, period: int) -> float:
    """eta * (1 + cos(pi e / period)) / 2: from `highest` at e = 0 towards 0 at e = period."""
    return highest * (1 + math.cos(math.pi * done / period)) / 2


SMALLEST = 1e-6  # a weight below this is taken for none, as in CPL's code
POWER = 0.7  # q of the generalised cross-entropy
OUTSIDE = 2.0  # how much more `lw` minds what it must not say than what it may


class LabelLoss(Protocol):
    """The mean loss of some of the chosen images, named by their rows in the selection."""

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor: ...

    def epoch_done(self) -> None: ...


def label_loss(selection: Selection, kind: str, device: torch.device) -> LabelLoss:
    """Cross-entropy where labels are hard; `kind` says which loss candidate sets have."""
    if selection.candidates is None:
        return HardLabels(torch.from_numpy(selection.label).to(device))
    said = torch.from_numpy(selection.candidates).float().to(device)
    return PARTIAL[kind](said)


class HardLabels:
    """-log p of the label."""

    def __init__(self, labels: Tensor):
        self._labels = labels

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return F.cross_entropy(logits, self._labels[rows])

    def epoch_done(self) -> None:
        """A hard label stays what it is."""


class Together:
    """`cc`: -log sum_c t_c p_c over the candidate set S; t_c = 1 unless targets are soft."""

    def __init__(self, said: Tensor):
        self._log_said = said.log()

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return (logits.logsumexp(-1) - (logits + self._log_said[rows]).logsumexp(-1)).mean()

    def epoch_done(self) -> None:
        """The sets stay what they are."""


class Generalised:
    """`gce`: sum over S of t_c (1 - p_c^q) / q."""

    def __init__(self, said: Tensor):
        self._said = said

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        each = (1 - (POWER * logits.log_softmax(-1)).exp()) / POWER
        return (self._said[rows] * each).sum(-1).mean()

    def epoch_done(self) -> None:
        """The sets stay what they are."""


class Reweighed:
    """`rc`: -sum_c w_c log p_c. w starts even on S; after each epoch it is what the model said in that epoch, on S."""

    def __init__(self, said: Tensor):
        self._inside = said > 0
        self._weights = said / said.sum(-1, keepdim=True)
        self._seen = torch.zeros_like(said)

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        self._seen[rows] = logits.detach().softmax(-1)
        return -(self._weights[rows] * logits.log_softmax(-1)).sum(-1).mean()

    def epoch_done(self) -> None:
        self._weights = within(self._seen, self._inside)


class Leveraged(Reweighed):
    """`lw`: sum over S of -w_c log p_c, plus twice the sum outside S of -w_c log(1 - p_c), where w starts at 0."""

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        wrong = (self._weights * ~self._inside)[rows]
        denied = -torch.log1p(-logits.softmax(-1).clamp(max=1 - SMALLEST))
        right = -(self._weights * self._inside)[rows] * logits.log_softmax(-1)
        self._seen[rows] = logits.detach().softmax(-1)
        return (right + OUTSIDE * wrong * denied).sum(-1).mean()

    def epoch_done(self) -> None:
        self._weights = within(self._seen, self._inside) + within(self._seen, ~self._inside)


def within(probabilities: Tensor, inside: Tensor) -> Tensor:
    """The probabilities of certain classes, made to sum to one; tiny ones are dropped, zeros where there are none."""
    shares = _normalised(probabilities * inside)
    return _normalised(shares * (shares >= SMALLEST))


def _normalised(weights: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return torch.where(total > 0, weights / total, 0.0)


class ThroughPriors:
    """Another loss, of what is answered instead of what the model says alone: softmax(weight z + offset).

    So training adds to the priors: what they know already is not learnt a second time, and counted twice then.
    """

    def __init__(self, fit: LabelLoss, beside: Beside, device: torch.device):
        self._fit, self._weight = fit, beside.weight
        self._offset = torch.from_numpy(beside.offset).float().to(device)

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return self._fit(self._weight * logits + self._offset[rows], rows)

    def epoch_done(self) -> None:
        self._fit.epoch_done()


PARTIAL: Mapping[str, Callable[[Tensor], LabelLoss]] = {
    "cc": Together,
    "gce": Generalised,
    "rc": Reweighed,
    "lw": Leveraged,
}
"""The losses on candidate sets, by the setting `labels.cpl_loss`."""


PROMPTS = ("visual", "text")  # the last word of every prompt's name


@dataclass(frozen=True)
class Lesson:
    """What one client is to learn in a round: from which prompts, on which of its images, in which order."""

    frozen: Callable[[Rows], Tensor]  # of its images
    prompts: Prompts
    start: Prompts
    selection: Selection
    round: int
    shuffle: np.random.Generator
    caution: float = 1.0  # factor on the learning rate
    beside: Beside | None = None  # what the priors say of the chosen images, row by row


Learnt = tuple[Prompts, float]
"""The prompts after training, and the mean loss of the last epoch."""


@dataclass(frozen=True)
class HalfTrained:
    """All that a lesson's later epochs need of the earlier ones: it may be pickled, and learnt to its end elsewhere."""

    epochs: int  # that are over
    trained: Mapping[str, Tensor]
    descent: "Descent"
    fit: LabelLoss
    shuffle: np.random.Generator


def train(model: PromptedModel, config: RunConfig, lessons: Sequence[Lesson]) -> list[Learnt]:
    """SGD that begins anew, for several clients side by side: each ends with the bits that it has alone."""
    if not model.method.shapes(model.encoder.clip, model.encoder.classes):
        return [(lesson.prompts, float("nan")) for lesson in lessons]
    pupils = [_Pupil(model, config, lesson) for lesson in lessons]
    for batch_of_each in zip_longest(*(pupil.steps(config.train.epochs) for pupil in pupils)):
        _step(model, [(pupil, rows) for pupil, rows in zip(pupils, batch_of_each, strict=True) if rows is not None])
    return [pupil.learnt() for pupil in pupils]


def train_first(model: PromptedModel, config: RunConfig, lesson: Lesson, epochs: int) -> HalfTrained:
    """The first epochs of a lesson; `train_rest` comes to the bits that `train` has."""
    pupil = _Pupil(model, config, lesson)
    for rows in pupil.steps(epochs):
        _step(model, [(pupil, rows)])
    return pupil.half()


def train_rest(model: PromptedModel, config: RunConfig, lesson: Lesson, half: HalfTrained) -> Learnt:
    """The epochs that are left."""
    pupil = _Pupil(model, config, lesson, half)
    for rows in pupil.steps(config.train.epochs):
        _step(model, [(pupil, rows)])
    return pupil.learnt()


def _step(model: PromptedModel, at_work: Sequence[tuple["_Pupil", Rows]]) -> None:
    """One batch of each; the losses of all go back in one pass, and each one's gradients are of its own alone."""
    frozen, named = [pupil.frozen(rows) for pupil, rows in at_work], [pupil.named() for pupil, _ in at_work]
    images, classes = model.images_of_each(frozen, named), model.classes_of_each(named)
    losses = [
        pupil.loss(rows, own_images, own_classes, own)
        for (pupil, rows), own_images, own_classes, own in zip(at_work, images, classes, named, strict=True)
    ]
    torch.autograd.backward([loss * model.encoder.arithmetic.loss_scale for loss in losses])
    for pupil, _ in at_work:
        pupil.descend()


@dataclass(frozen=True)
class Scale:
    """A trained array as SGD sees it: where its zero is, and how long its unit. None: as it is, to the last bit.

    A prompt goes through a norm, so its gradient grows as one over its length: in plain numbers one learning rate means
    steps that differ ten thousandfold between towers. In units of its own length they are the same.
    """

    zero: Tensor | None
    unit: Tensor | None

    def read(self, prompt: Tensor) -> Tensor:
        moved = prompt if self.zero is None else prompt - self.zero
        return moved if self.unit is None else moved / self.unit

    def write(self, read: Tensor) -> Tensor:
        moved = read if self.unit is None else read * self.unit
        return moved if self.zero is None else moved + self.zero


def _scale(name: str, value: Tensor, start: Prompts, config: RunConfig) -> Scale:
    """Only prompts have a length that means nothing; what else a method trains is in plain numbers."""
    zero = torch.tensor(start[name], device=value.device) if config.train.decay_to == "start" else None
    is_prompt = name.split()[-1] in PROMPTS
    return Scale(zero, mean_length(value) if is_prompt and config.train.step == "relative" else None)


def mean_length(prompt: Tensor) -> Tensor:
    """Of a prompt's vectors, level by level, (..., 1, 1); 1 where they have none."""
    length = prompt.norm(dim=-1, keepdim=True).mean(dim=-2, keepdim=True)
    return torch.where(length > 0, length, 1.0)


@dataclass
class Descent:
    """SGD with momentum, one array at a time, each with a learning rate of its own.

    By torch's own step, but not by its `Optimizer`: that brings a compiler along, 800 modules of 70 MB, which cost
    every process that trains 1.6 seconds.
    """

    momentum: float
    weight_decay: float
    rates: dict[str, float] = field(default_factory=dict)
    _before: dict[str, Tensor | None] = field(default_factory=dict)  # what momentum keeps of the steps so far

    @torch.no_grad()
    def step(self, trained: Named) -> None:
        """Down the gradients, which are gone after it."""
        for name, value in trained.items():
            if value.grad is None:
                continue
            kept = [self._before.get(name)]
            sgd(
                [value],
                [value.grad],
                kept,
                lr=self.rates[name],
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            self._before[name], value.grad = kept[0], None


class _Pupil:
    """One client's training within one round: what is trained, what stays as it is, what it is told."""

    def __init__(self, model: PromptedModel, config: RunConfig, lesson: Lesson, half: HalfTrained | None = None):
        self._model, self._config, self._lesson = model, config, lesson
        given, names = model.named(lesson.prompts), model.method.shapes(model.encoder.clip, model.encoder.classes)
        self._begin = {name: given[name] for name in names}
        with torch.no_grad():
            others = {name: value for name, value in given.items() if name not in names}
            self._constants = model.method.before_training(model.encoder, others)
        self._scales = {name: _scale(name, value, lesson.start, config) for name, value in self._begin.items()}
        half = half or self._nothing_yet()
        self._epochs, self._trained, self._descent = half.epochs, half.trained, half.descent
        self._fit, self._shuffle = half.fit, half.shuffle
        self._last = float("nan")  # mean loss of the last epoch

    def _nothing_yet(self) -> HalfTrained:
        """Where a lesson begins."""
        config, lesson, device = self._config, self._lesson, self._model.encoder.device
        begin = {name: self._scales[name].read(value) for name, value in self._begin.items()}
        trained = {name: value.clone().requires_grad_() for name, value in begin.items()}
        fit = label_loss(lesson.selection, config.labels.cpl_loss, device)
        through = fit if lesson.beside is None else ThroughPriors(fit, lesson.beside, device)
        descent = Descent(momentum=config.train.momentum, weight_decay=config.train.weight_decay)
        return HalfTrained(0, trained, descent, through, lesson.shuffle)

    def steps(self, until: int) -> Iterator[Rows]:
        """The rows of the selection in each batch, epoch by epoch; a batch is learnt before the next is asked for."""
        images = len(self._lesson.selection.index)
        for epoch in range(self._epochs, until):
            self._set_rates(epoch)
            self._total = 0.0
            yield from batches(images, self._config.train.batch, self._shuffle)
            self._fit.epoch_done()
            self._last, self._epochs = self._total / images, epoch + 1

    def half(self) -> HalfTrained:
        """What there is after the epochs so far."""
        return HalfTrained(self._epochs, self._trained, self._descent, self._fit, self._shuffle)

    def _set_rates(self, epoch: int) -> None:
        for name in self._trained:
            highest = self._model.method.rate(name) * self._lesson.caution
            self._descent.rates[name] = learning_rate(self._config, self._lesson.round, epoch, highest)

    def frozen(self, rows: Rows) -> Tensor:
        """The frozen part of a batch."""
        return self._lesson.frozen(self._lesson.selection.index[rows])

    def _prompts(self) -> Named:
        """What is trained, as the model takes it."""
        return {name: self._scales[name].write(value) for name, value in self._trained.items()}

    def named(self) -> Named:
        return {**self._constants, **self._prompts()}

    def loss(self, rows: Rows, images: Tensor, classes: Tensor, named: Named) -> Tensor:
        """What is minimised on a batch."""
        method, encoder = self._model.method, self._model.encoder
        batch, positions = part_of(self._lesson.selection, rows), torch.from_numpy(rows).to(encoder.device)
        loss = method.loss(encoder, images, classes, named, batch, lambda logits: self._fit(logits, positions))
        self._total += loss.item() * len(rows)
        return loss + method.penalty(self._prompts(), self._begin)

    def descend(self) -> None:
        """A step down the gradients, which are there now."""
        scale, longest = self._model.encoder.arithmetic.loss_scale, self._config.train.clip_norm
        for prompt in self._trained.values():
            if prompt.grad is not None and scale != 1:
                prompt.grad /= scale
        if longest:
            torch.nn.utils.clip_grad_norm_(list(self._trained.values()), longest)
        self._descent.step(self._trained)

    def learnt(self) -> Learnt:
        outcome = {name: as_numpy(value) for name, value in self._prompts().items()}
        return {**self._lesson.prompts, **outcome, **self._model.method.after_training(outcome)}, self._last


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

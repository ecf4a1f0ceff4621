"""Estimate of a simulation's wall time: times of one encoding batch and one training step, times their numbers."""

import math
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from ..algorithm.select import Selection
from ..clip.device import limit_threads
from ..clip.frozen_clip import Clip
from ..config import RunConfig
from ..data.dataset import Dataset
from ..data.parallel import available_cores
from ..data.partitioning import client_names
from ..labelers import choose_labeler
from ..methods import choose_method, with_effective_rounds
from ..plurals import counted
from ..progress import format_duration
from ..run.build import GIGABYTE, build_model
from .worker_pool import workers_for, working_memory

_PROGRAM = 0.55 * GIGABYTE  # memory of Python and torch
_HOLDOUT_PASSES = 2  # per round: with the received average, and with the trained model
_ENCODED = 16  # images in the timed batch
_STEP_LIMIT = 20.0  # seconds; a slower training step is timed on part of its batch


@dataclass(frozen=True)
class Workload:
    """Images to encode without gradient, and training steps, of a whole run."""

    encoded: int
    steps: int


@dataclass(frozen=True)
class TimeEstimate:
    """Expected wall time and memory of a run on this machine."""

    config: RunConfig
    work: Workload
    seconds: float
    memory: float  # bytes, of all workers together
    workers: int
    is_busy: bool  # whether other programs were running during the measurement

    def __str__(self) -> str:
        rounds, epochs = counted(self.config.rounds, "round"), counted(self.config.train.epochs, "epoch")
        amount = f"{rounds} of {epochs}" if choose_method(self.config).trains else "labelling, no training"
        by = f" by {counted(self.workers, 'worker')}" if self.workers > 1 else ""
        busy = " (measured now on a busy machine: may be less)" if self.is_busy else ""
        memory = f"{self.memory / GIGABYTE:.1f} GB of memory"
        return f"about {format_duration(self.seconds)}{busy} and {memory}, for {amount}{by}"


def estimate_time(config: RunConfig, clip: Clip, dataset: Dataset) -> TimeEstimate:
    """Time one encoding batch and one training step, and extrapolate; priors and disk are not included."""
    config = with_effective_rounds(config)
    clients = len(client_names(dataset, config.data))
    work = workload(config, len(dataset.train), len(dataset.test), clients, len(dataset.classes))
    workers = workers_for(config, clip, clients, dataset.classes)
    with limit_threads(1) if workers > 1 else nullcontext():
        encode_seconds, step_seconds = measure_seconds(config, clip, dataset)
    seconds = (work.encoded * encode_seconds + work.steps * step_seconds) / workers
    weights = sum(weight.nbytes for weight in clip.state_dict().values())
    memory = _PROGRAM + weights + workers * working_memory(config, clip, dataset.classes)
    return TimeEstimate(config, work, seconds, memory, workers, _is_busy())


def workload(config: RunConfig, train: int, test: int, clients: int, classes: int) -> Workload:
    """Return the numbers of encoded images and of training steps over all rounds, if no client drops out."""
    method, labels = choose_method(config), config.labels
    if not method.trains:
        return Workload(train + test, 0)
    models = 1 if method.centralised else clients
    selected = choose_labeler(config).expected_images(train / models, classes)
    participants = max(math.floor(models * config.sharing.participation), 1)
    holdout = selected * config.train.holdout
    steps = config.rounds * config.train.epochs * participants * math.ceil((selected - holdout) / config.train.batch)
    if method.caches_frozen:
        return Workload(train + test, steps)
    refreshes = math.ceil(config.rounds / labels.refresh_every)
    models_per_image = models if config.evaluation.everywhere and "visual" not in method.shared() else 1
    tested = test * math.ceil(config.rounds / config.evaluation.every) * models_per_image
    checked = _HOLDOUT_PASSES * config.rounds * participants * holdout
    return Workload(round(train * refreshes + test + tested + checked), steps)


def measure_seconds(config: RunConfig, clip: Clip, dataset: Dataset) -> tuple[float, float]:
    """Return the seconds for encoding one image and for one training step, with the run's model and method."""
    config = config.model_copy(update={"train": config.train.model_copy(update={"epochs": 1})})
    built = build_model(config, clip, dataset.classes, dataset.wording(config.model.template))
    pixels = np.zeros((_ENCODED, 3, side := clip.image_size, side), np.uint8)
    built.learner(built.images(pixels[:1]), 0).features()  # warm-up
    encoding = _seconds(lambda: built.learner(built.images(pixels), 0).features()) / _ENCODED
    if not choose_method(config).trains:
        return encoding, 0.0
    images = max(1, min(batch := config.train.batch, int(_STEP_LIMIT / (3 * encoding))))
    learner = built.learner(built.images(np.zeros((images, 3, side, side), np.uint8)), 0)
    learner.train(learner.initial(), Selection(np.arange(1), np.arange(1)), 0)
    selection = Selection(np.arange(images), np.arange(images) % len(dataset.classes))
    step = _seconds(lambda: learner.train(learner.initial(), selection, 0))
    return encoding, step * batch / images


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _is_busy() -> bool:
    """Return whether the load average exceeds the number of cores."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > available_cores()

"""What a run will take here, in time and memory: a few images through the model, then arithmetic."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ..clip.device import threads_for
from ..clip.frozen_clip import Clip
from ..clip.timing import TowerRates, try_towers
from ..clip.tower_work import words_of
from ..config import RunConfig
from ..data.dataset import Dataset
from ..data.parallel import free_memory
from ..data.partitioning import client_names
from ..methods import choose_method, settled
from ..plurals import counted
from ..progress import in_time
from ..run.cost_model import RunCost, RunSize, run_cost, working_memory
from ..simulation.workers import workers_for
from .findings import Finding, note, ok
from .machine import GIGABYTE

LONG = 600  # seconds that nobody waits to see whether it works


@dataclass(frozen=True)
class ExpectedRun:
    """What a run will take on this machine."""

    config: RunConfig
    cost: RunCost
    seconds: float
    memory: float  # bytes, of all workers together
    workers: int

    def __str__(self) -> str:
        rounds, epochs = self.config.rounds, self.config.train.epochs
        what = (
            f"{counted(rounds, 'round')} of {counted(epochs, 'epoch')}"
            if choose_method(self.config).trains
            else "answers, no training"
        )
        by = f" by {counted(self.workers, 'worker')}" if self.workers > 1 else ""
        return f"about {in_time(self.seconds)} and {self.memory / GIGABYTE:.1f} GB of memory, for {what}{by}"


def check_cost(config: RunConfig, clip: Clip, dataset: Dataset) -> Iterator[Finding]:
    """An estimate, to tell minutes from days."""
    rates, free = try_towers(clip), free_memory()
    run = expect(config, clip, dataset, rates)
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        yield note(
            "load",
            f"cost is measured on a busy machine: load {load:.1f} on {counted(cores, 'core')}",
            "try again later",
        )
    if free is not None and run.memory > free:
        yield note("cost", f"{run}; only {free / GIGABYTE:.1f} GB are free", "lower model.memory or train.batch")
    elif run.seconds > LONG:
        shorter = {typed: expect(one, clip, dataset, rates) for typed, one in _shorter(config).items()}
        offers = [f"{typed} (about {in_time(one.seconds)})" for typed, one in shorter.items()]
        yield note("cost", str(run), f"for a first look add {' or '.join(offers)}: priors need no training")
    else:
        yield ok("cost", str(run))


def expect(config: RunConfig, clip: Clip, dataset: Dataset, rates: TowerRates) -> ExpectedRun:
    """By the model of cost, and by how fast the model was just now."""
    run = settled(config)
    size = size_of(run, clip, dataset)
    cost, count = run_cost(run, clip, size), workers_for(run, clip, size)
    at_once = count if threads_for(run.model) == 1 else 1  # otherwise it was tried on all cores
    memory = cost.memory + (count - 1) * working_memory(run, clip, size)
    return ExpectedRun(run, cost, cost.seconds(rates) / at_once, memory, count)


def _shorter(config: RunConfig) -> dict[str, RunConfig]:
    """What to type to see soon whether it works at all."""
    untrained = config.model_copy(update={"method": "priors", "labeler": "copl", "options": {}})
    once = config.train.model_copy(update={"epochs": 1})
    return {
        "method=priors": settled(untrained),
        "rounds=2 epochs=1": config.model_copy(update={"rounds": 2, "train": once}),
    }


def size_of(config: RunConfig, clip: Clip, dataset: Dataset) -> RunSize:
    clients = len(client_names(dataset, config.data))
    train, test, classes = len(dataset.train), len(dataset.test), len(dataset.classes)
    return RunSize(train, test, clients, classes, words_of(clip, dataset.classes))

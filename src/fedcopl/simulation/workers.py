"""The worker processes of a simulation, one per core unless set otherwise: the same bits as in one process."""

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..clip.blocks import TowerShape
from ..clip.device import threads_of_arithmetic
from ..clip.encoder import CHUNK_TOKENS, ENCODE_BATCH
from ..clip.frozen_clip import Clip
from ..clip.vision_towers import ResNetTower
from ..config import RunConfig
from ..data.parallel import free_memory
from ..data.parallel import workers as cores
from ..errors import ConfigError
from ..methods import choose_method
from .assemble import Simulation
from .worker_pool import WorkerContext, WorkerCount, WorkerPool

_WORKERS_VARIABLE = "FEDCOPL_WORKERS"  # environment variable: what `auto` means on this machine
_FLOAT = 4  # bytes
_KEPT_FREED = 1.4  # times the memory in use, as freed memory is kept for the next step: decision 7


@contextmanager
def open_pool(simulation: Simulation, requested: WorkerCount) -> Iterator[WorkerPool | None]:
    """Fork the workers of a simulation; None if this process does the work alone.

    Each worker has one thread of torch, and so has this process where it works alone but could have had workers: the
    last bit may depend on the number of threads, and must not on that of workers. Several threads by the settings are
    for one process.
    """
    clients, config = simulation.clients, simulation.config
    if len(clients) == 1 or not _can_fork() or simulation.device != "cpu":
        if requested != "auto" and simulation.device != "cpu":
            raise ConfigError(f"workers: are for processors, and this runs on {simulation.device}; leave it at auto")
        _worker_count(requested, 1)
        yield None
        return
    clip = simulation.learners[0].model.encoder.clip
    count = workers_for(config, clip, len(clients), simulation.dataset.classes, requested)
    with threads_of_arithmetic(config.model.threads or 1):
        if count == 1:
            yield None
            return
        sizes = dict(zip(clients, map(len, simulation.parts.train), strict=True))
        learners = dict(zip(clients, simulation.learners, strict=True))
        context = WorkerContext(clients, simulation.audit.evaluator.test_sets, learners)
        with WorkerPool(count, context, sizes) as pool:
            yield pool


def workers_for(
    config: RunConfig, clip: Clip, clients: int, classes: Sequence[str], requested: WorkerCount = "auto"
) -> int:
    """Return the number of workers for a run, by cores, clients and free memory."""
    jobs = 1 if choose_method(config).pools else clients
    threads, free = config.model.threads or 1, free_memory()
    if free is None:
        return _worker_count(requested, jobs, threads)
    return _worker_count(requested, jobs, threads, max(1, int(free / working_memory(config, clip, classes))))


def _can_fork() -> bool:
    """Return whether processes here can share what this one has loaded."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def _worker_count(requested: WorkerCount, jobs: int, threads: int = 1, memory_limit: int = sys.maxsize) -> int:
    """Return the number of processes for that many jobs at a time.

    `auto` is one per core, limited by memory, or the value of FEDCOPL_WORKERS. With several threads of torch there is
    one process: OpenMP's threads do not survive a fork, and the child would wait for them for ever.

    Raises:
        ConfigError: The number is not possible.

    >>> _worker_count(3, jobs=2), _worker_count(1, jobs=5)
    (2, 1)
    """
    if requested != "auto" and requested < 1:
        raise ConfigError(f"workers: should be auto or at least 1, not {requested}")
    if not _can_fork():
        if requested not in ("auto", 1):
            raise ConfigError("workers: only Linux can share a loaded model between processes; leave it at auto")
        return 1
    if threads > 1:
        if requested not in ("auto", 1):
            raise ConfigError(f"workers: each has one thread, and model.threads is {threads}; leave one of them out")
        return 1
    text = os.environ.get(_WORKERS_VARIABLE, "auto") if requested == "auto" else str(requested)
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise ConfigError(f"{_WORKERS_VARIABLE}: should be auto or a number of workers, not {text!r}")
    return max(1, min(jobs, min(cores(), memory_limit) if text == "auto" else int(text)))


def working_memory(config: RunConfig, clip: Clip, classes: Sequence[str]) -> float:
    """Return the bytes of a process's own activations in encoding and in a training step.

    The workers share the program, the weights and the images.
    """
    method, vision, text = choose_method(config), clip.vision, clip.text
    sentences = clip.sentences([f"{name}." for name in classes])
    shapes = method.shapes(clip, len(classes))
    texts = sum(name.split()[-1] == "text" for name in shapes)
    step = texts * _activations(text.shape, len(sentences.shared) + sentences.rest.numel())
    if isinstance(vision, ResNetTower):
        encoding = 5 * _FLOAT * ENCODE_BATCH * vision.attnpool.positional_embedding.numel()
    else:
        encoding = _FLOAT * CHUNK_TOKENS * (5 * vision.shape.width + 2 * vision.shape.hidden)
        images = 0 if method.keeps_images else config.train.batch
        step += _activations(vision.shape, images * len(vision.positions))
    return _KEPT_FREED * (encoding + step)


def _activations(shape: TowerShape, tokens: int) -> float:
    """Return the bytes that autograd keeps of some tokens in all blocks: norms, q, k, v, prompts, hidden layer."""
    return _FLOAT * shape.depth * tokens * (8 * shape.width + shape.hidden)

"""The worker processes of a simulation, one per core unless set otherwise: the same bits as in one process."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..clip.device import threads_of_arithmetic
from ..clip.frozen_clip import Clip
from ..clip.tower_work import words_of
from ..config import RunConfig
from ..data.parallel import free_memory
from ..errors import ConfigError
from ..methods import choose_method
from ..run.cost_model import RunSize, working_memory
from .assemble import Simulation
from .worker_pool import WorkerContext, WorkerCount, WorkerPool, can_fork, worker_count


@contextmanager
def open_pool(simulation: Simulation, requested: WorkerCount) -> Iterator[WorkerPool | None]:
    """Fork the workers of a simulation; None if this process does the work alone.

    Each worker has one thread of torch, and so has this process where it works alone but could have had workers: the
    last bit may depend on the number of threads, and must not on that of workers. Several threads by the settings are
    for one process.
    """
    clients, config = simulation.clients, simulation.config
    if len(clients) == 1 or not can_fork() or simulation.device != "cpu":
        if requested != "auto" and simulation.device != "cpu":
            raise ConfigError(f"workers: are for processors, and this runs on {simulation.device}; leave it at auto")
        worker_count(requested, 1)
        yield None
        return
    clip, classes = simulation.learners[0].model.encoder.clip, simulation.dataset.classes
    train, test = (sum(map(len, parts)) for parts in (simulation.parts.train, simulation.parts.test))
    size = RunSize(train, test, len(clients), len(classes), words_of(clip, classes))
    count = workers_for(config, clip, size, requested)
    with threads_of_arithmetic(config.model.threads or 1):
        if count == 1:
            yield None
            return
        sizes = dict(zip(clients, map(len, simulation.parts.train), strict=True))
        learners = dict(zip(clients, simulation.learners, strict=True))
        context = WorkerContext(clients, simulation.audit.evaluator.test_sets, learners)
        with WorkerPool(count, context, sizes) as pool:
            yield pool


def workers_for(config: RunConfig, clip: Clip, size: RunSize, requested: WorkerCount = "auto") -> int:
    """Return the number of workers for a run of this size, by cores, clients and free memory."""
    clients = 1 if choose_method(config).pools else size.clients
    threads, free = config.model.threads or 1, free_memory()
    if free is None:
        return worker_count(requested, clients, threads)
    return worker_count(requested, clients, threads, max(1, int(free / working_memory(config, clip, size))))

"""Worker processes of a simulation, forked after loading, so that they share the memory of weights and pixels.

By default there is one per core. Results are bit-identical to those of a single process.
"""

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Literal, cast

from ..clip.blocks import TowerShape
from ..clip.device import limit_threads
from ..clip.encoder import CHUNK_TOKENS, ENCODE_BATCH
from ..clip.frozen_clip import Clip
from ..clip.vision_towers import ResNetTower
from ..config import RunConfig
from ..data.parallel import available_cores, free_memory
from ..errors import ConfigError, FedCoPLError
from ..federation.client import Client
from ..methods import choose_method
from ..methods.learner import ClipLearner, ClipTestSet
from ..methods.prompts import kind_of

if TYPE_CHECKING:
    from .assemble import Simulation

WorkerCount = int | Literal["auto"]
_PR_SET_PDEATHSIG = 1

Job = tuple[Callable[..., Any], *tuple[Any, ...]]
"""A module-level function with its arguments after the pool's context and the name of the job."""


class WorkerFailed(Exception):
    """A job raised an error, or its process died."""

    def __init__(self, name: str, cause: Exception):
        super().__init__(f"{name}: {cause}")
        self.name, self.cause = name, cause


@dataclass(frozen=True)
class WorkerContext:
    """The parts of a simulation that every worker has in memory, by client."""

    clients: Mapping[str, Client]
    test_sets: Mapping[str, ClipTestSet]
    learners: Mapping[str, ClipLearner]


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    connection: Connection
    job: str | None = None  # the name of its current job


class WorkerPool:
    """Forked processes with a common context; results do not depend on their number.

    Each job name belongs to one worker, which caches features under it; with `steal`, an idle worker takes jobs of
    others. A worker that dies is replaced, and its job repeated once.
    """

    def __init__(self, count: int, context: Any, sizes: Mapping[str, int]):
        gc.collect()
        gc.freeze()  # the garbage collector would write to every shared page, and so copy it
        self._context = context
        self._workers: list[_Worker] = []
        for _ in range(count):
            self._workers.append(self._fork())
        self.groups = _balanced(sizes, count)
        self._worker_of = {client: number for number, group in enumerate(self.groups) for client in group}

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.connection.close()
            worker.process.join(0 if worker.job else 0.1)  # an idle worker ends when its connection is closed
            worker.process.kill()
            worker.process.join()
        gc.unfreeze()

    def run(
        self,
        jobs: Mapping[str, Job],
        done: Callable[[str], None] = lambda name: None,
        *,
        steal: bool = False,
    ) -> dict[str, Any]:
        """Run jobs, given by name, and return their results in the same order; `done` is called after each job.

        Raises:
            WorkerFailed: A job raised an error, or its process died twice; the other jobs are cancelled.
        """
        queues = [deque[str]() for _ in self._workers]
        for name in jobs:
            queues[self._worker_of.get(name, 0)].append(name)
        try:
            results = self._run_queues(jobs, queues, done, steal)
        except BaseException:
            for worker in [worker for worker in self._workers if worker.job is not None]:
                worker.process.kill()
                self._replace(worker)
            raise
        return {name: results[name] for name in jobs}

    def _run_queues(
        self, jobs: Mapping[str, Job], queues: list[deque[str]], done: Callable[[str], None], steal: bool
    ) -> dict[str, Any]:
        """Send queued jobs to idle workers until all are done; return the results by name, in any order."""
        results: dict[str, Any] = {}
        died: set[str] = set()
        while len(results) < len(jobs):
            for worker, own in zip(self._workers, queues, strict=True):
                queue = max(queues, key=len) if steal and not own else own
                if worker.job is None and queue:
                    worker.job = queue.popleft() if queue is own else queue.pop()
                    with suppress(OSError):  # it died: noticed when its reply is read
                        worker.connection.send((worker.job, jobs[worker.job]))
            busy = {worker.connection: worker for worker in self._workers if worker.job is not None}
            for connection in wait(list(busy)):
                worker = busy[cast(Connection, connection)]
                name = worker.job or ""
                try:
                    error, result = worker.connection.recv()
                except (EOFError, OSError):
                    if name in died:
                        raise WorkerFailed(name, _death_error(worker.process)) from None
                    died.add(name)
                    queues[self._replace(worker)].append(name)
                    continue
                if error is not None:
                    raise WorkerFailed(name, error) from error
                worker.job, results[name] = None, result
                done(name)
        return results

    def _replace(self, dead: _Worker) -> int:
        """Replace a dead worker by a new one, and return its number."""
        dead.connection.close()
        dead.process.join()
        number = self._workers.index(dead)
        self._workers[number] = self._fork()
        return number

    def _fork(self) -> _Worker:
        forking = multiprocessing.get_context("fork")
        ours, theirs = forking.Pipe()
        inherited = [ours, *(worker.connection for worker in self._workers if not worker.connection.closed)]
        process = forking.Process(target=_serve, args=(theirs, inherited, self._context, os.getpid()), daemon=True)
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it would be lost during the fork
        try:
            with warnings.catch_warnings():  # newer Pythons warn of threads, but ours hold no lock that a worker needs
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        theirs.close()
        return _Worker(process, ours)


def _balanced(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Distribute names over groups of similar total size: in the order of size, each into the smallest group.

    >>> _balanced({"a": 5, "b": 4, "c": 3, "d": 3}, 2)
    [['a', 'd'], ['b', 'c']]
    """
    groups: list[list[str]] = [[] for _ in range(count)]
    totals = [0] * count
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        smallest = totals.index(min(totals))
        groups[smallest].append(name)
        totals[smallest] += sizes[name]
    return groups


def _serve(connection: Connection, inherited: list[Connection], context: Any, parent: int) -> None:
    """Run jobs until the parent closes the connection; `inherited` are its ends of all pipes, closed here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # the parent died before prctl
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  (the parent's may be locked)
    for parents_end in inherited:
        parents_end.close()
    with suppress(EOFError, OSError):
        while True:
            name, (function, *arguments) = connection.recv()
            reply: tuple[Exception | None, Any]
            try:
                reply = None, function(context, name, *arguments)
            except Exception as error:
                reply = _picklable(error), None
            connection.send(reply)


def _death_error(process: BaseProcess) -> FedCoPLError:
    process.join()
    code = process.exitcode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return FedCoPLError(f"its process {how}, twice; is there enough memory? --workers 1 needs the least")


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


_WORKERS_VARIABLE = "FEDCOPL_WORKERS"  # environment variable: what `auto` means on this machine
_FLOAT = 4  # bytes
_KEPT_FREED = 1.4  # factor for freed memory that the allocator keeps: docs/decisions/0007


@contextmanager
def open_pool(simulation: "Simulation", requested: WorkerCount) -> Iterator[WorkerPool | None]:
    """Fork the workers of a simulation; None if this process does all work.

    Workers have one thread of torch each. Where workers would be possible, a single process has one thread as well:
    results may depend on the number of threads in the last bit, and must not depend on the number of workers. Several
    threads, by the settings, exclude workers.
    """
    clients, config = simulation.clients, simulation.config
    if len(clients) == 1 or not _can_fork() or simulation.device != "cpu":
        if requested != "auto" and simulation.device != "cpu":
            raise ConfigError(f"workers: need the CPU, and this run uses {simulation.device}; leave it at auto")
        _worker_count(requested, 1)  # only to validate it
        yield None
        return
    clip = simulation.learners[0].model.encoder.clip
    count = workers_for(config, clip, len(clients), simulation.dataset.classes, requested)
    with limit_threads(config.model.threads or 1):
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
    """Return the number of workers of a run, given cores, clients and free memory."""
    jobs = 1 if choose_method(config).centralised else clients
    threads, free = config.model.threads or 1, free_memory()
    if free is None:
        return _worker_count(requested, jobs, threads)
    return _worker_count(requested, jobs, threads, max(1, int(free / working_memory(config, clip, classes))))


def _can_fork() -> bool:
    """Return whether forked processes can share the memory of this one."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def _worker_count(requested: WorkerCount, jobs: int, threads: int = 1, memory_limit: int = sys.maxsize) -> int:
    """Return the number of processes for this number of parallel jobs.

    `auto` is one per core, limited by memory, or the value of FEDCOPL_WORKERS. With several threads of torch there is
    one process, because a forked child would wait forever for the OpenMP threads of its parent.

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
            raise ConfigError(f"workers: each has one thread, but model.threads is {threads}; set only one of the two")
        return 1
    text = os.environ.get(_WORKERS_VARIABLE, "auto") if requested == "auto" else str(requested)
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise ConfigError(f"{_WORKERS_VARIABLE}: should be auto or a number of workers, not {text!r}")
    return max(1, min(jobs, min(available_cores(), memory_limit) if text == "auto" else int(text)))


def working_memory(config: RunConfig, clip: Clip, classes: Sequence[str]) -> float:
    """Return the bytes of a worker's own memory: its activations in encoding and in a training step."""
    method, vision, text = choose_method(config), clip.vision, clip.text
    sentences = clip.sentences([f"{name}." for name in classes])
    shapes = method.shapes(clip, len(classes))
    texts = sum(kind_of(name) == "text" for name in shapes)
    step = texts * _activations(text.shape, len(sentences.shared) + sentences.rest.numel())
    if isinstance(vision, ResNetTower):
        encoding = 5 * _FLOAT * ENCODE_BATCH * vision.attnpool.positional_embedding.numel()
    else:
        encoding = _FLOAT * CHUNK_TOKENS * (5 * vision.shape.width + 2 * vision.shape.hidden)
        images = 0 if method.caches_frozen else config.train.batch
        step += _activations(vision.shape, images * len(vision.positions))
    return _KEPT_FREED * (encoding + step)


def _activations(shape: TowerShape, tokens: int) -> float:
    """Return the bytes that autograd stores for tokens in all blocks: norms, q, k, v, prompts, hidden layer."""
    return _FLOAT * shape.depth * tokens * (8 * shape.width + shape.hidden)

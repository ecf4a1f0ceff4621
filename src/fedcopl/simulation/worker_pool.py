"""A pool of processes that are forked once everything is loaded, so that weights and pixels are in memory once."""

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, cast

from ..errors import FedCoPLError
from ..federation.client import Client
from ..methods.learner import ClipLearner, ClipTestSet

WorkerCount = int | Literal["auto"]
_PR_SET_PDEATHSIG = 1

Job = tuple[Callable[..., Any], *tuple[Any, ...]]
"""A module-level function and its last arguments; the pool's context and the job's name come before them."""


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
    job: str | None = None  # the name of the job it is busy with


class WorkerPool:
    """Forked processes with one common context; results do not depend on how many there are.

    A name belongs to one worker, which keeps what it computed for that name. An idle worker takes a job of another
    only if `steal` is set. A worker that dies is replaced, and its job is done again, once.
    """

    def __init__(self, count: int, context: Any, sizes: Mapping[str, int]):
        gc.collect()
        gc.freeze()  # a garbage collection after the fork would write to, and so copy, every shared page
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
            worker.process.join(0 if worker.job else 0.1)  # an idle one ends when its connection is closed
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
        """Run the jobs and return their results in the same order.

        Args:
            jobs: Function and arguments by name.
            done: Called with a job's name when it has ended.
            steal: Whether an idle worker takes jobs of another.

        Raises:
            WorkerFailed: A job raised an error, or its process died twice; the other jobs are given up.
        """
        queues = [deque[str]() for _ in self._workers]
        for name in jobs:
            queues[self._worker_of.get(name, 0)].append(name)
        try:
            results = self._results(jobs, queues, done, steal)
        except BaseException:
            for worker in [worker for worker in self._workers if worker.job is not None]:
                worker.process.kill()  # its result is not needed any more
                self._replace(worker)
            raise
        return {name: results[name] for name in jobs}

    def _results(
        self, jobs: Mapping[str, Job], queues: list[deque[str]], done: Callable[[str], None], steal: bool
    ) -> dict[str, Any]:
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
                        raise WorkerFailed(name, _death(worker.process)) from None
                    died.add(name)
                    queues[self._replace(worker)].append(name)
                    continue
                if error is not None:
                    raise WorkerFailed(name, error) from error
                worker.job, results[name] = None, result
                done(name)
        return results

    def _replace(self, dead: _Worker) -> int:
        """Fork a worker in the place of a dead one, and return its number."""
        dead.connection.close()
        dead.process.join()
        number = self._workers.index(dead)
        self._workers[number] = self._fork()
        return number

    def _fork(self) -> _Worker:
        forking = multiprocessing.get_context("fork")
        ours, theirs = forking.Pipe()
        not_theirs = [ours, *(worker.connection for worker in self._workers if not worker.connection.closed)]
        process = forking.Process(target=_serve, args=(theirs, not_theirs, self._context, os.getpid()), daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # raised within a fork it would be lost
        try:
            with warnings.catch_warnings():  # newer Pythons warn of threads; ours hold no lock that a worker needs
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return _Worker(process, ours)


def _balanced(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Distribute names over groups of about equal total size: the largest first, each to the smallest group.

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


def _serve(connection: Connection, not_ours: list[Connection], context: Any, parent: int) -> None:
    """Run jobs until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # the parent died before prctl
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  (the parent's may be locked)
    for other in not_ours:
        other.close()
    with suppress(EOFError, OSError):
        while True:
            name, (function, *arguments) = connection.recv()
            reply: tuple[Exception | None, Any]
            try:
                reply = None, function(context, name, *arguments)
            except Exception as error:
                reply = _picklable(error), None
            connection.send(reply)


def _death(process: BaseProcess) -> FedCoPLError:
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

"""Processes that share one machine's work: forked from one that has loaded everything, so nothing is there twice.

A forked process sees the weights, the pixels and all that is already computed in the same memory as its parent. Each
does one job at a time with one thread of torch, so what comes out does not depend on how many there are.
"""

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal

from ..data.parallel import workers as cores
from ..errors import ConfigError
from .even_shares import evenly, longest, wrapped
from .references import Arrays, read, written

HowMany = int | Literal["auto"]
ENVIRONMENT = "FEDCOPL_WORKERS"  # what `auto` means, where a machine's owner says it
MANY = 2**16  # workers: as many as there are cores
BUNDLES_EACH, LARGEST_BUNDLE = 8, 64  # messages to a process in one go, at least; jobs in a message, at most
FEW = 32  # names, of which one more or less makes a process wait
WORTH_MOVING = 0.97  # of the longest time: a name that moves leaves behind what was computed for it
DIE_WITH_PARENT = 1  # Linux' number of PR_SET_PDEATHSIG

Work = Callable[[str, Any], Any]
"""Does a job under a name; the name says whose it is, unless the job has the names of several `clients`."""
Done = Callable[[str, Any, float], None]
"""Told the name, the result and the seconds of each job when it is done, in whatever order."""


class WorkerLost(Exception):
    """A process ended over a job, and so did the one that was alone with it then."""

    def __init__(self, code: int | None):
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with {code}"
        super().__init__(f"its process {how}, twice; is there enough memory? --workers 1 needs least")


@dataclass(frozen=True)
class Unfinished:
    """What comes of a job that was to be done in part only: the job that is left."""

    rest: Any


class JobFailed(Exception):
    """The job of this name raised an error, or cost a process twice."""

    def __init__(self, name: str, cause: Exception):
        super().__init__(f"{name}: {cause}")
        self.name, self.cause = name, cause


def can_fork() -> bool:
    """Whether processes here can share what this one has loaded; elsewhere everything is done by this one."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def how_many(wanted: HowMany, jobs: int, threads: int = 1, room: int = MANY) -> int:
    """How many processes for so many jobs at a time, each with so many threads; ConfigError where they cannot be.

    `auto` is one for each core, as long as there is room for them in memory.

    >>> how_many(3, jobs=2), how_many(1, jobs=5)
    (2, 1)
    """
    if wanted != "auto" and wanted < 1:
        raise ConfigError(f"workers: should be auto or at least 1, not {wanted}")
    if not can_fork():
        if wanted not in ("auto", 1):
            raise ConfigError("workers: only Linux can share a loaded model between processes; leave it at auto")
        return 1
    said = os.environ.get(ENVIRONMENT, "auto") if wanted == "auto" else str(wanted)
    if said != "auto" and not (said.isdecimal() and int(said)):
        raise ConfigError(f"{ENVIRONMENT}: should be auto or a number of workers, not {said!r}")
    return max(1, min(jobs, min(cores() // threads, room) if said == "auto" else int(said)))


@dataclass(eq=False)
class WorkerProcess:
    """One of the processes, and what it is busy with."""

    process: BaseProcess
    line: Connection
    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by name, and whose each is
    sent: Arrays = field(default_factory=list)  # along with these jobs

    def give(self, jobs: Mapping[str, Any]) -> None:
        self.jobs = {name: getattr(job, "clients", (name,)) for name, job in jobs.items()}
        message, self.sent = written(dict(jobs), [])
        with suppress(OSError):  # it is gone: found out when its answer is taken
            self.line.send_bytes(message)

    def end(self) -> None:
        self.line.close()
        self.process.join(0 if self.jobs else 0.1)  # one without a job ends by itself
        self.process.kill()
        self.process.join()


class Waiting:
    """Jobs that nobody does yet, by the process that did the last one under the same name."""

    def __init__(self, names: Iterable[str], home: Mapping[str, WorkerProcess]):
        self._queues: dict[WorkerProcess | None, deque[str]] = {}
        for name in names:
            self.add(name, home.get(name))

    def add(self, name: str, home: WorkerProcess | None) -> None:
        """Behind all others of that process."""
        self._queues.setdefault(home, deque()).append(name)

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def take(self, worker: WorkerProcess, most: int, stay_with: Collection[WorkerProcess] = ()) -> list[str]:
        """What this one did before, if it is waiting; else what nobody did; else what another has no time for.

        But nothing of another that it is to stay with, as long as that one is there.
        """
        others = (queue for home, queue in self._queues.items() if home not in stay_with)
        queues = (self._queues.get(worker), self._queues.get(None), max(others, key=len, default=None))
        queue = next((queue for queue in queues if queue), deque())
        return [queue.popleft() for _ in range(min(most, len(queue)))]


class Workers:
    """Processes that all know `work`, and all it knows.

    A job goes to the process that did the last one under its name, which still has at hand what it computed for it,
    unless another is idle; where there are many, several go in one message. Where there are few, a job of several
    `parts` may begin in one process and end in another, so that all are done at the same time. A process that ends,
    killed or crashed, is replaced, and its jobs are done again, with no other beside them: it may have been memory that
    was short.

    >>> with Workers(2, lambda name, job: job * 10) as pool:
    ...     pool.run({"north": 1, "south": 2, "west": 3})
    {'north': 10, 'south': 20, 'west': 30}
    """

    def __init__(self, count: int, work: Work, sizes: Mapping[str, int] | None = None):
        self._work, self._sizes = work, dict(sizes or {})
        self._seconds: dict[str, dict[str, float]] = {}  # name -> kind of job -> how long the last one took
        self._home: dict[str, WorkerProcess] = {}
        self._workers: list[WorkerProcess] = []
        self._last_exit: int | None = None  # of the last process that was lost
        _leave_in_peace()
        for _ in range(count):
            self._workers.append(self._fork())

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        gc.unfreeze()

    def run(self, jobs: Mapping[str, Any], done: Done | None = None, *, stay: bool = False) -> dict[str, Any]:
        """The results in the order of the jobs; JobFailed if one raised an error.

        Jobs that `stay` wait for the process that has at hand what was computed for them, even if another is idle.
        """
        results: dict[str, Any] = {}
        took = dict.fromkeys(jobs, 0.0)
        left, ends_at = dict(jobs), dict[str, WorkerProcess]()  # what is left of each, and by whom it is ended

        def take(name: str, result: Any, seconds: float) -> None:
            took[name] += seconds
            if isinstance(result, Unfinished):
                left[name] = result.rest
                waiting.add(name, ends_at.get(name))
                return
            results[name] = result
            self._seconds.setdefault(name, {})[_kind(jobs[name])] = took[name]
            if done is not None:
                done(name, result, took[name])

        bundle = min(LARGEST_BUNDLE, max(1, len(jobs) // (BUNDLES_EACH * len(self._workers))))
        if self._can_be_cut(jobs):
            waiting, ends_at = self._in_parts(left)
        else:
            self._share_out(jobs)
            waiting = Waiting(self._longest_first(jobs), self._home)
        lost = self._do(waiting, left, take, self._workers, bundle, self._workers if stay else ())
        for name in lost:
            waiting = Waiting([name], {})
            if self._do(waiting, left, take, self._workers[:1], 1):
                raise JobFailed(name, WorkerLost(self._last_exit))
        return {name: results[name] for name in jobs}

    def _in_parts(self, jobs: dict[str, Any]) -> tuple[Waiting, dict[str, WorkerProcess]]:
        """Jobs for each process, as long as those of any other: some are cut, and end in another than they begin in."""
        lengths = {name: self._seconds[name][_kind(job)] for name, job in jobs.items()}
        groups = [[name for name in jobs if self._home[name] is worker] for worker in self._workers]
        waiting, ends_at = Waiting((), {}), dict[str, WorkerProcess]()
        for number, (worker, own) in enumerate(zip(self._workers, wrapped(groups, lengths), strict=True)):
            for name, share in own:
                parts = round(share * jobs[name].parts)
                if 0 < parts < jobs[name].parts:
                    jobs[name], ends_at[name] = jobs[name].up_to(parts), self._workers[number - 1]
                waiting.add(name, worker if parts else self._workers[number - 1])
        return waiting, ends_at

    def _can_be_cut(self, jobs: Mapping[str, Any]) -> bool:
        """Whether all are of several parts, and it is known how long each takes; of many nobody waits for one."""
        known = (
            getattr(job, "parts", 1) > 1 and name in self._home and _kind(job) in self._seconds.get(name, ())
            for name, job in jobs.items()
        )
        return 1 < len(jobs) <= FEW and len(self._workers) > 1 and all(known)

    def grouped(self, names: Iterable[str]) -> list[list[str]]:
        """Names by the process that did the last job under them, for jobs about several."""
        groups: dict[WorkerProcess | None, list[str]] = {}
        for name in names:
            groups.setdefault(self._home.get(name), []).append(name)
        return list(groups.values())

    def _share_out(self, jobs: Mapping[str, Any]) -> None:
        """Let few names have homes that are busy for about as long as each other, by all that each has taken so far."""
        if len(jobs) > FEW or not all(name in self._home and name in self._seconds for name in jobs):
            return
        lengths = {name: sum(self._seconds[name].values()) for name in jobs}
        now = [[name for name in jobs if self._home[name] is worker] for worker in self._workers]
        evener = evenly(now, lengths)
        if longest(evener, lengths) < WORTH_MOVING * longest(now, lengths):
            self._home |= {name: worker for worker, own in zip(self._workers, evener, strict=True) for name in own}

    def _longest_first(self, jobs: Mapping[str, Any]) -> list[str]:
        """So that none is left over at the end with a long one."""

        def length(name: str) -> tuple[float, int]:
            known = self._seconds.get(name, {})
            return known.get(_kind(jobs[name]), float("inf")), self._sizes.get(name, 0)

        return sorted(jobs, key=length, reverse=True)

    def _do(
        self,
        waiting: Waiting,
        jobs: Mapping[str, Any],
        take: Done,
        workers: list[WorkerProcess],
        bundle: int,
        stay_with: Collection[WorkerProcess] = (),
    ) -> list[str]:
        """Do what is waiting; the names of the jobs over which a process was lost."""
        lost: list[str] = []
        try:
            while waiting or any(worker.jobs for worker in workers):
                for worker in workers:
                    if not worker.jobs and (names := waiting.take(worker, bundle, stay_with)):
                        worker.give({name: jobs[name] for name in names})
                for worker in self._ready():
                    lost += self._take(worker, take)
        except BaseException:
            self._begin_anew()
            raise
        return lost

    def _ready(self) -> Iterator[WorkerProcess]:
        by_line = {worker.line: worker for worker in self._workers if worker.jobs}
        for line in wait(list(by_line)):
            yield by_line[line]  # type: ignore[index]

    def _take(self, worker: WorkerProcess, take: Done) -> list[str]:
        """What a process has to say; its jobs' names again if the process is gone."""
        given, worker.jobs = worker.jobs, {}
        try:
            said, _ = read(worker.line.recv_bytes(), worker.sent)
        except (EOFError, OSError):
            self._replace(worker)
            return list(given)
        for name, (error, result, seconds) in zip(given, said, strict=False):  # it stops at an error
            if error is not None:
                raise JobFailed(name, error) from error
            self._home |= dict.fromkeys(given[name], worker)
            take(name, result, seconds)
        return []

    def _replace(self, gone: WorkerProcess) -> None:
        gone.end()
        self._last_exit = gone.process.exitcode
        self._home = {name: worker for name, worker in self._home.items() if worker is not gone}
        _leave_in_peace()
        fresh = self._fork()
        self._workers[:] = [fresh if worker is gone else worker for worker in self._workers]

    def _begin_anew(self) -> None:
        """After an error: what others are still busy with is of no use to anybody."""
        for worker in [worker for worker in self._workers if worker.jobs]:
            self._replace(worker)

    def _fork(self) -> WorkerProcess:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        others = [worker.line for worker in self._workers]
        process = context.Process(target=_serve, args=(theirs, [ours, *others], self._work, os.getpid()), daemon=True)
        with warnings.catch_warnings():  # newer Pythons warn of threads; ours hold no lock that work could want
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return WorkerProcess(process, ours)


def _kind(job: Any) -> str:
    """What was asked, where a job asks somebody something."""
    return type(getattr(job, "ask", job)).__name__


def _leave_in_peace() -> None:
    """Let nobody look for garbage among what is there before a fork.

    The first collection in each process would write to, and so copy, every page; and in the parent each would look
    through what belongs to thousands of clients, and stays.
    """
    gc.collect()
    gc.freeze()


def _serve(line: Connection, not_ours: list[Connection], work: Work, parent: int) -> None:
    """What each process does: job after job, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is for the parent, who ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it died before it could be told to us
    for other in not_ours:
        other.close()
    with suppress(EOFError, OSError):
        while True:
            jobs, got = read(line.recv_bytes(), [])
            line.send_bytes(written(_all_done(work, jobs), got)[0])


Said = tuple[Exception | None, Any, float]
"""What a job raised, or what came of it; and its seconds."""


def _all_done(work: Work, jobs: Mapping[str, Any]) -> list[Said]:
    """One after the other, up to the first that raised an error."""
    said: list[Said] = []
    for name, job in jobs.items():
        said.append(_done(work, name, job))
        if said[-1][0] is not None:
            break
    return said


def _done(work: Work, name: str, job: Any) -> Said:
    began = time.perf_counter()
    try:
        return None, work(name, job), time.perf_counter() - began
    except Exception as error:
        return _that_travels(error), None, time.perf_counter() - began


def _that_travels(error: Exception) -> Exception:
    """The error itself where it can be sent, else one with its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error

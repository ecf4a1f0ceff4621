"""Execution of a grid of runs; it skips finished runs, resumes interrupted ones, and continues after failures.

The folder of a grid has `results.sqlite` and a folder `runs/<key>/` for each run. A grid has no other state, so it
may be killed at any moment, and two grids may use one folder.
"""

import platform
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError, Interrupted
from fedcopl.plurals import counted
from fedcopl.run.record import Outcome

from .grid_workers import Messages, Worker, devices
from .run_folders import drop_checkpoint, finished_outcome, write_missing_report
from .run_key import code_version, run_key
from .store import FILE_NAME, ResultStore, StoredRun
from .worker_messages import Crashed, Done, Failed, Progressed, RunsElsewhere, RunTask, WorkerEnded, WorkerMessage

RUNS = "runs"
RETRY = 1.0  # seconds between attempts to start a run that another grid is executing


@dataclass(frozen=True)
class GridOutcome:
    """The keys of finished, skipped and failed runs."""

    done: tuple[str, ...]
    skipped: tuple[str, ...]  # finished before this grid, or by another one
    failed: Mapping[str, str]  # key: reason


class GridWatcher(Protocol):
    """Receives the events of a grid."""

    def planned(self, total: int, done_before: int) -> None: ...
    def started(self, key: str, config: RunConfig) -> None: ...
    def progressed(self, key: str, round: int, rounds: int) -> None:
        """`round` of `rounds` rounds are finished."""
        ...

    def finished(self, key: str, outcome: Outcome) -> None: ...
    def failed(self, key: str, message: str) -> None: ...


def run_grid(configs: Sequence[RunConfig], folder: Path, *, jobs: int = 1, watcher: GridWatcher) -> GridOutcome:
    """Execute every run that is not finished, `jobs` at a time, each in its own process."""
    if jobs < 1:
        raise ConfigError(f"jobs: should be 1 or more (given: {jobs})")
    grid = _Grid(_by_key(configs, jobs), folder, jobs, watcher)
    try:
        grid.execute()
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"stopped with {grid.settled} of {counted(grid.total, 'run')} done; the same command continues"
        ) from error
    finally:
        grid.stop()
    return grid.outcome()


def _by_key(configs: Sequence[RunConfig], jobs: int) -> dict[str, RunConfig]:
    runs: dict[str, RunConfig] = {}
    for config in configs:
        runs.setdefault(run_key(config), _with_threads(config, jobs))
    return runs


def _with_threads(config: RunConfig, jobs: int) -> RunConfig:
    """Give each of several runs one thread; a single run distributes its clients over all cores itself."""
    threads = config.model.threads or (1 if jobs > 1 else 0)
    return config.model_copy(update={"model": config.model.model_copy(update={"threads": threads})})


@dataclass
class _ActiveRun:
    """A run that a worker of this grid executes."""

    key: str
    started: str
    began: float


class _Grid:
    def __init__(self, configs: Mapping[str, RunConfig], folder: Path, jobs: int, watcher: GridWatcher):
        self._configs, self._folder, self._jobs, self._watcher = configs, folder, jobs, watcher
        self._store = ResultStore(folder / FILE_NAME)
        self._waiting: deque[str] = deque()
        self._elsewhere: deque[str] = deque()  # executed by another grid
        self._active: dict[Worker, _ActiveRun] = {}
        self._idle: list[Worker] = []
        self._messages: Messages = SimpleQueue()
        self._devices = devices()
        self._done: list[str] = []
        self._skipped: list[str] = []
        self._failed: dict[str, str] = {}

    @property
    def total(self) -> int:
        return len(self._configs)

    @property
    def settled(self) -> int:
        return len(self._done) + len(self._skipped)

    def outcome(self) -> GridOutcome:
        return GridOutcome(tuple(self._done), tuple(self._skipped), dict(self._failed))

    def execute(self) -> None:
        done = self._store.done()
        self._skipped += [key for key in self._configs if key in done]
        self._waiting = deque(key for key in self._configs if key not in done)
        self._watcher.planned(self.total, len(self._skipped))
        while self._waiting or self._active or self._elsewhere:
            self._start_runs()
            if self._active or self._elsewhere:
                self._wait()

    def stop(self) -> None:
        for worker in [*self._idle, *self._active]:
            worker.stop()

    def _start_runs(self) -> None:
        """Start runs in all free workers."""
        while self._waiting and len(self._active) < self._jobs:
            key = self._waiting.popleft()
            if not self._settle_finished(key):
                self._begin(key)

    def _settle_finished(self, key: str) -> bool:
        """Return whether the run is finished already, by another grid or by one that was killed before recording it."""
        stored = self._store.find(key)
        if stored is not None and stored.outcome is not None:
            self._skipped.append(key)
            self._watcher.finished(key, stored.outcome)
            return True
        outcome = finished_outcome(self._folder_of(key))
        if outcome is not None:
            write_missing_report(self._folder_of(key))
            self._finish(_ActiveRun(key, _now(), time.monotonic()), outcome)
        return outcome is not None

    def _free_worker(self) -> Worker:
        """Return an idle worker, or a new one on the GPU with the fewest."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            worker.stop()
        used = [worker.device for worker in self._active]
        device = min(self._devices, key=used.count, default=None)
        return Worker(self._messages, device, shares_cores=self._jobs > 1)

    def _begin(self, key: str) -> None:
        config, run = self._configs[key], _ActiveRun(key, _now(), time.monotonic())
        try:
            worker = self._free_worker()
        except OSError as error:
            self._fail(run, f"its process cannot be started: {error.strerror}")
            return
        self._active[worker] = run
        worker.start(RunTask(config.model_dump(), str(self._folder_of(key).absolute()), code_version()))
        self._watcher.started(key, config)

    def _wait(self) -> None:
        """Wait for one message."""
        try:
            worker, message = self._messages.get(timeout=RETRY if self._elsewhere else None)
        except Empty:
            self._waiting.extend(self._elsewhere)
            self._elsewhere.clear()
            return
        run = self._active.get(worker)
        if run is not None:
            self._handle(worker, run, message)

    def _handle(self, worker: Worker, run: _ActiveRun, message: WorkerMessage) -> None:
        if isinstance(message, Progressed):
            self._watcher.progressed(run.key, message.round, message.rounds)
            return
        del self._active[worker]
        self._settle(worker, run, message)
        if isinstance(message, Crashed | WorkerEnded):
            worker.stop()
        else:
            self._idle.append(worker)

    def _settle(self, worker: Worker, run: _ActiveRun, message: WorkerMessage) -> None:
        match message:
            case Done(outcome):
                self._finish(run, outcome)
            case RunsElsewhere():
                self._elsewhere.append(run.key)
            case Failed(reason) | Crashed(reason):
                self._fail(run, reason)
            case WorkerEnded():
                self._fail(run, worker.end_reason())

    def _finish(self, run: _ActiveRun, outcome: Outcome) -> None:
        self._store.record(self._stored(run, outcome=outcome))
        drop_checkpoint(self._folder_of(run.key))
        self._done.append(run.key)
        self._watcher.finished(run.key, outcome)

    def _fail(self, run: _ActiveRun, message: str) -> None:
        stored = self._stored(run, error=message)
        self._store.record(stored)
        self._failed[run.key] = stored.reason
        self._watcher.failed(run.key, stored.reason)

    def _stored(self, run: _ActiveRun, *, outcome: Outcome | None = None, error: str | None = None) -> StoredRun:
        result = outcome or Outcome(
            settings=self._configs[run.key].model_dump(),
            seconds=time.monotonic() - run.began,
            versions={"python": platform.python_version(), "fedcopl": version("fedcopl")},
        )
        return StoredRun(
            key=run.key,
            status="failed" if outcome is None else "done",
            settings=result.settings,
            outcome=outcome,
            error=error,
            seconds=result.seconds,
            host=platform.node(),
            code=code_version(),
            versions=result.versions,
            started=run.started,
            finished=_now(),
            folder=f"{RUNS}/{run.key}",
        )

    def _folder_of(self, key: str) -> Path:
        return self._folder / RUNS / key


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

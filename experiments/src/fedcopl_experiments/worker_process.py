"""Worker process of a grid: it executes one run after another and imports the package once.

Tasks arrive as lines of JSON on stdin, messages leave as lines of JSON on stdout. The process ends when stdin is
closed, because the grid has then ended or was killed.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from fedcopl.config import RunConfig, load
from fedcopl.errors import FedCoPLError, RunFolderError
from fedcopl.plugins import load_plugins
from fedcopl.run.folder import SETTINGS, RunFolder
from fedcopl.run.progress_reporter import ProgressReporter
from fedcopl.run.record import RoundRecord

from .run_folders import whole_outcome, write_missing_report
from .run_key import code_version, run_key
from .scales import FEATURES
from .worker_messages import (
    Crashed,
    Done,
    Failed,
    Progressed,
    RunsElsewhere,
    RunTask,
    WorkerMessage,
    message_to_line,
    task_from_line,
)

SendMessage = Callable[[WorkerMessage], None]


class WorkerReporter(ProgressReporter):
    """Reports the number of finished rounds to the grid."""

    def __init__(self, send: SendMessage, rounds: int):
        self._send, self._rounds = send, rounds

    def started(self, config: RunConfig, clients: int, done: int) -> None:
        self._send(Progressed(done, self._rounds))

    def round_done(self, record: RoundRecord) -> None:
        self._send(Progressed(record.number, self._rounds))


def main() -> None:
    """Execute tasks until stdin is closed."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes of the terminal; the grid stops its workers
    send = _take_stdout()
    tasks: SimpleQueue[RunTask] = SimpleQueue()
    Thread(target=_receive, args=(tasks,), daemon=True).start()
    load_plugins()
    while True:
        execute(tasks.get(), send)


def _take_stdout() -> SendMessage:
    """Reserve stdout for messages; output of libraries is discarded."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)

    def send(message: WorkerMessage) -> None:
        pipe.write(message_to_line(message))
        pipe.flush()

    return send


def _receive(tasks: "SimpleQueue[RunTask]") -> None:
    """Queue the tasks; end the process when the grid has closed stdin.

    Unbuffered, because `sys.stdin` holds a lock while it waits: a simulation forks its workers meanwhile, and
    `multiprocessing` closes `sys.stdin` in each of them, which would wait for that lock forever.
    """
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        for line in stdin:
            tasks.put(task_from_line(line.decode()))
    os._exit(1)


def execute(task: RunTask, send: SendMessage) -> None:
    """Execute one run and send its result. The process ends after an unexpected error, as its state is unknown."""
    try:
        send(_execute(task, send))
    except FedCoPLError as error:
        in_use = isinstance(error, RunFolderError) and isinstance(error.__cause__, TimeoutError)
        send(RunsElsewhere() if in_use else Failed(str(error)))
    except Exception as error:
        reason = " ".join(str(error).split())
        send(Crashed(f"{type(error).__name__}: {reason}\n{traceback.format_exc()}"))
        sys.exit(1)


def _execute(task: RunTask, send: SendMessage) -> WorkerMessage:
    if code_version() != task.code:
        raise RunFolderError("the source files changed after the grid was started: start it again")
    from fedcopl.simulation.simulate import simulate  # imports torch

    folder = Path(task.folder)
    with RunFolder(folder):  # under its lock: another grid may be writing its last files
        if whole_outcome(folder) is not None:
            return RunsElsewhere()
    config = as_begun(RunConfig.from_mapping(task.settings, "grid"), folder)
    given: dict[str, Any] = {}
    if config.data.source == FEATURES:
        from .stored_features import load_features

        given["dataset"], given["clip"] = load_features(Path(config.data.path))
    outcome = simulate(config, folder, resume=True, progress=WorkerReporter(send, config.rounds), **given)
    write_missing_report(folder)
    return Done(outcome)


def as_begun(config: RunConfig, folder: Path) -> RunConfig:
    """Return the settings in the folder if they have the same run key, so that the run can be resumed."""
    settings = folder / SETTINGS
    begun = load(settings) if settings.exists() else config
    return begun if run_key(begun) == run_key(config) else config

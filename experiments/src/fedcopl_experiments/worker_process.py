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

from .run_folders import finished_outcome, write_missing_report
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
    # Ctrl-C reaches all processes of the terminal; the grid stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    send = _redirect_stdout()
    tasks: SimpleQueue[RunTask] = SimpleQueue()
    Thread(target=_receive, args=(tasks,), daemon=True).start()
    load_plugins()
    while True:
        execute(tasks.get(), send)


def _redirect_stdout() -> SendMessage:
    """Reserve stdout for messages and discard output of libraries; return the function that sends a message."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 1)

    def send(message: WorkerMessage) -> None:
        pipe.write(message_to_line(message))
        pipe.flush()

    return send


def _receive(tasks: "SimpleQueue[RunTask]") -> None:
    """Queue the tasks; end the process when the grid has closed stdin.

    Stdin is read unbuffered, because `sys.stdin` holds a lock while it waits: a simulation forks workers meanwhile, and
    `multiprocessing` closes `sys.stdin` in each of them, which would wait for the lock forever.
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
    with RunFolder(folder):  # its lock is needed, because another grid may be writing the last files
        if finished_outcome(folder) is not None:
            return RunsElsewhere()
    config = settings_to_resume(RunConfig.from_mapping(task.settings, "grid"), folder)
    features: dict[str, Any] = {}
    if config.data.source == FEATURES:
        from .stored_features import load_features

        features["dataset"], features["clip"] = load_features(Path(config.data.path))
    try:
        outcome = simulate(config, folder, resume=True, progress=WorkerReporter(send, config.rounds), **features)
    except RunFolderError:
        if finished_outcome(folder) is None:
            raise
        return RunsElsewhere()  # another grid has finished it since the check above
    write_missing_report(folder)
    return Done(outcome)


def settings_to_resume(config: RunConfig, folder: Path) -> RunConfig:
    """Return the settings of a started run in the folder if their run key is the same, otherwise `config`."""
    file = folder / SETTINGS
    started = load(file) if file.exists() else config
    return started if run_key(started) == run_key(config) else config

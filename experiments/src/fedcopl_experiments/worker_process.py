"""A process that plays one run after another for a grid: the program and the model are loaded once.

Tasks come by lines of JSON on its stdin, answers go by lines of JSON on its stdout. When the stdin ends, the grid is
gone, however rudely, and nothing is left to compute for.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from fedcopl.config import RunConfig, load
from fedcopl.errors import FedCoPLError, RunFolderError
from fedcopl.plugins import load_plugins
from fedcopl.run.folder import SETTINGS
from fedcopl.run.progress_reporter import SilentReporter
from fedcopl.run.record import RoundRecord

from .run_folders import whole_outcome, write_missing_report
from .run_key import code_version, run_key
from .worker_messages import (
    Broken,
    Done,
    Failed,
    PlayedElsewhere,
    Progressed,
    RunTask,
    WorkerMessage,
    message_to_line,
    task_from_line,
)

SendMessage = Callable[[WorkerMessage], None]


class WorkerReporter(SilentReporter):
    """Says after each round how far the run is."""

    def __init__(self, send: SendMessage, rounds: int):
        self._send, self._rounds = send, rounds

    def started(self, config: RunConfig, clients: int, done: int) -> None:
        self._send(Progressed(done, self._rounds))

    def round_done(self, record: RoundRecord) -> None:
        self._send(Progressed(record.number, self._rounds))


def main() -> None:
    """Answer until there is nobody to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody at the terminal: the grid decides
    send = _take_stdout()
    tasks: SimpleQueue[RunTask] = SimpleQueue()
    Thread(target=_receive, args=(tasks,), daemon=True).start()
    load_plugins()
    while True:
        play(tasks.get(), send)


def _take_stdout() -> SendMessage:
    """Keep the stdout for answers; what a library prints on it is for nobody."""
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
    `multiprocessing` closes `sys.stdin` in each of them, which would wait for that lock for ever.
    """
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        for line in stdin:
            tasks.put(task_from_line(line.decode()))
    os._exit(1)


def play(task: RunTask, send: SendMessage) -> None:
    """Play one run and say how it went. After a surprise the process ends: nobody knows what it left in memory."""
    try:
        send(_play(task, send))
    except FedCoPLError as error:
        in_use = isinstance(error, RunFolderError) and isinstance(error.__cause__, TimeoutError)
        send(PlayedElsewhere() if in_use else Failed(str(error)))
    except Exception as error:
        reason = " ".join(str(error).split())
        send(Broken(f"{type(error).__name__}: {reason}\n{traceback.format_exc()}"))
        sys.exit(1)


def _play(task: RunTask, send: SendMessage) -> WorkerMessage:
    if code_version() != task.code:
        raise RunFolderError("the program's files changed after the grid was started: start it again")
    from fedcopl.simulation.simulate import simulate  # brings torch

    folder = Path(task.folder)
    if whole_outcome(folder) is not None:  # ended by another grid since this one looked
        return PlayedElsewhere()
    config = as_begun(RunConfig.from_mapping(task.settings, "grid"), folder)
    outcome = simulate(config, folder, resume=True, progress=WorkerReporter(send, config.rounds))
    write_missing_report(folder)
    return Done(outcome)


def as_begun(config: RunConfig, folder: Path) -> RunConfig:
    """The settings the folder was begun with, where they differ in nothing that can change the result."""
    settings = folder / SETTINGS
    begun = load(settings) if settings.exists() else config
    return begun if run_key(begun) == run_key(config) else config

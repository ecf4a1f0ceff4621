"""A process that plays one run after another for a grid: the program and the model are loaded once.

It is told what to play by lines of JSON on its stdin and answers by lines of JSON on its stdout. When the stdin ends,
the grid is gone, however rudely, and nothing is left to compute for.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from fedcopl.config import RunConfig, load
from fedcopl.errors import FedCoPLError, RunFolderError
from fedcopl.run.watcher import SilentWatcher

from .folders import whole_results
from .run_key import code_version, run_key

Answer = Callable[[Mapping[str, Any]], None]
ELSEWHERE = {"kind": "elsewhere"}  # another grid plays it, or just did


class ProgressTeller(SilentWatcher):
    """Says after each round how far the run is."""

    def __init__(self, answer: Answer, rounds: int):
        self._answer, self._rounds = answer, rounds

    def started(self, config: RunConfig, clients: int, done: int) -> None:
        self._tell(done)

    def round_done(self, record: Mapping[str, Any]) -> None:
        self._tell(record["round"] + 1)

    def _tell(self, done: int) -> None:
        self._answer({"kind": "progressed", "round": done, "rounds": self._rounds})


def main() -> None:
    """Answer until there is nobody to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches everybody at the terminal: the grid decides
    answer = _take_stdout()
    tasks: SimpleQueue[dict[str, Any]] = SimpleQueue()
    Thread(target=_receive, args=(tasks,), daemon=True).start()
    while True:
        play(tasks.get(), answer)


def _take_stdout() -> Answer:
    """Keep the stdout for answers; what a library prints on it is for nobody."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)

    def answer(message: Mapping[str, Any]) -> None:
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()

    return answer


def _receive(tasks: "SimpleQueue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        tasks.put(json.loads(line))
    os._exit(1)


def play(task: Mapping[str, Any], answer: Answer) -> None:
    """Play one run and tell how it went. After a surprise the process ends: nobody knows what it left in memory."""
    try:
        answer(_play(task, answer))
    except FedCoPLError as error:
        in_use = isinstance(error, RunFolderError) and isinstance(error.__cause__, TimeoutError)
        answer(ELSEWHERE if in_use else {"kind": "failed", "message": str(error)})
    except Exception as error:
        told = " ".join(str(error).split())
        answer({"kind": "broken", "message": f"{type(error).__name__}: {told}\n{traceback.format_exc()}"})
        sys.exit(1)


def _play(task: Mapping[str, Any], answer: Answer) -> Mapping[str, Any]:
    if code_version() != task["code"]:
        raise RunFolderError("the program's files changed after the grid was started: start it again")
    from fedcopl.simulation.simulate import simulate  # brings torch

    folder = Path(task["folder"])
    if whole_results(folder) is not None:  # ended by another grid since this one looked
        return ELSEWHERE
    config = as_begun(RunConfig.from_mapping(task["settings"], "grid"), folder)
    results = simulate(config, folder, resume=True, watcher=ProgressTeller(answer, config.rounds))
    return {"kind": "done", "results": results}


def as_begun(config: RunConfig, folder: Path) -> RunConfig:
    """The settings the folder was begun with, where they differ in nothing that can change the result."""
    settings = folder / "settings.toml"
    begun = load(settings) if settings.exists() else config
    return begun if run_key(begun) == run_key(config) else config

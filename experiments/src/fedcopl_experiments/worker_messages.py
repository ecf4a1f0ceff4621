"""Messages between a grid and its worker processes, one line of JSON each."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedcopl.run.record import Outcome, read_outcome, to_plain


@dataclass(frozen=True)
class RunTask:
    """A run that a worker executes: settings and folder."""

    settings: Mapping[str, Any]
    folder: str
    code: str  # version of the code that the grid started with


@dataclass(frozen=True)
class Progressed:
    """Number of finished rounds."""

    round: int
    rounds: int


@dataclass(frozen=True)
class Done:
    """The run is finished."""

    outcome: Outcome


@dataclass(frozen=True)
class RunsElsewhere:
    """Another grid is executing the run or has just finished it."""


@dataclass(frozen=True)
class Failed:
    """The run failed with a `FedCoPLError`; the process can execute another run."""

    message: str


@dataclass(frozen=True)
class Crashed:
    """The run failed with an unexpected error; the process ends."""

    message: str


@dataclass(frozen=True)
class WorkerEnded:
    """The process has ended; created by the thread that reads its messages."""


WorkerMessage = Progressed | Done | RunsElsewhere | Failed | Crashed | WorkerEnded
KINDS: dict[str, type[Progressed | RunsElsewhere | Failed | Crashed]] = {
    kind.__name__: kind for kind in (Progressed, RunsElsewhere, Failed, Crashed)
}


def task_to_line(task: RunTask) -> str:
    return json.dumps(asdict(task)) + "\n"


def task_from_line(line: str) -> RunTask:
    return RunTask(**json.loads(line))


def message_to_line(message: WorkerMessage) -> str:
    plain = to_plain(message.outcome) if isinstance(message, Done) else asdict(message)
    return json.dumps([type(message).__name__, plain]) + "\n"


def message_from_line(line: str) -> WorkerMessage:
    """Parse a message; raises ValueError for an incomplete line."""
    kind, plain = json.loads(line)
    return Done(read_outcome(plain)) if kind == Done.__name__ else KINDS[kind](**plain)

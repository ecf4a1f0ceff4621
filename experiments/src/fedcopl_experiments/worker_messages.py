"""What a grid and its worker processes say to each other: one line of JSON each."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedcopl.run.record import Outcome, read_outcome, to_plain


@dataclass(frozen=True)
class RunTask:
    """From the grid: play this run in this folder."""

    settings: Mapping[str, Any]
    folder: str
    code: str  # version of the program that the grid started with


@dataclass(frozen=True)
class Progressed:
    """So many rounds are done."""

    round: int
    rounds: int


@dataclass(frozen=True)
class Done:
    """The run came to its end."""

    outcome: Outcome


@dataclass(frozen=True)
class PlayedElsewhere:
    """Another grid plays it, or just did."""


@dataclass(frozen=True)
class Failed:
    """An error that the program knows; the process is as good as before."""

    message: str


@dataclass(frozen=True)
class Broken:
    """A surprise; the process ends."""

    message: str


@dataclass(frozen=True)
class Ended:
    """The process is no more. Not said by it, but for it."""


WorkerMessage = Progressed | Done | PlayedElsewhere | Failed | Broken | Ended
KINDS: dict[str, type[Progressed | PlayedElsewhere | Failed | Broken]] = {
    kind.__name__: kind for kind in (Progressed, PlayedElsewhere, Failed, Broken)
}


def task_to_line(task: RunTask) -> str:
    return json.dumps(asdict(task)) + "\n"


def task_from_line(line: str) -> RunTask:
    return RunTask(**json.loads(line))


def message_to_line(message: WorkerMessage) -> str:
    plain = to_plain(message.outcome) if isinstance(message, Done) else asdict(message)
    return json.dumps([type(message).__name__, plain]) + "\n"


def message_from_line(line: str) -> WorkerMessage:
    """ValueError for what is no whole line."""
    kind, plain = json.loads(line)
    return Done(read_outcome(plain)) if kind == Done.__name__ else KINDS[kind](**plain)

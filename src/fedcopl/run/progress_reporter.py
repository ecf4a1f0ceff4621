"""The protocol of progress reports, in a module that does not import torch."""

from typing import Protocol

from ..config import RunConfig
from ..messages import Request
from .record import RoundRecord

STEPS = {  # what clients do at each request
    "adapt": "estimating priors",
    "estimate": "labelling",
    "select": "selecting",
    "train": "training",
    "evaluate": "evaluating",
}


class ProgressReporter(Protocol):
    """Receives the progress of a run."""

    def preparing(self, what: str) -> None:
        """A step before the first round begins."""

    def prepared(self, done: int, total: int) -> None:
        """Some of all images are decoded."""

    def noticed(self, what: str) -> None:
        """The user should know something that does not stop the run."""

    def started(self, config: RunConfig, clients: int, done: int) -> None:
        """The rounds begin; `done` of them were finished before an interruption."""

    def answered(self, client: str, request: Request) -> None:
        """A client has replied to a request."""

    def round_done(self, record: RoundRecord) -> None:
        """A round is finished."""


class SilentReporter:
    """Ignores all progress."""

    def preparing(self, what: str) -> None: ...
    def prepared(self, done: int, total: int) -> None: ...
    def noticed(self, what: str) -> None: ...
    def started(self, config: RunConfig, clients: int, done: int) -> None: ...
    def answered(self, client: str, request: Request) -> None: ...
    def round_done(self, record: RoundRecord) -> None: ...

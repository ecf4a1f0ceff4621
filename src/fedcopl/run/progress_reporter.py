"""Being told how a run gets on. Apart from the loop, so that watching does not need torch."""

from typing import Protocol

from ..config import RunConfig
from ..messages import Request
from .record import RoundRecord


class ProgressReporter(Protocol):
    """Told of each thing that is done."""

    def preparing(self, what: str) -> None: ...

    def prepared(self, done: int, total: int) -> None:
        """So many images of all are decoded."""
        ...

    def noticed(self, what: str) -> None:
        """Something the user should know, which stops nothing."""
        ...

    def started(self, config: RunConfig, clients: int, done: int) -> None:
        """The rounds begin; `done` of them were played before a stop."""
        ...

    def answered(self, client: str, request: Request) -> None: ...

    def round_done(self, record: RoundRecord) -> None: ...


class SilentReporter:
    """Nobody watches."""

    def preparing(self, what: str) -> None: ...
    def prepared(self, done: int, total: int) -> None: ...
    def noticed(self, what: str) -> None: ...
    def started(self, config: RunConfig, clients: int, done: int) -> None: ...
    def answered(self, client: str, request: Request) -> None: ...
    def round_done(self, record: RoundRecord) -> None: ...

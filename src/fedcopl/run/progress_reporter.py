"""The interface of progress reports, in a module that does not import torch."""

from ..config import RunConfig
from ..messages import Request
from .record import RoundRecord

STEPS = {  # request -> activity of the clients
    "adapt": "estimating priors",
    "estimate": "labelling",
    "select": "selecting",
    "train": "training",
    "evaluate": "evaluating",
}


class ProgressReporter:
    """Receives the progress of a run; this base class ignores it."""

    def preparing(self, step: str) -> None:
        """Called when a step before the first round begins."""

    def prepared(self, done: int, total: int) -> None:
        """Called when some of all images are decoded."""

    def note(self, note: str) -> None:
        """Called with a note for the user that does not stop the run."""

    def started(self, config: RunConfig, clients: int, done: int) -> None:
        """Called when the rounds begin; a resumed run has `done` finished rounds."""

    def replied(self, client: str, request: Request) -> None:
        """Called when a client has replied to a request."""

    def round_done(self, record: RoundRecord) -> None:
        """Called when a round is finished."""

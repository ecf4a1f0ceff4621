"""The rounds of a run, whoever carries the questions: a checkpoint after each, the outcome at the end."""

import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Protocol

from ..config import RunConfig
from ..federation.client_state import ClientState
from ..federation.server import ServerState, look_first, run
from ..federation.transport import Clients, RoundReport
from ..privacy.accountant import statement
from .checkpoint import Checkpoint
from .folder import RunFolder
from .progress_reporter import ProgressReporter
from .record import HoldoutRecord, LabelCounts, Measured, Outcome, RefreshRecord, RoundRecord, finite, measured


class RunRecorder(Protocol):
    """Who writes a run down: a simulation, which knows the truth about every image, or a server, which does not."""

    def begin(self, first: RoundReport) -> Outcome:
        """What is known before the first round, given what plain CLIP got right."""
        ...

    def round(self, server: ServerState, report: RoundReport) -> tuple[RoundRecord, RefreshRecord | None]:
        """What is known of a round that is over."""
        ...

    def complete(self, outcome: Outcome) -> Outcome:
        """What follows for the clients from the rounds so far."""
        ...

    def states(self) -> Mapping[str, ClientState]:
        """What the clients keep, where that is known: for the checkpoint."""
        ...


@dataclass
class Play:
    """One run in one folder."""

    config: RunConfig
    folder: RunFolder
    clients: Clients
    books: RunRecorder
    watcher: ProgressReporter
    began: float  # when this start of the run began, on the clock of `time.monotonic`

    def play(self, server: ServerState, checkpoint: Checkpoint | None) -> Checkpoint:
        """All rounds that are left, from the checkpoint or from where the server begins. Everything is written down."""
        begin = checkpoint or self._first(server)
        spent, outcome = begin.outcome.seconds, begin.outcome

        def after_round(server: ServerState, report: RoundReport) -> None:
            nonlocal outcome
            outcome = self._with_round(outcome, server, report, spent + time.monotonic() - self.began)
            self.folder.keep(Checkpoint(server, self.books.states(), outcome))
            self.watcher.round_done(outcome.rounds[-1])

        last = run(self.config, self.clients, begin.server, after_round)
        finished = Checkpoint(last, self.books.states(), self.books.complete(outcome))
        self.folder.finish(finished)
        return finished

    def _first(self, server: ServerState) -> Checkpoint:
        outcome = self.books.begin(look_first(self.clients))
        return Checkpoint(server, self.books.states(), outcome)

    def _with_round(self, outcome: Outcome, server: ServerState, report: RoundReport, seconds: float) -> Outcome:
        record, refresh = self.books.round(server, report)
        rounds = (*outcome.rounds, replace(record, seconds=seconds))
        refreshes = outcome.refreshes if refresh is None else (*outcome.refreshes, refresh)
        releases = (release for one in rounds for release in one.releases)
        so_far = replace(outcome, rounds=rounds, refreshes=refreshes, seconds=seconds)
        return self.books.complete(replace(so_far, privacy=statement(self.config, releases)))


def round_record(report: RoundReport, found: Measured) -> RoundRecord:
    """What every server knows of a round, and what was measured after it."""
    return RoundRecord(
        round=report.round,
        untrained=measured(list(report.untrained.values())) if report.untrained else None,
        refreshed=report.refreshed,
        participants=len(report.participants),
        sites=report.participants,
        totals=None if report.totals is None else tuple(report.totals.tolist()),
        labelling=None if report.labelling is None else LabelCounts(**asdict(report.labelling)),
        examples=report.examples,
        loss=finite(report.loss),
        bytes_up=report.bytes_up,
        bytes_down=report.bytes_down,
        kept_old_prompt=report.kept_old_prompt,
        dropped=report.dropped,
        bounded=report.bounds.in_words(),
        missed_refresh=report.missed_refresh,
        releases=tuple(report.releases),
        holdout=HoldoutRecord(**report.checks._asdict(), average_undone=report.average_undone),
        macro=found.macro,
        weighted=found.weighted,
        everywhere=found.everywhere,
        clients=found.clients,
        recall=found.recall,
    )


def versions() -> dict[str, str]:
    packages = ("fedcopl", "torch", "numpy", "tokenizers", "safetensors", "pillow")
    return {"python": platform.python_version()} | {package: version(package) for package in packages}

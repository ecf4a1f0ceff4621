"""The loop over the rounds of a run, over any transport, with a checkpoint after each round."""

import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any, Protocol

from ..config import RunConfig
from ..federation.client_state import ClientState
from ..federation.server import ServerState, evaluate_zero_shot, is_finished, run_round
from ..federation.transport import RoundReport, Transport
from ..methods import choose_method, run_title
from ..privacy.accountant import privacy_statement
from .checkpoint import Checkpoint
from .folder import RunFolder
from .progress_reporter import ProgressReporter
from .record import HoldoutRecord, LabelCounts, Measured, Outcome, RefreshRecord, RoundRecord, finite, measured


class _RunRecorder(Protocol):
    """Makes the records of a run: in a simulation with ground truth, at a server without."""

    def begin(self, first: RoundReport) -> Outcome:
        """Return the outcome before the first round, given the evaluation of zero-shot CLIP."""
        ...

    def round(self, server: ServerState, report: RoundReport) -> tuple[RoundRecord, RefreshRecord | None]:
        """Return the records of a finished round and of its refresh, if there was one."""
        ...

    def complete(self, outcome: Outcome) -> Outcome:
        """Add everything that is not a round to the outcome: settings, clients, versions."""
        ...

    def states(self) -> Mapping[str, ClientState]:
        """Return the states of the clients for the checkpoint; none at a server."""
        ...


def run_rounds(
    config: RunConfig,
    folder: RunFolder,
    transport: Transport,
    recorder: _RunRecorder,
    progress: ProgressReporter,
    began: float,
    server: ServerState,
    checkpoint: Checkpoint | None,
) -> Checkpoint:
    """Run the remaining rounds, and write a checkpoint after each.

    Args:
        folder: The run's folder, already opened.
        began: Start of the run in this process, by `time.monotonic`.
        server: The server's state before the first round.
        checkpoint: The state to resume from; None: start at the first round.

    Returns:
        The state after the last round, with the complete outcome.
    """
    initial = checkpoint or Checkpoint(server, recorder.states(), recorder.begin(evaluate_zero_shot(transport)))
    server, outcome = initial.server, initial.outcome
    while not is_finished(config, server):
        server, report = run_round(config, transport, server)
        record, refresh = recorder.round(server, report)
        seconds = initial.outcome.seconds + time.monotonic() - began
        rounds = (*outcome.rounds, replace(record, seconds=seconds))
        refreshes = outcome.refreshes if refresh is None else (*outcome.refreshes, refresh)
        privacy = privacy_statement(config, (release for finished in rounds for release in finished.releases))
        outcome = replace(outcome, rounds=rounds, refreshes=refreshes, seconds=seconds, privacy=privacy)
        outcome = recorder.complete(outcome)
        folder.write_round(Checkpoint(server, recorder.states(), outcome))
        progress.round_done(outcome.rounds[-1])
    finished = Checkpoint(server, recorder.states(), recorder.complete(outcome))
    folder.finish(finished)
    return finished


def complete_outcome(outcome: Outcome, config: RunConfig, **fields: Any) -> Outcome:
    """Add settings, method and package versions to an outcome, and further `fields`, such as classes and clients."""
    method = choose_method(config)
    packages = ("fedcopl", "torch", "numpy", "tokenizers", "safetensors", "pillow")
    return replace(
        outcome,
        name=config.name,
        seed=config.seed,
        method=run_title(config),
        trains=method.trains,
        centralised=method.centralised,
        shared=method.shared(),
        averaged=method.averaged(),
        settings=config.model_dump(),
        versions={"python": platform.python_version()} | {package: version(package) for package in packages},
        **fields,
    )


def round_record(report: RoundReport, scores: Measured) -> RoundRecord:
    """Return the record of a round, given the server's report and the accuracies after the round."""
    return RoundRecord(
        **vars(scores),
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
        converged=report.converged,
        kept_old_prompt=report.kept_old_prompt,
        dropped=report.dropped,
        bounded=report.bounds.summary(),
        missed_refresh=report.missed_refresh,
        releases=tuple(report.releases),
        holdout=HoldoutRecord(**report.checks._asdict(), server_rolled_back=report.server_rolled_back),
    )

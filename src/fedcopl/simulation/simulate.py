"""Simulation of a federation in this process or in workers, recorded with the ground truth."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ..clip.frozen_clip import Clip
from ..config import RunConfig
from ..data.dataset import Dataset
from ..errors import ClientFailed
from ..federation.client import Client, ReplyAndState
from ..federation.client_state import ClientState
from ..federation.server import ServerState
from ..federation.transport import RoundReport
from ..messages import Estimate, KeyRequest, Reply, Request, Train
from ..methods import priors_note, with_effective_rounds
from ..plurals import counted
from ..privacy.accountant import require_accounting
from ..report.gallery import ChosenImages, Example, as_plain, gallery
from ..run.folder import EXAMPLES, SKIPPED, RunFolder
from ..run.loop import run_rounds
from ..run.previous_run import read_previous_run, require_previous_run, with_reference
from ..run.progress_reporter import ProgressReporter
from ..run.pseudo_labels import read_last_labels, write_image_list, write_labels
from ..run.record import Outcome, RefreshRecord, RoundRecord
from .assemble import Simulation, assemble
from .worker_pool import WorkerContext, WorkerCount, WorkerFailed, WorkerPool, open_pool


class LocalTransport:
    """Transport to the clients of a simulation, with their states.

    Args:
        states: Initial states of clients, if the run is resumed or continues another one.
        folder: The run's folder, for the pseudo labels of each refresh.
        pool: The workers that have the clients; None: this process computes the replies.
    """

    min_replies = 1

    def __init__(
        self,
        clients: Mapping[str, Client],
        states: Mapping[str, ClientState] | None = None,
        progress: ProgressReporter | None = None,
        folder: Path | None = None,
        pool: WorkerPool | None = None,
    ):
        self._clients = dict(clients)
        self.states = {name: ClientState() for name in clients} | dict(states or {})
        self._progress = progress or ProgressReporter()
        self._folder, self._pool = folder, pool
        self._seconds: dict[str, float] = {}

    def clients(self) -> tuple[str, ...]:
        """Return the names of all clients."""
        return tuple(self._clients)

    def request(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        """Compute the replies to requests of one type, in the same order.

        Raises:
            ClientFailed: A client raised an error, or its worker died twice.
        """
        began = time.perf_counter()
        replies_and_states: dict[str, ReplyAndState] = {}

        def report_reply(client: str) -> None:
            if not isinstance(requests[client], KeyRequest):
                self._progress.replied(client, requests[client])

        if self._pool is None:
            for client, request in requests.items():
                try:
                    replies_and_states[client] = self._clients[client].handle(request, self.states[client])
                except Exception as error:
                    raise ClientFailed(client, type(request).__name__, request.round, error) from error
                report_reply(client)
        else:
            jobs = {client: (_handle, request, self.states[client]) for client, request in requests.items()}
            # For other requests, another worker would have to encode the client's images again.
            steal = all(isinstance(request, Train) for request in requests.values())
            try:
                replies_and_states = self._pool.run(jobs, report_reply, steal=steal)
            except WorkerFailed as failed:
                request = requests[failed.name]
                raise ClientFailed(failed.name, type(request).__name__, request.round, failed.cause) from failed.cause
        self._record(requests, {client: state for client, (_, state) in replies_and_states.items()}, began)
        return {client: reply for client, (reply, _) in replies_and_states.items()}

    def _record(self, requests: Mapping[str, Request], states: Mapping[str, ClientState], began: float) -> None:
        """Store the clients' new states, write the pseudo labels of a refresh, and add up the wall time."""
        self.states |= states
        first = next(iter(requests.values()), None)
        if first is None:
            return
        kind = type(first).__name__
        self._seconds[kind] = self._seconds.get(kind, 0.0) + time.perf_counter() - began
        if isinstance(first, Estimate) and self._folder is not None:
            log_probs = {name: state.log_probs for name, state in states.items() if state.log_probs is not None}
            agreement = {name: states[name].prior.prototype_agreement(rows) for name, rows in log_probs.items()}
            write_labels(self._folder, first.round, log_probs, agreement)

    def take_seconds(self) -> dict[str, float]:
        """Return the wall time of each type of request since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds


def _handle(context: WorkerContext, client: str, request: Request, state: ClientState) -> ReplyAndState:
    return context.clients[client].handle(request, state)


_Engine = Callable[[Path, Mapping[str, Client], Mapping[str, ClientState] | None, ProgressReporter], LocalTransport]
"""Builds the transport to the clients of a simulation."""


def simulate(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    progress: ProgressReporter | None = None,
    dataset: Dataset | None = None,
    clip: Clip | None = None,
    engine: _Engine | None = None,
    previous_run: Path | None = None,
    workers: WorkerCount = "auto",
) -> Outcome:
    """Run the remaining rounds and write the run's folder. The same seed gives bit-identical results.

    Args:
        resume: Whether to resume the run in the folder.
        dataset: The images; None: from the settings.
        clip: The frozen CLIP; None: from the settings.
        engine: Builds the transport to the clients; None: this process and its workers.
        previous_run: The folder of a finished run to continue; not needed to resume after the first round.
        workers: The number of processes, or "auto" for one per core.

    Raises:
        FedCoPLError: Settings, images, model or folder cannot be used, or a client failed.
    """
    progress, config = progress or ProgressReporter(), with_effective_rounds(config)
    require_accounting(config)
    previous = None if previous_run is None else read_previous_run(previous_run)
    config = with_reference(config, previous)
    with RunFolder(folder) as run_folder:
        checkpoint = run_folder.open(config, resume=resume)
        if checkpoint is None:
            require_previous_run(config, previous)
        if resume and checkpoint is None:
            progress.note(f"{folder} has no finished round: starting at the first")
        began = time.monotonic()
        simulation = assemble(config, progress, dataset, None if checkpoint else previous, clip)
        run_folder.begin(config)
        run_folder.pin_images(simulation.image_digest, is_new=checkpoint is None)
        _write_image_list(simulation, run_folder, progress)
        states = checkpoint.clients if checkpoint else simulation.states
        server = checkpoint.server if checkpoint else simulation.server
        progress.started(config, len(simulation.clients), server.round)
        if note := priors_note(config):
            progress.note(note)
        with nullcontext() if engine else open_pool(simulation, workers) as pool:
            if engine:
                transport = engine(folder, simulation.clients, states, progress)
            else:
                transport = LocalTransport(simulation.clients, states, progress, folder, pool)
            recorder = _SimulationRecorder(simulation, transport, server, progress, pool)
            finished = run_rounds(
                config, run_folder, transport, recorder, progress, began, simulation.server, checkpoint
            )
        for line in _final_rollbacks(finished.clients):
            progress.note(line)
        run_folder.write_json(EXAMPLES, as_plain(_examples(simulation, finished.clients, folder)))
        return finished.outcome


def _write_image_list(simulation: Simulation, run_folder: RunFolder, progress: ProgressReporter) -> None:
    """Report skipped images, and write the lists of skipped images and of each client's images."""
    for note in simulation.notes:
        progress.note(note)
    skipped = simulation.dataset.skipped
    if skipped:
        subject = counted(len(skipped), "image is skipped,", "images are skipped, for example")
        more = f"; {run_folder.path / SKIPPED} lists all" if len(skipped) > 1 else ""
        progress.note(f"{subject} {skipped[0][0]}: {skipped[0][1]}{more}")
        run_folder.write_lines(SKIPPED, [{"name": name, "why": reason} for name, reason in skipped])
    parts = dict(zip(simulation.clients, simulation.parts.train, strict=True))
    write_image_list(run_folder.path, simulation.dataset.classes, simulation.dataset.train, parts)


class _SimulationRecorder:
    """Makes the records of a simulation from the server's reports and the audit."""

    def __init__(
        self,
        simulation: Simulation,
        transport: LocalTransport,
        server: ServerState,
        progress: ProgressReporter,
        pool: WorkerPool | None = None,
    ):
        self._simulation, self._transport, self._progress, self._pool = simulation, transport, progress, pool
        self._audit = replace(simulation.audit, evaluator=replace(simulation.audit.evaluator, pool=pool))
        self._before = server.shared, dict(transport.states)  # shared prompts and states before the current round

    def begin(self, first: RoundReport) -> Outcome:
        effect = self._simulation.initial_prompt_effect(self._pool)
        for note in effect.notes() if effect else ():
            self._progress.note(note)
        zero_shot = self._audit.zero_shot(first.scores)
        return Outcome(zero_shot=zero_shot, first_prompts=effect, dropped_before=first.dropped)

    def round(self, server: ServerState, report: RoundReport) -> tuple[RoundRecord, RefreshRecord | None]:
        audit, states = self._audit, self._transport.states
        record = audit.round(self._before, server, report, states)
        self._before = server.shared, dict(states)
        refresh = audit.refresh(report.round, states) if report.refreshed else None
        seconds = self._transport.take_seconds()
        steps = self._simulation.config.train.epochs * report.batches
        return replace(
            record,
            pseudo_label_accuracy=refresh.pseudo_label_accuracy if refresh else None,
            seconds_of={kind.lower(): duration for kind, duration in seconds.items()},
            seconds_per_step=seconds["Train"] / steps if steps else None,
        ), refresh

    def complete(self, outcome: Outcome) -> Outcome:
        return self._simulation.complete(outcome)

    def states(self) -> Mapping[str, ClientState]:
        return self._transport.states


def _final_rollbacks(states: Mapping[str, ClientState]) -> Iterator[str]:
    """Yield a note for each client whose final model is not the last average."""
    for name, state in states.items():
        if state.holdout.was_reset:
            yield f"{name}: keeps the initial prompts: its model contradicts most of its first confident predictions"
        elif state.holdout.average is not None and state.holdout.average.harm:
            yield f"{name}: keeps its own model: the last average made its predictions worse"


def _examples(simulation: Simulation, states: Mapping[str, ClientState], folder: Path) -> list[Example]:
    """Return examples for the report: some of the images that the clients selected, and the least confident images."""
    parts = dict(zip(states, simulation.parts.train, strict=True))
    selected = [
        ChosenImages(name, parts[name][state.selection.index], state.selection.label, state.confidence)
        for name, state in states.items()
        if state.selection is not None and state.confidence is not None
    ]
    last = read_last_labels(folder)
    labelled = [ChosenImages(name, parts[name], own.label, own.log_probability) for name, own in last.items()]
    train = simulation.dataset.train
    return gallery(train.images, train.labels, simulation.dataset.classes, selected, labelled)

"""A whole federation on one machine: every client with its images, and the rounds played from question to outcome."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from ..config import RunConfig
from ..data.dataset import Dataset
from ..federation.client_state import ClientState
from ..federation.server import ServerState
from ..federation.transport import RoundReport
from ..methods import priors_note, settled
from ..plurals import counted
from ..privacy.accountant import require_accounting
from ..report.gallery import ChosenImages, Example, as_plain, gallery
from ..run.earlier import noted, read_earlier, refuse_without
from ..run.folder import EXAMPLES, SKIPPED, RunFolder
from ..run.loop import Play
from ..run.progress_reporter import ProgressReporter, SilentReporter
from ..run.pseudo_labels import write_images
from ..run.record import FirstPrompts, Outcome, RefreshRecord, RoundRecord
from ..run.rollback_text import final_text, movement_text
from .assemble import Simulation, assemble
from .local_transport import Engine, LocalTransport
from .worker_pool import WorkerCount, WorkerPool
from .workers import open_pool


def simulate(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    watcher: ProgressReporter | None = None,
    dataset: Dataset | None = None,
    engine: Engine | None = None,
    earlier: Path | None = None,
    workers: WorkerCount = "auto",
) -> Outcome:
    """Run all rounds that are left and write everything into the folder. The same seed gives the same bits.

    `dataset` stands in for the one that the settings name, where images were handed over in Python; `workers` are the
    processes that clients share, one for each core unless told otherwise; `engine` carries the questions elsewhere;
    `earlier` is the folder of a finished run to go on from, which a run that is resumed after its first round needs
    no more.
    """
    watcher, config = watcher or SilentReporter(), settled(config)
    require_accounting(config)
    left = None if earlier is None else read_earlier(earlier)
    config = noted(config, left)
    with RunFolder(folder) as run_folder:
        checkpoint = run_folder.open(config, resume=resume)
        if checkpoint is None:
            refuse_without(config, left)
        if resume and checkpoint is None:
            watcher.noticed(f"{folder} holds no finished round: starting at the first")
        began = time.monotonic()
        simulation = assemble(config, watcher, dataset, None if checkpoint else left)
        run_folder.begin(config)
        _write_about_images(simulation, run_folder, watcher)
        states = checkpoint.clients if checkpoint else simulation.states
        first = checkpoint.server if checkpoint else simulation.server
        watcher.started(config, len(simulation.clients), first.round)
        if note := priors_note(config):
            watcher.noticed(note)
        with nullcontext() if engine else open_pool(simulation, workers) as pool:
            if engine:
                clients = engine(folder, simulation.clients, states, watcher)
            else:
                clients = LocalTransport(simulation.clients, states, watcher, folder, pool)
            books = SimulationRecorder(simulation, clients, first, watcher, pool)
            finished = Play(config, run_folder, clients, books, watcher, began).play(simulation.server, checkpoint)
        for words in final_text(finished.clients):
            watcher.noticed(words)
        run_folder.write_json(EXAMPLES, as_plain(_examples(simulation, finished.clients)))
        return finished.outcome


def _write_about_images(simulation: Simulation, run_folder: RunFolder, watcher: ProgressReporter) -> None:
    """Say what was left out and what is odd about the images; the whole lists go into the folder."""
    for note in simulation.notes:
        watcher.noticed(note)
    skipped = simulation.dataset.skipped
    if skipped:
        left = counted(len(skipped), "image is skipped,", "images are skipped, for example")
        listed = f"; {run_folder.path / SKIPPED} lists all" if len(skipped) > 1 else ""
        watcher.noticed(f"{left} {skipped[0][0]}: {skipped[0][1]}{listed}")
        run_folder.write_lines(SKIPPED, [{"name": name, "why": why} for name, why in skipped])
    held = dict(zip(simulation.clients, simulation.parts.train, strict=True))
    write_images(run_folder.path, simulation.dataset.classes, simulation.dataset.train, held)


class SimulationRecorder:
    """Writes a simulation down: what a server knows, and what the audit knows beyond that."""

    def __init__(
        self,
        simulation: Simulation,
        clients: LocalTransport,
        server: ServerState,
        watcher: ProgressReporter,
        pool: WorkerPool | None = None,
    ):
        self._simulation, self._clients, self._watcher, self._pool = simulation, clients, watcher, pool
        self._audit = replace(simulation.audit, evaluator=replace(simulation.audit.evaluator, pool=pool))
        self._before = server.shared, dict(clients.states)  # as the round began

    def begin(self, first: RoundReport) -> Outcome:
        moved = self._simulation.first_movement(self._pool)
        prompts = None if moved is None else FirstPrompts(**asdict(moved))
        for words in movement_text(prompts):
            self._watcher.noticed(words)
        zero_shot = self._audit.zero_shot(first.scores)
        return Outcome(zero_shot=zero_shot, first_prompts=prompts, dropped_before=first.dropped)

    def round(self, server: ServerState, report: RoundReport) -> tuple[RoundRecord, RefreshRecord | None]:
        audit, states = self._audit, self._clients.states
        record = audit.round(self._before, server, report, states)
        self._before = server.shared, dict(states)
        refresh = audit.refresh(report.round, states) if report.refreshed else None
        seconds = self._clients.take_seconds()
        return replace(
            record,
            pseudo_label_accuracy=refresh.pseudo_label_accuracy if refresh else None,
            seconds_of={kind.lower(): taken for kind, taken in seconds.items()},
            seconds_per_step=_per_step(seconds, self._simulation.config, report),
        ), refresh

    def complete(self, outcome: Outcome) -> Outcome:
        return self._simulation.about(outcome)

    def states(self) -> Mapping[str, ClientState]:
        return self._clients.states


def _per_step(seconds: Mapping[str, float], config: RunConfig, report: RoundReport) -> float | None:
    """Wall time of training, divided by its steps on one batch."""
    steps = config.train.epochs * report.batches
    return seconds["Train"] / steps if steps else None


def _examples(simulation: Simulation, states: Mapping[str, ClientState]) -> list[Example]:
    """Some images of what the clients chose, for the report's gallery."""
    chosen = [
        ChosenImages(name, part[state.selection.index], state.selection.label, state.confidence)
        for (name, state), part in zip(states.items(), simulation.parts.train, strict=True)
        if state.selection is not None and state.confidence is not None
    ]
    train = simulation.dataset.train
    return gallery(train.images, train.labels, simulation.dataset.classes, chosen)

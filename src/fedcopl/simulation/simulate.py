"""A whole federation in one process: every client with its images, and the rounds played from question to outcome."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from ..algorithm.metrics import Score
from ..config import RunConfig
from ..data.dataset import Dataset
from ..errors import ClientFailed
from ..federation.client import Client, ClientState
from ..federation.seam import RoundReport
from ..federation.server import ServerState
from ..messages import Ask, Estimate, KeyAsk, Reply
from ..methods import settled
from ..privacy.accountant import require_accounting
from ..report.gallery import ChosenImages, Example, as_plain, gallery
from ..run.believed_labels import write_images, write_labels
from ..run.folder import EXAMPLES, RunFolder
from ..run.guard_words import final_words, movement_words
from ..run.loop import Play
from ..run.record import FirstPrompts, Outcome, RefreshRecord, RoundRecord
from ..run.watcher import SilentWatcher, Watcher
from .assemble import Simulation, assemble


class LocalClients:
    """Holds every client's state; a client trains the same whether it is asked first or last."""

    least = 1

    def __init__(
        self,
        clients: Mapping[str, Client],
        states: Mapping[str, ClientState] | None = None,
        watcher: Watcher | None = None,
    ):
        self._clients = dict(clients)
        self.states = {name: ClientState() for name in clients} | dict(states or {})
        self._watcher = watcher or SilentWatcher()
        self._seconds: dict[str, float] = {}

    def clients(self) -> tuple[str, ...]:
        return tuple(self._clients)

    def ask(self, questions: Mapping[str, Ask]) -> dict[str, Reply]:
        return {client: self._ask_one(client, ask) for client, ask in questions.items()}

    def take_seconds(self) -> dict[str, float]:
        """The seconds that each kind of question took since this was last asked."""
        taken, self._seconds = self._seconds, {}
        return taken

    def _ask_one(self, client: str, ask: Ask) -> Reply:
        kind, began = type(ask).__name__, time.perf_counter()
        try:
            reply, self.states[client] = self._clients[client].answer(ask, self.states[client])
        except Exception as error:
            raise ClientFailed(client, kind, ask.round, error) from error
        self._seconds[kind] = self._seconds.get(kind, 0.0) + time.perf_counter() - began
        if not isinstance(ask, KeyAsk):
            self._watcher.answered(client, ask)
        return reply


def simulate(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    dataset: Dataset | None = None,
    engine: "Engine | None" = None,
) -> Outcome:
    """Run all rounds that are left and write everything into the folder. The same seed gives the same bits.

    `dataset` stands in for the one that the settings name, where images were handed over in Python; `engine` carries
    the questions otherwise than one after another in this process.
    """
    watcher, config = watcher or SilentWatcher(), settled(config)
    require_accounting(config)
    with RunFolder(folder) as run_folder:
        checkpoint = run_folder.open(config, resume=resume)
        if resume and checkpoint is None:
            watcher.noticed(f"{folder} holds no finished round: starting at the first")
        began = time.monotonic()
        simulation = assemble(config, watcher, dataset)
        run_folder.begin(config)
        _write_about_images(simulation, run_folder, watcher)
        states = checkpoint.clients if checkpoint else None
        clients = (engine or NotedClients)(folder, simulation.clients, states, watcher)
        first = checkpoint.server if checkpoint else simulation.server
        watcher.started(config, len(simulation.clients), first.round)
        books = SimulationBooks(simulation, clients, first, watcher)
        finished = Play(config, run_folder, clients, books, watcher, began).play(simulation.server, checkpoint)
        for words in final_words(finished.clients):
            watcher.noticed(words)
        run_folder.write_json(EXAMPLES, as_plain(_examples(simulation, finished.clients)))
        return finished.outcome


def _write_about_images(simulation: Simulation, run_folder: RunFolder, watcher: Watcher) -> None:
    """Say what was left out and what is odd about the images; the whole lists go into the folder."""
    for note in simulation.notes:
        watcher.noticed(note)
    skipped = simulation.dataset.skipped
    if skipped:
        many = f"{len(skipped)} images are" if len(skipped) > 1 else "1 image is"
        watcher.noticed(f"{many} left out, for example {skipped[0][0]}: {skipped[0][1]}")
        run_folder.write_lines("skipped.jsonl", [{"name": name, "why": why} for name, why in skipped])
    held = dict(zip(simulation.clients, simulation.parts.train, strict=True))
    write_images(run_folder.path, simulation.dataset.classes, simulation.dataset.train, held)


class NotedClients(LocalClients):
    """Writes down what every client believes about its images at each refresh; the clients' views stay apart."""

    def __init__(
        self,
        folder: Path,
        clients: Mapping[str, Client],
        states: Mapping[str, ClientState] | None,
        watcher: Watcher,
    ):
        super().__init__(clients, states, watcher)
        self._folder = folder

    def ask(self, questions: Mapping[str, Ask]) -> dict[str, Reply]:
        replies = super().ask(questions)
        for round in {ask.round for ask in questions.values() if isinstance(ask, Estimate)}:
            beliefs = {client: self.states[client].log_probs for client in replies}
            write_labels(self._folder, round, {name: belief for name, belief in beliefs.items() if belief is not None})
        return replies


Engine = Callable[[Path, Mapping[str, Client], Mapping[str, ClientState] | None, Watcher], NotedClients]


class SimulationBooks:
    """Writes a simulation down: what a server knows, and what the audit knows beyond that."""

    def __init__(self, simulation: Simulation, clients: NotedClients, server: ServerState, watcher: Watcher):
        self._simulation, self._clients, self._watcher = simulation, clients, watcher
        self._before = server.shared, dict(clients.states)  # as the round began

    def begin(self, scores: Mapping[str, Score]) -> Outcome:
        moved = self._simulation.first_movement()
        first = None if moved is None else FirstPrompts(**asdict(moved))
        for words in movement_words(first):
            self._watcher.noticed(words)
        return Outcome(zero_shot=self._simulation.audit.zero_shot(scores), first_prompts=first)

    def round(self, server: ServerState, report: RoundReport) -> tuple[RoundRecord, RefreshRecord | None]:
        audit, states = self._simulation.audit, self._clients.states
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
    """The seconds of one training step on one batch."""
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

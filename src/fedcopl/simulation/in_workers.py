"""A simulation's clients in processes of their own, as many as there are cores: the same bits as in one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from ..algorithm.metrics import Score
from ..clip.device import threads_of_arithmetic
from ..clip.frozen_clip import Clip
from ..clip.tower_work import words_of
from ..config import RunConfig
from ..data.parallel import free_memory
from ..errors import CannotAnswer, ClientFailed, ConfigError, FedCoPLError
from ..federation.adaptation import PriorState
from ..federation.client import Answered, Client, ClientState
from ..federation.learner import Prompts
from ..messages import Ask, Reply
from ..methods import choose_method
from ..methods.learner import ClipExam, ClipLearner
from ..methods.movement import Movement, movement
from ..run.cost_model import RunSize, working_memory
from ..run.state_store import StateSpan, StoredStates, files_in
from ..run.watcher import Watcher
from .assemble import Simulation
from .exams import ExamAnswers, Sat, SatByAll
from .forked_workers import MANY, HowMany, JobFailed, Unfinished, WorkerLost, Workers, can_fork, how_many
from .in_parts import HalfAnswered, first_part, parts_of, second_part
from .local_clients import Engine, LocalClients, NotedClients
from .together import LARGEST_TEAM, AskedTogether, Team, ToldByTeam, answered_side_by_side, side_by_side, teams


@dataclass(frozen=True)
class AskedOf:
    """To a client, with what it keeps between two questions; perhaps to be answered in parts."""

    ask: Ask
    state: ClientState
    parts: int = 1
    part: int = 0  # to stop after; 0: after the last
    half: HalfAnswered | None = None  # what came of the parts before

    def up_to(self, part: int) -> "AskedOf":
        return replace(self, part=part)

    def of(self, client: Client) -> Answered | Unfinished:
        if self.half is not None:
            return second_part(client, self.ask, self.state, self.half)
        if not self.part:
            return client.answer(self.ask, self.state)
        first = first_part(client, self.ask, self.state, self.part)
        return Unfinished(replace(self, half=first)) if isinstance(first, HalfAnswered) else first

    def read(self) -> ClientState:
        return self.state

    def kept(self, name: str, state: ClientState) -> ClientState:
        return state


@dataclass(frozen=True)
class AskedOfStored:
    """The same where the state is in a file: it is read and written where the client answers."""

    ask: Ask
    folder: Path
    span: StateSpan | None
    generation: int

    def read(self) -> ClientState:
        return ClientState() if self.span is None else files_in(self.folder).read(self.span)

    def kept(self, name: str, state: ClientState) -> StateSpan:
        return files_in(self.folder).write(name, state, self.generation)


Asked = AskedOf | AskedOfStored
RepliedAndKept = tuple[Reply, ClientState | StateSpan]


@dataclass(frozen=True)
class AskedOfTeam:
    """To several clients that answer side by side."""

    asked: Mapping[str, Asked]

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.asked)

    def of(self, everybody: Mapping[str, Client]) -> dict[str, RepliedAndKept]:
        questions = {name: one.ask for name, one in self.asked.items()}
        states = {name: one.read() for name, one in self.asked.items()}
        answered = answered_side_by_side(questions, states, everybody)
        return {name: (reply, self.asked[name].kept(name, state)) for name, (reply, state) in answered.items()}


@dataclass(frozen=True)
class MovedBy:
    """Prompts, of which it is asked how far they take a client's model from plain CLIP."""

    prompts: Prompts


@dataclass(frozen=True)
class Workplace:
    """What a worker knows."""

    clients: Mapping[str, Client]
    exams: Mapping[str, ClipExam]
    learners: Mapping[str, ClipLearner]

    def __call__(self, name: str, job: Asked | AskedOfTeam | AskedTogether | MovedBy | Sat | SatByAll) -> Any:
        match job:
            case AskedOf():
                return job.of(self.clients[name])
            case AskedOfStored():
                reply, state = self.clients[name].answer(job.ask, job.read())
                return reply, job.kept(name, state)
            case AskedTogether() | AskedOfTeam():
                return job.of(self.clients)
            case MovedBy():
                return movement(self.learners[name].side, job.prompts)
            case Sat():
                return job.by(self.exams[name])
            case SatByAll():
                return job.of(self.exams)


class AskedInWorkers(LocalClients):
    """Clients that answer in whichever process is free; what they keep comes back with each answer."""

    pool: Workers

    def _ask_each(self, questions: Mapping[str, Ask]) -> dict[str, Reply]:
        jobs = {client: self._job(client, ask) for client, ask in questions.items()}
        answered = self._by_teams(jobs, questions) or self._by_each(jobs, questions)
        kept = {client: answered[client][1] for client in questions}
        if isinstance(self.states, StoredStates):
            self.states.spans |= cast(dict[str, StateSpan], kept)
        else:
            self.states.update(cast(dict[str, ClientState], kept))
        return {client: answered[client][0] for client in questions}

    def _by_each(self, jobs: Mapping[str, Asked], questions: Mapping[str, Ask]) -> dict[str, RepliedAndKept]:
        try:
            return self.pool.run(jobs, lambda client, _, seconds: self._note(client, questions[client], seconds))
        except JobFailed as failed:
            ask = questions[failed.name]
            raise ClientFailed(failed.name, type(ask).__name__, ask.round, failed.cause) from failed.cause

    def _by_teams(self, jobs: Mapping[str, Asked], questions: Mapping[str, Ask]) -> dict[str, RepliedAndKept]:
        """Nothing where nobody answers side by side, or somebody fails: asked alone, it is known who."""

        def note(_: str, answered: Mapping[str, RepliedAndKept], seconds: float) -> None:
            for client in answered:
                self._note(client, questions[client], seconds / len(answered))

        teams = side_by_side(questions, self._clients, self.pool.grouped(questions))
        try:
            asked = {team[0]: AskedOfTeam({name: jobs[name] for name in team}) for team in teams}
            return {name: one for answered in self.pool.run(asked, note).values() for name, one in answered.items()}
        except JobFailed:
            return {}

    def _job(self, client: str, ask: Ask) -> Asked:
        states = self.states
        if isinstance(states, StoredStates):
            return AskedOfStored(ask, states.folder, states.spans[client], states.generation)
        return AskedOf(ask, states[client], parts_of(self._clients[client], ask))

    def _teams(self, priors: Mapping[str, PriorState]) -> list[Team]:
        groups = (teams({name: priors[name] for name in some}, LARGEST_TEAM) for some in self.pool.grouped(priors))
        return [team for some in groups for team in some]

    def _answered_together(self, asked: Sequence[AskedTogether]) -> list[ToldByTeam]:
        jobs = {one.clients[0]: one for one in asked}
        try:  # A question takes no time, and to look at the images anew elsewhere a lot.
            answers = self.pool.run(jobs, lambda _, __, taken: self._took(asked[0].ask, taken), stay=True)
        except JobFailed as failed:
            raise CannotAnswer(str(failed)) from failed
        return [*answers.values()]


class ClientsInWorkers(NotedClients, AskedInWorkers):
    """Notes what clients believe, as every simulation does, and asks them in workers."""

    def __init__(
        self,
        pool: Workers,
        folder: Path,
        clients: Mapping[str, Client],
        states: Mapping[str, ClientState] | None,
        watcher: Watcher,
    ):
        super().__init__(folder, clients, states, watcher)
        self.pool = pool


@dataclass(frozen=True)
class ExamsInWorkers:
    """The exams, where the clients sit them: what a model sees in the images is still at hand there."""

    pool: Workers
    clients: Sequence[str]

    def answers(self, sat: Mapping[str, Sat]) -> dict[str, ExamAnswers]:
        return _measured(self.pool, sat)

    def everywhere(self, models: Sequence[Prompts], prior: PriorState) -> list[Score]:
        groups = self.pool.grouped(self.clients)
        parts = _measured(self.pool, {group[0]: SatByAll(group, models, prior) for group in groups}).values()
        return [(sum(right for right, _ in one), sum(of for _, of in one)) for one in zip(*parts, strict=True)]


def _movements(pool: Workers, learners: Mapping[str, ClipLearner], prompts: Prompts) -> list[Movement | None]:
    return [*_measured(pool, {name: MovedBy(prompts) for name in learners}).values()]


def _measured(pool: Workers, jobs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return pool.run(jobs)
    except JobFailed as failed:
        if isinstance(failed.cause, WorkerLost):
            raise FedCoPLError(f"measuring the models of {failed}") from failed
        raise failed.cause from failed


@contextmanager
def spread(simulation: Simulation, wanted: HowMany) -> Iterator[tuple[Engine, Simulation]]:
    """Who carries the questions of a simulation, and the simulation measured by the same hands.

    Each worker has one thread of torch, unless the settings say otherwise, and so has this process where it works
    alone but could have had help: a last bit may depend on the number of threads, and must not on that of workers.
    """
    clients, config = simulation.clients, simulation.config
    if len(clients) == 1 or not can_fork() or simulation.device != "cpu":
        _refuse_workers(simulation, wanted)
        yield NotedClients, simulation
        return
    clip, classes = simulation.learners[0].model.encoder.clip, simulation.dataset.classes
    train, test = (sum(map(len, parts)) for parts in (simulation.parts.train, simulation.parts.test))
    size = RunSize(train, test, len(clients), len(classes), words_of(clip, classes))
    count = workers_for(config, clip, size, wanted)
    with threads_of_arithmetic(config.model.threads or 1):
        if count == 1:
            yield NotedClients, simulation
            return
        sizes = dict(zip(clients, map(len, simulation.parts.train), strict=True))
        learners = dict(zip(clients, simulation.learners, strict=True))
        with Workers(count, Workplace(clients, simulation.exams, learners), sizes) as pool:
            audit = replace(simulation.audit, exams=ExamsInWorkers(pool, tuple(simulation.exams)))
            measured = replace(simulation, audit=audit, movements=partial(_movements, pool))
            yield partial(ClientsInWorkers, pool), measured


def workers_for(config: RunConfig, clip: Clip, size: RunSize, wanted: HowMany = "auto") -> int:
    """How many a run of this size is given, by cores, clients and free memory."""
    free, needed = free_memory(), working_memory(config, clip, size)
    room = MANY if free is None else max(1, int(free / needed))
    return how_many(wanted, 1 if choose_method(config).pools else size.clients, config.model.threads or 1, room)


def _refuse_workers(simulation: Simulation, wanted: HowMany) -> None:
    if wanted != "auto" and simulation.device != "cpu":
        raise ConfigError(f"workers: are for processors, and this runs on {simulation.device}; leave it at auto")
    how_many(wanted, 1)

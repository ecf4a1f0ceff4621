"""A simulation's clients, each with its state, asked in this process; and what they believe, written down."""

import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

from ..errors import CannotAnswer, ClientFailed
from ..federation.adaptation import PriorState, TeamPriors
from ..federation.client import Client, ClientState
from ..messages import Adapted, Ask, Estimate, KeyAsk, Reply
from ..run.believed_labels import write_labels
from ..run.state_store import StoredStates
from ..run.watcher import SilentWatcher, Watcher
from .together import (
    LARGEST_TEAM,
    AskedTogether,
    Team,
    ToldByTeam,
    answered_side_by_side,
    common_question,
    side_by_side,
    teams,
    with_prior,
)

FEWEST_TOGETHER = 2  # clients


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
        self.states: MutableMapping[str, ClientState] = (
            states
            if isinstance(states, StoredStates)
            else {name: ClientState() for name in clients} | dict(states or {})
        )
        self._watcher = watcher or SilentWatcher()
        self._seconds: dict[str, float] = {}
        self._adapting: dict[Team, TeamPriors] = {}  # while priors are learnt, what clients know of them

    def clients(self) -> tuple[str, ...]:
        return tuple(self._clients)

    def ask(self, questions: Mapping[str, Ask]) -> dict[str, Reply]:
        together = self._ask_together(questions)
        return self._ask_each(questions) if together is None else together

    def _ask_each(self, questions: Mapping[str, Ask]) -> dict[str, Reply]:
        replies: dict[str, Reply] = {}
        for team in side_by_side(questions, self._clients):
            replies |= self._ask_team({client: questions[client] for client in team})
        return replies or {client: self._ask_one(client, ask) for client, ask in questions.items()}

    def _ask_team(self, questions: Mapping[str, Ask]) -> dict[str, Reply]:
        """One by one where somebody fails: then it is known who."""
        began = time.perf_counter()
        try:
            answered = answered_side_by_side(questions, {name: self.states[name] for name in questions}, self._clients)
        except Exception:
            return {client: self._ask_one(client, ask) for client, ask in questions.items()}
        for client, (_, state) in answered.items():
            self.states[client] = state
            self._note(client, questions[client], (time.perf_counter() - began) / len(questions))
        return {client: reply for client, (reply, _) in answered.items()}

    def _ask_together(self, questions: Mapping[str, Ask]) -> dict[str, Reply] | None:
        """The answers to a question of the priors, many at a time; None where they have to be asked one by one."""
        ask = common_question(questions, self._clients)
        if ask is None or len(questions) < FEWEST_TOGETHER:
            self._end_adapting()
            return None
        try:
            self._begin_adapting(questions)
            answers = self._answered_together([AskedTogether(ask, *team) for team in self._adapting.items()])
        except CannotAnswer:  # asked alone, it is known who, and why
            self._end_adapting()
            return None
        replies: dict[str, Reply] = {}
        for team, answer in zip(tuple(self._adapting), answers, strict=True):
            replies |= self._replies(team, answer)
        for client in questions:
            self._answered(client, ask)
        return {client: replies[client] for client in questions}

    def _replies(self, team: Team, answer: ToldByTeam) -> dict[str, Reply]:
        """What a team tells; what it keeps goes into its clients' states when all is learnt."""
        if isinstance(answer, list):
            del self._adapting[team]
            for client, prior in zip(team, answer, strict=True):
                self.states[client] = with_prior(self.states[client], prior, is_new=True)
            return dict.fromkeys(team, Adapted(None))
        sums, self._adapting[team] = answer
        return {client: Adapted(own) for client, own in zip(team, sums, strict=True)}

    def _begin_adapting(self, questions: Mapping[str, Ask]) -> None:
        """Form the teams, unless these very clients are in teams already."""
        if {client for team in self._adapting for client in team} == questions.keys():
            return
        self._end_adapting()
        priors = {client: self.states[client].prior for client in questions}
        self._adapting = {team: TeamPriors.of([priors[client] for client in team]) for team in self._teams(priors)}

    def _teams(self, priors: Mapping[str, PriorState]) -> list[Team]:
        return teams(priors, LARGEST_TEAM)

    def _answered_together(self, asked: Sequence[AskedTogether]) -> list[ToldByTeam]:
        began = time.perf_counter()
        answers = [one.of(self._clients) for one in asked]
        self._took(asked[0].ask, time.perf_counter() - began)
        return answers

    def _end_adapting(self) -> None:
        """What the clients came to know so far goes back to the rest of what they keep."""
        for team, known in self._adapting.items():
            for client, prior in zip(team, known.by_client(), strict=True):
                self.states[client] = with_prior(self.states[client], prior, is_new=False)
        self._adapting = {}

    def take_seconds(self) -> dict[str, float]:
        """The seconds that each kind of question took since this was last asked."""
        taken, self._seconds = self._seconds, {}
        return taken

    def _ask_one(self, client: str, ask: Ask) -> Reply:
        began = time.perf_counter()
        try:
            reply, self.states[client] = self._clients[client].answer(ask, self.states[client])
        except Exception as error:
            raise ClientFailed(client, type(ask).__name__, ask.round, error) from error
        self._note(client, ask, time.perf_counter() - began)
        return reply

    def _note(self, client: str, ask: Ask, seconds: float) -> None:
        self._took(ask, seconds)
        self._answered(client, ask)

    def _took(self, ask: Ask, seconds: float) -> None:
        kind = type(ask).__name__
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

    def _answered(self, client: str, ask: Ask) -> None:
        if not isinstance(ask, KeyAsk):
            self._watcher.answered(client, ask)


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

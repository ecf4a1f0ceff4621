"""A simulation's clients, each with its state, asked in this process; and what they believe, written down."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import ClientFailed
from ..federation.client import Client, ClientState
from ..messages import Ask, Estimate, KeyAsk, Reply
from ..run.believed_labels import write_labels
from ..run.watcher import SilentWatcher, Watcher


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
        began = time.perf_counter()
        try:
            reply, self.states[client] = self._clients[client].answer(ask, self.states[client])
        except Exception as error:
            raise ClientFailed(client, type(ask).__name__, ask.round, error) from error
        self._note(client, ask, time.perf_counter() - began)
        return reply

    def _note(self, client: str, ask: Ask, seconds: float) -> None:
        kind = type(ask).__name__
        self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
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

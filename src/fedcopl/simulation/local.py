"""All clients in this process, one after another."""

import time
from collections.abc import Mapping

from ..errors import ClientFailed
from ..federation.client import Client, ClientState
from ..messages import Ask, KeyAsk, Reply
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
        kind, began = type(ask).__name__, time.perf_counter()
        try:
            reply, self.states[client] = self._clients[client].answer(ask, self.states[client])
        except Exception as error:
            raise ClientFailed(client, kind, ask.round, error) from error
        self._seconds[kind] = self._seconds.get(kind, 0.0) + time.perf_counter() - began
        if not isinstance(ask, KeyAsk):
            self._watcher.answered(client, ask)
        return reply

"""All clients in this process, one after another."""

from collections.abc import Callable, Mapping

from ..client import Client, ClientState
from ..errors import ClientFailed
from ..messages import Ask, Reply

OnAnswer = Callable[[str, Ask], None]


def nobody_watches(client: str, ask: Ask) -> None:
    pass


class LocalFederation:
    """Holds every client's state; a client trains the same whether it is asked first or last."""

    def __init__(
        self,
        clients: Mapping[str, Client],
        states: Mapping[str, ClientState] | None = None,
        on_answer: OnAnswer = nobody_watches,
    ):
        self._clients = dict(clients)
        self.states = {name: ClientState() for name in clients} | dict(states or {})
        self._on_answer = on_answer

    def clients(self) -> tuple[str, ...]:
        return tuple(self._clients)

    def ask(self, questions: Mapping[str, Ask]) -> dict[str, Reply]:
        return {client: self._ask_one(client, ask) for client, ask in questions.items()}

    def _ask_one(self, client: str, ask: Ask) -> Reply:
        try:
            reply, self.states[client] = self._clients[client].answer(ask, self.states[client])
        except Exception as error:
            raise ClientFailed(client, type(ask).__name__, ask.round, error) from error
        self._on_answer(client, ask)
        return reply

"""A client whose answers with noise on them are entered into the account of all runs before they are given."""

from dataclasses import dataclass

from ...federation.client import Client, ClientState
from ...messages import Ask, Reply
from .ledger import SiteLedger, release_of


@dataclass(frozen=True)
class AccountedClient:
    """Implements `site_state.Answering`."""

    client: Client
    ledger: SiteLedger
    run: str
    budget: float  # of epsilon, over all runs

    def answer(self, ask: Ask, state: ClientState) -> tuple[Reply, ClientState]:
        session = state.secrets.session
        release = release_of(self.run, ask, self.client.config, session.name.hex() if session else "")
        reply, state = self.client.answer(ask, state)
        if release is not None:
            self.ledger.charge(*release, self.budget)
        return reply, state

"""Clients of a simulation in processes that Flower starts, each with a folder like that of a real site."""

import tomllib
from functools import lru_cache
from pathlib import Path

from ..config import RunConfig
from ..deployment.site.site_state import SiteState
from ..deployment.wire.terms import Terms
from ..messages import Ask, Reply
from ..run.folder import file_name
from ..run.watcher import SilentWatcher
from .assemble import Simulation, assemble

PARTITION = "partition-id"  # Flower's word for the number of a simulated client
SIMULATED = ".flower"


class SimulatedSite:
    """One client of a simulated federation, with a folder like that of a real site."""

    folder_name = "simulated"

    def __init__(self, settings: str, folder: Path, number: int):
        clients = _simulation(settings).clients
        self.name = list(clients)[number]
        self._client, self._folder = clients[self.name], folder

    def answer(self, ask: Ask, terms: Terms) -> Reply:
        return simulated_state(self._folder, terms.run, self.name).answer(ask, terms.attempt, self._client)


def simulated_state(folder: Path, run: str, name: str) -> SiteState:
    """Where a simulated site keeps its states, in the folder of the run."""
    return SiteState(folder / SIMULATED / file_name(run) / file_name(name))


@lru_cache(maxsize=1)
def _simulation(settings: str) -> Simulation:
    """Ray keeps its processes: images and model are loaded once in each."""
    return assemble(RunConfig.from_mapping(tomllib.loads(settings), "settings"), SilentWatcher())

"""Who answers in a process that Flower started: told by the node's and the run's own flat settings."""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..config import RunConfig
from ..deployment.server.plan import read_run_settings
from ..deployment.site.answered_questions import SiteState
from ..deployment.site.consent import USUAL, Consent
from ..deployment.site.site import Home, Site
from ..deployment.wire.terms import Terms
from ..errors import ConfigError
from ..messages import Ask, Reply
from ..run.build import Simulation, assemble
from ..run.folder import file_name
from ..run.watcher import SilentWatcher

PARTITION = "partition-id"  # Flower's word for the number of a simulated client
MODEL = "model."
SIMULATED = ".flower"


class SimulatedSite:
    """One client of a simulated federation, with a folder like that of a real site."""

    folder_name = "simulated"

    def __init__(self, settings: str, folder: Path, number: int):
        clients = _simulation(settings).clients
        self.name = list(clients)[number]
        self._client, self._folder = clients[self.name], folder

    def answer(self, ask: Ask, terms: Terms) -> Reply:
        states = simulated_state(self._folder, terms.run, self.name)
        return states.answer(ask, terms.attempt, lambda state: self._client.answer(ask, state))


def simulated_state(folder: Path, run: str, name: str) -> SiteState:
    """Where a simulated site keeps its states, in the folder of the run."""
    return SiteState(folder / SIMULATED / file_name(run) / file_name(name))


@lru_cache(maxsize=1)
def _simulation(settings: str) -> Simulation:
    """Ray keeps its processes: images and model are loaded once in each."""
    return assemble(RunConfig.from_mapping(tomllib.loads(settings), "settings"), SilentWatcher())


def answerer_of(node: Mapping[str, Any], run: Mapping[str, Any]) -> SimulatedSite | Site:
    if PARTITION in node:
        plan = read_run_settings(run)
        return SimulatedSite(plan.config.to_toml(), plan.out, int(node[PARTITION]))
    return _site(tuple(sorted(node.items())))


@lru_cache(maxsize=1)
def _site(node: tuple[tuple[str, Any], ...]) -> Site:
    return Site(home_of(dict(node)))


def home_of(node: Mapping[str, Any]) -> Home:
    """From `--node-config 'name="a" images="/data" classes="classes.txt" folder="site" model.threads=1'`.

    Also `corrections`, and the conditions of `fedcopl join`: `share` (names with commas), `least-sites`, `least-noise`.
    """
    missing = [key for key in ("name", "images", "folder") if not node.get(key)]
    if missing:
        raise ConfigError(f"{missing[0]}: is missing from the node-config of this SuperNode")
    model = {key.removeprefix(MODEL): value for key, value in node.items() if key.startswith(MODEL)}
    return Home(
        node["name"],
        Path(node["images"]),
        node.get("classes", ""),
        Path(node["folder"]),
        model,
        node.get("corrections", ""),
        Consent(
            tuple(str(node.get("share", ",".join(USUAL))).split(",")),
            int(node.get("least-sites", 0)),
            float(node.get("least-noise", 0)),
        ),
    )

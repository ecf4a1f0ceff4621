"""A simulated federation on Flower's Ray engine: several processes, the same bits as in one.

Every simulated site keeps its states in a folder, as a real one does, because Ray gives a question to whichever process
is free. The server's side is the simulation of `fedcopl run`, so the folder of the run holds all that it always holds.
"""

import logging
import os
import secrets
import shutil
import threading
import tomllib
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..config import RunConfig
from ..data.catalog import load_dataset
from ..data.partitioning import client_names
from ..deployment.server.grid_transport import GridTransport, Timeouts
from ..deployment.server.site_registry import KnownSites
from ..deployment.site.pipeline import make_client_app
from ..deployment.site.site_state import SiteState
from ..deployment.wire.terms import Terms
from ..errors import FedCoPLError, FederationError
from ..federation.client import Client
from ..federation.client_state import ClientState
from ..messages import Reply, Request
from ..methods import choose_method
from ..plugins import load_plugins
from ..run.folder import file_name
from ..run.progress_reporter import ProgressReporter, SilentReporter
from ..run.record import Outcome
from .assemble import Simulation, assemble
from .local_transport import Engine, LocalTransport
from .simulate import simulate

PARTITION = "partition-id"  # Flower's word for the number of a simulated client
SIMULATED = ".flower"


class SimulatedSite:
    """One client of a simulated federation, with a folder like that of a real site."""

    folder_name = "simulated"

    def __init__(self, settings: str, folder: Path, number: int):
        clients = _simulation(settings).clients
        self.name = list(clients)[number]
        self._client, self._folder = clients[self.name], folder

    def handle(self, request: Request, terms: Terms) -> Reply:
        states = simulated_state(self._folder, terms.run, self.name)
        return states.handle(request, terms.attempt, lambda step, state: self._client.handle(request, state))


def simulated_state(folder: Path, run: str, name: str) -> SiteState:
    """Where a simulated site keeps its states, in the folder of the run."""
    return SiteState(folder / SIMULATED / file_name(run) / file_name(name))


@lru_cache(maxsize=1)
def _simulation(settings: str) -> Simulation:
    """Ray keeps its processes: images and model are loaded once in each."""
    load_plugins()
    return assemble(RunConfig.from_mapping(tomllib.loads(settings), "settings"), SilentReporter())


LONG = 24 * 3600.0  # seconds: a simulated site does not get lost


class OverGrid(LocalTransport):
    """Clients in Flower's processes; their states are read back from their folders, for audit and checkpoint."""

    def begin(self, grid: Grid, folder: Path, over: threading.Event) -> None:
        """Write the states down where the simulated sites look for them, under a name no run had before."""
        self._run, self._home = secrets.token_hex(8), folder
        for name, state in self.states.items():
            simulated_state(folder, self._run, name).seed(state)
        names = {name: number for number, name in enumerate(self._clients)}
        terms = Terms(self._run, 1, 0, "", "", "", {})
        timeouts = Timeouts(LONG, len(names), poll=0.05)
        self._sites = GridTransport(grid, terms, KnownSites(names), timeouts, self._watcher, over.is_set)

    def _replies(self, questions: Mapping[str, Request]) -> dict[str, Reply]:
        self._sites.clients()  # all of them have to be there
        replies = self._sites.request(questions)
        for name in replies:
            self.states[name] = simulated_state(self._home, self._run, name).state()
        return replies


def engine_over(grid: Grid, over: threading.Event) -> Engine:
    def engine(
        folder: Path, clients: Mapping[str, Client], states: Mapping[str, ClientState] | None, watcher: ProgressReporter
    ) -> OverGrid:
        federation = OverGrid(clients, states, watcher, folder)
        federation.begin(grid, folder, over)
        return federation

    return engine


def simulate_over(
    grid: Grid,
    config: RunConfig,
    folder: Path,
    *,
    resume: bool,
    watcher: ProgressReporter,
    over: threading.Event,
    earlier: Path | None = None,
) -> Outcome:
    """`simulate`, with this grid's nodes as clients."""
    try:
        engine = engine_over(grid, over)
        return simulate(config, folder, resume=resume, watcher=watcher, engine=engine, earlier=earlier)
    finally:
        shutil.rmtree(folder / SIMULATED, ignore_errors=True)


def simulate_on_ray(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    watcher: ProgressReporter | None = None,
    earlier: Path | None = None,
) -> Outcome:
    """One simulated federation, its clients spread over this machine's cores."""
    try:
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise FederationError(
            "Flower's simulation is not installed: pip install 'fedcopl[flower-simulation]'"
        ) from error
    _quiet()
    outcome: list[Outcome] = []
    trouble: list[FedCoPLError] = []
    over = threading.Event()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            listener = watcher or SilentReporter()
            outcome.append(
                simulate_over(grid, config, folder, resume=resume, watcher=listener, over=over, earlier=earlier)
            )
        except FedCoPLError as error:
            trouble.append(error)

    clients = make_client_app(partial(_simulated, config.to_toml(), folder.absolute()))
    try:
        run_simulation(server, clients, _how_many(config), backend_config=_resources())
    finally:
        over.set()
    if trouble:
        raise trouble[0]
    return outcome[0]


def _simulated(settings: str, folder: Path, context: Context) -> SimulatedSite:
    return SimulatedSite(settings, folder, int(context.node_config[PARTITION]))


def _how_many(config: RunConfig) -> int:
    """The clients of a simulation, known from its settings and the list of images."""
    return 1 if choose_method(config).pools else len(client_names(load_dataset(config.data), config.data))


def _resources() -> dict[str, Any]:
    """One core for each process, as many as there are cores; what Ray has to say goes into its own files."""
    start = {"num_cpus": _cores(), "log_to_driver": False, "logging_level": "error"}
    return {"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": start}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quiet() -> None:
    """Flower tells of every step; here the watcher does."""
    logging.getLogger("flwr").setLevel(logging.ERROR)

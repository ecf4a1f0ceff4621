"""Simulation on Flower's Ray engine, with results bit-identical to those of one process.

Ray gives a request to any free process, so every simulated site stores its state in a folder, like a deployed site. The
server and the folder of the run are those of `fedcopl run`.
"""

import logging
import secrets
import shutil
import threading
import time
import tomllib
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..config import RunConfig
from ..data.catalog import load_dataset
from ..data.parallel import available_cores
from ..data.partitioning import client_names
from ..deployment.server.grid_transport import GridTransport, KnownSites, Timeouts
from ..deployment.site.pipeline import make_client_app
from ..deployment.site.site_state import SiteState
from ..deployment.terms import Terms
from ..errors import FedCoPLError, FederationError
from ..federation.client import Client
from ..federation.client_state import ClientState
from ..messages import Reply, Request
from ..methods import choose_method
from ..plugins import load_plugins
from ..run.folder import file_name
from ..run.progress_reporter import ProgressReporter
from ..run.record import Outcome
from .assemble import Simulation, assemble
from .simulate import LocalTransport, simulate

PARTITION = "partition-id"  # Flower's name for the number of a simulated client
_SIMULATED = ".flower"  # folder of the sites' states, within that of the run
_TIMEOUT = 24 * 3600.0  # seconds; simulated sites do not get lost


class SimulatedSite:
    """A client of a simulation, with a state folder like that of a deployed site."""

    folder_name = "simulated"

    def __init__(self, settings: str, folder: Path, number: int):
        clients = _simulation(settings).clients
        self.name = list(clients)[number]
        self._client, self._folder = clients[self.name], folder

    def handle(self, request: Request, terms: Terms) -> Reply:
        site_state = _simulated_state(self._folder, terms.run, self.name)
        return site_state.handle(request, terms.attempt, lambda step, state: self._client.handle(request, state))


def _simulated_state(folder: Path, run: str, name: str) -> SiteState:
    """Return the stored state of a simulated site, in the folder of the run."""
    return SiteState(folder / _SIMULATED / file_name(run) / file_name(name))


@lru_cache(maxsize=1)
def _simulation(settings: str) -> Simulation:
    """Load images and model once in each of Ray's processes, which stay alive."""
    load_plugins()
    return assemble(RunConfig.from_mapping(tomllib.loads(settings), "settings"), ProgressReporter())


class _FlowerTransport(LocalTransport):
    """Transport to clients in Flower's processes; it reads their states from their folders after each reply."""

    def __init__(
        self,
        grid: Grid,
        finished: threading.Event,
        folder: Path,
        clients: Mapping[str, Client],
        states: Mapping[str, ClientState] | None,
        progress: ProgressReporter,
    ):
        super().__init__(clients, states, progress, folder)
        self._run, self._home = secrets.token_hex(8), folder
        for name, state in self.states.items():
            _simulated_state(folder, self._run, name).seed(state)
        numbers = {name: number for number, name in enumerate(clients)}
        terms = Terms(self._run, 1, 0, "", "", "", {})
        timeouts = Timeouts(_TIMEOUT, len(numbers), poll=0.05)
        self._sites = GridTransport(grid, terms, KnownSites(numbers), timeouts, progress, finished.is_set)

    def request(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        """Send requests over the grid, and return the replies in the same order."""
        began = time.perf_counter()
        self._sites.clients()  # waits until all clients are connected
        replies = self._sites.request(requests)
        self._record(requests, {name: _simulated_state(self._home, self._run, name).state() for name in replies}, began)
        return replies


def simulate_on_grid(
    grid: Grid,
    config: RunConfig,
    folder: Path,
    *,
    resume: bool,
    progress: ProgressReporter,
    previous_run: Path | None = None,
    finished: threading.Event | None = None,
) -> Outcome:
    """Run `simulate` with the nodes of a grid as clients; setting `finished` stops waiting for replies."""
    engine = partial(_FlowerTransport, grid, finished or threading.Event())
    try:
        return simulate(config, folder, resume=resume, progress=progress, engine=engine, previous_run=previous_run)
    finally:
        shutil.rmtree(folder / _SIMULATED, ignore_errors=True)


def simulate_on_ray(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    progress: ProgressReporter | None = None,
    previous_run: Path | None = None,
) -> Outcome:
    """Run `simulate` with clients on Ray's processes, one per core.

    Raises:
        FederationError: Flower's simulation is not installed.
    """
    try:
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise FederationError(
            "Flower's simulation is not installed: pip install 'fedcopl[flower-simulation]'"
        ) from error
    logging.getLogger("flwr").setLevel(logging.ERROR)
    results: list[Outcome | FedCoPLError] = []
    finished = threading.Event()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        reporter = progress or ProgressReporter()
        try:
            results.append(
                simulate_on_grid(
                    grid, config, folder, resume=resume, progress=reporter, previous_run=previous_run, finished=finished
                )
            )
        except FedCoPLError as error:
            results.append(error)

    clients = make_client_app(partial(_simulated_site, config.to_toml(), folder.absolute()))
    ray_options = {"num_cpus": available_cores(), "log_to_driver": False, "logging_level": "error"}
    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": ray_options}
    try:
        run_simulation(server, clients, _client_count(config), backend_config=resources)
    finally:
        finished.set()
    if isinstance(results[0], FedCoPLError):
        raise results[0]
    return results[0]


def _simulated_site(settings: str, folder: Path, context: Context) -> SimulatedSite:
    return SimulatedSite(settings, folder, int(context.node_config[PARTITION]))


def _client_count(config: RunConfig) -> int:
    """Return the number of clients of the simulation before it is assembled."""
    return 1 if choose_method(config).centralised else len(client_names(load_dataset(config.data), config.data))

"""`fedcopl server`: a SuperLink for the sites, its registry, and the run itself, in this process."""

import math
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from ...errors import FederationError, Interrupted
from ...federation.server import ServerState
from ...files import make_folders
from ...priors.estimation import FEATURE_SCALES
from ...priors.posterior import no_priors
from ...priors.statistics import Statistic
from ...run.progress_reporter import ProgressReporter
from ...run.record import Outcome
from ..certificates import Certificates
from ..flower_internals.connections import RUN_GIVEN_UP, Control, Runtime, acquire_task, server_task
from ..metrics import health, metrics_port, server_metrics
from ..processes import flower_child, fresh_secret, holding, should_stop
from ..wire.addresses import own_address, with_port
from .grid_threads import GridThreads
from .rounds import PreparedServer, serve
from .site_registry import keep_admitted

_WORD = 8  # bytes of a number under masks, and of a sum
WRAPPING = 2_000_000  # names, headers, keys and shares of some ten thousand sites
_READY = 60.0  # seconds a SuperLink may take to start


@dataclass(frozen=True)
class ServerHome:
    """The folder and address of a server, and the keys of the sites that may join."""

    folder: Path  # certificates, Flower's files and logs
    sites: Path  # public keys of the sites that may join
    certificates: Certificates
    host: str = "0.0.0.0"
    port: int = 9092
    metrics_port: int = 0  # of this machine alone; 0: none

    @property
    def local(self) -> str:
        """Address by which this machine reaches the server."""
        return with_port(own_address(self.host), self.port)

    @property
    def log(self) -> Path:
        return self.folder / "flower" / "superlink.log"


def run_server(home: ServerHome, prepared: PreparedServer, watcher: ProgressReporter) -> Outcome:
    """Start a SuperLink, admit the sites, run the rounds, and stop everything again."""
    about = {
        "address": with_port(home.host, home.port),
        "local": home.local,
        "out": str(prepared.plan.out.absolute()),
        "ca": str(home.certificates.ca.absolute()),
    }
    with (
        holding(home.folder, "server", about),
        superlink(home, largest_reply(prepared.first_state())) as (link, secret),
        metrics_port(
            home.metrics_port,
            lambda: server_metrics(home.folder),
            lambda: health(home.folder, () if link.poll() is None else ("the SuperLink has ended",)),
        ),
        _superlink_errors(home),
        open_control(home, link, secret) as control,
        keep_admitted(home.sites, control, watcher),
    ):

        def stopped() -> bool:
            if link.poll() is not None:
                raise FederationError(f"the SuperLink has ended; see {home.log}; continue with --resume")
            return should_stop(home.folder)

        run_id = control.start_run()
        runtime = Runtime(home.local, secret, home.certificates.ca)
        with server_task(runtime, _first_task(runtime, run_id, stopped)) as grid:
            outcome = serve(GridThreads(grid, stopped), prepared, watcher, stopped)
        return replace(outcome, traffic=control.traffic(run_id))


def largest_reply(state: ServerState) -> int:
    """Return the size limit of a reply in bytes, from the settings of the run.

    The largest of the prompts, the same numbers under masks, and the sums for the priors.

    >>> largest_reply(ServerState(0, {}, classes=10, width=64))
    2017240
    """
    numbers = sum(prompt.size for prompt in state.shared.values())
    models = (no_priors(state.classes),) * 2 * len(FEATURE_SCALES)
    largest = [Statistic("moments"), Statistic("class_sums", models[:2]), Statistic("view_sums", models)]
    sizes = [math.prod(one.shape(state.classes, state.width)) for one in largest]
    return WRAPPING + _WORD * max(numbers, *sizes)


@contextmanager
def _superlink_errors(home: ServerHome) -> Iterator[None]:
    """Turn errors of the connection to the SuperLink into one line for the operator."""
    try:
        yield
    except httpx.HTTPError as error:
        raise FederationError(
            f"the SuperLink does not respond ({error}); see {home.log}; continue with --resume"
        ) from error
    except RUN_GIVEN_UP as error:
        raise FederationError(f"the SuperLink has stopped this run; see {home.log}; continue with --resume") from error


@contextmanager
def superlink(home: ServerHome, max_reply: int) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """Start a SuperLink as a child process; gives the process and the secret that it shares with this one."""
    files, folder = home.certificates, home.log.parent
    make_folders(folder)
    secret_file, secret = fresh_secret(folder)
    arguments = [home.host, str(max_reply), "--host", home.host, "--port", str(home.port)]
    arguments += ["--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)]
    arguments += ["--ssl-ca-certfile", str(files.ca), "--enable-supernode-auth", "--isolation", "process"]
    arguments += ["--disable-runtime-dependency-installation", "--superexec-auth-secret-file", str(secret_file)]
    with flower_child("superlink", arguments, home.log) as child:
        yield child, secret


@contextmanager
def open_control(home: ServerHome, link: subprocess.Popen[bytes], secret: bytes) -> Iterator[Control]:
    """Wait until a SuperLink is up; gives its Control interface."""
    _wait_until_ready(home, link)
    control = Control(home.local, home.certificates.ca, secret)
    try:
        yield control
    finally:
        control.close()


def _wait_until_ready(home: ServerHome, link: subprocess.Popen[bytes]) -> None:
    end, trusted = time.monotonic() + _READY, ssl.create_default_context(cafile=home.certificates.ca)
    while time.monotonic() < end:
        if link.poll() is not None:
            raise FederationError(
                f"the SuperLink did not start; is {with_port(home.host, home.port)} in use, "
                f"or not an address of this machine? see {home.log}"
            )
        with suppress(httpx.HTTPError):
            if httpx.get(f"https://{home.local}/health", verify=trusted, timeout=2).is_success:
                return
        time.sleep(0.2)
    raise FederationError(f"the SuperLink did not start within {_READY:.0f} s; see {home.log}")


def _first_task(runtime: Runtime, run_id: int, stopped: Callable[[], bool]) -> str:
    end = time.monotonic() + _READY
    with runtime.client() as client:
        while time.monotonic() < end:
            token = acquire_task(client)
            if token:
                return token
            if stopped():
                raise Interrupted("stopped; continue with --resume")
            time.sleep(0.1)
    raise FederationError(f"the SuperLink has no task for run {run_id}")

"""`fedcopl server`: a SuperLink for the sites, its registry, and the run itself, in this process."""

import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from ...errors import FederationError, Interrupted
from ...files import make_folders
from ...run.progress_reporter import ProgressReporter
from ...run.record import Outcome
from ..certificates import Certificates
from ..flower_internals.connections import RUN_GIVEN_UP, Control, Runtime, acquire_task, server_task
from ..metrics import health, server_metrics
from ..metrics_port import metrics_port
from ..processes import flower_child, fresh_secret, holding, should_stop
from ..wire.addresses import own_address, with_port
from .grid_threads import GridThreads
from .plan import PreparedServer
from .reply_size import largest_reply
from .rounds import serve
from .site_registry import admitting

READY = 60.0  # seconds a SuperLink may take to start


@dataclass(frozen=True)
class ServerHome:
    """Where a server lives: its folder, its address, and who may join."""

    folder: Path  # certificates, Flower's files and logs
    sites: Path  # public keys of those who may join
    certificates: Certificates
    host: str = "0.0.0.0"
    port: int = 9092
    metrics_port: int = 0  # of this machine alone; 0: none

    @property
    def local(self) -> str:
        """How this machine reaches it."""
        return with_port(own_address(self.host), self.port)

    @property
    def log(self) -> Path:
        return self.folder / "flower" / "superlink.log"


def run_server(home: ServerHome, prepared: PreparedServer, watcher: ProgressReporter) -> Outcome:
    """Start a SuperLink, let the sites in, play the run, and take everything down again."""
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
        _in_plain_words(home),
        control_of(home, link, secret) as control,
        admitting(home.sites, control, watcher),
    ):

        def stopped() -> bool:
            if link.poll() is not None:
                raise FederationError(f"the SuperLink has ended; see {home.log}; go on with --resume")
            return should_stop(home.folder)

        run_id = control.start_run()
        runtime = Runtime(home.local, secret, home.certificates.ca)
        with server_task(runtime, _first_task(runtime, run_id, stopped)) as grid:
            outcome = serve(GridThreads(grid, stopped), prepared, watcher, stopped)
        return replace(outcome, traffic=control.traffic(run_id))


@contextmanager
def _in_plain_words(home: ServerHome) -> Iterator[None]:
    """What goes wrong between this process and its SuperLink, said to people."""
    try:
        yield
    except httpx.HTTPError as error:
        raise FederationError(
            f"the SuperLink does not answer ({error}); see {home.log}; go on with --resume"
        ) from error
    except RUN_GIVEN_UP as error:
        raise FederationError(f"the SuperLink has given up this run; see {home.log}; go on with --resume") from error


@contextmanager
def superlink(home: ServerHome, most: int) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """A SuperLink in a process of its own, and the secret that it shares with this one; for answers of `most` bytes."""
    files, folder = home.certificates, home.log.parent
    make_folders(folder)
    secret_file, secret = fresh_secret(folder)
    arguments = [home.host, str(most), "--host", home.host, "--port", str(home.port)]
    arguments += ["--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)]
    arguments += ["--ssl-ca-certfile", str(files.ca), "--enable-supernode-auth", "--isolation", "process"]
    arguments += ["--disable-runtime-dependency-installation", "--superexec-auth-secret-file", str(secret_file)]
    with flower_child("superlink", arguments, home.log) as child:
        yield child, secret


@contextmanager
def control_of(home: ServerHome, link: subprocess.Popen[bytes], secret: bytes) -> Iterator[Control]:
    """The registry of a SuperLink, as soon as that is up."""
    _wait_until_ready(home, link)
    control = Control(home.local, home.certificates.ca, secret)
    try:
        yield control
    finally:
        control.close()


def _wait_until_ready(home: ServerHome, link: subprocess.Popen[bytes]) -> None:
    end, trusted = time.monotonic() + READY, ssl.create_default_context(cafile=home.certificates.ca)
    while time.monotonic() < end:
        if link.poll() is not None:
            raise FederationError(
                f"the SuperLink ended at once; is {with_port(home.host, home.port)} in use, or not of this machine? "
                f"see {home.log}"
            )
        with suppress(httpx.HTTPError):
            if httpx.get(f"https://{home.local}/health", verify=trusted, timeout=2).is_success:
                return
        time.sleep(0.2)
    raise FederationError(f"the SuperLink did not start within {READY:.0f} s; see {home.log}")


def _first_task(runtime: Runtime, run_id: int, stopped: Callable[[], bool]) -> str:
    end = time.monotonic() + READY
    with runtime.client() as client:
        while time.monotonic() < end:
            token = acquire_task(client)
            if token:
                return token
            if stopped():
                raise Interrupted("stopped; go on with --resume")
            time.sleep(0.1)
    raise FederationError(f"the SuperLink gave out no task for run {run_id}")

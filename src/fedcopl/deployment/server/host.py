"""`fedcopl server`: a SuperLink for the sites, its registry, and the run itself, in this process."""

import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.supercore.constant import TaskType
from flwr.supercore.run import RunNotRunningException

from ...errors import FedCoPLError, FederationError, Interrupted
from ...run.record import Outcome
from ...run.watcher import Watcher
from ..certificates import Certificates, read_site_keys
from ..child_process import end, fresh_secret, start
from ..flower_internals.server_task import play_one
from ..flower_internals.tasks import Runtime, take_task
from ..wire.addresses import own_address, with_port
from ..working_folder import should_stop, working
from .registry import Admission, Control
from .rounds import PreparedServer, serve

READY = 60.0  # seconds a SuperLink may take to start
BUNDLE = """
[project]
name = "fedcopl"
version = "1.0.0"
description = "Names the app; the code is what each site has installed."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedcopl"

[tool.flwr.app.components]
serverapp = "fedcopl.flower_app.server_app:app"
clientapp = "fedcopl.flower_app.client_app:app"
"""


@dataclass(frozen=True)
class ServerHome:
    """Where a server lives: its folder, its door, and who may come in."""

    folder: Path  # certificates, Flower's files and logs
    sites: Path  # public keys of those who may join
    certificates: Certificates
    host: str = "0.0.0.0"
    port: int = 9092

    @property
    def local(self) -> str:
        """How this machine reaches it."""
        return with_port(own_address(self.host), self.port)

    @property
    def log(self) -> Path:
        return self.folder / "flower" / "superlink.log"


def host(home: ServerHome, prepared: PreparedServer, watcher: Watcher) -> Outcome:
    """Start a SuperLink, let the sites in, play the run, and take everything down again."""
    outcome: list[Outcome] = []
    about = {
        "role": "server",
        "address": with_port(home.host, home.port),
        "local": home.local,
        "out": str(prepared.plan.out.absolute()),
        "ca": str(home.certificates.ca.absolute()),
    }
    with (
        working(home.folder, about),
        link_of(home) as (link, secret),
        _in_plain_words(home),
        control_of(home, link) as control,
        letting_in(home, control, watcher),
    ):
        run_id = control.start_run(build_fab_from_files({"pyproject.toml": BUNDLE.encode()})[0])
        runtime = Runtime(home.local, secret, home.certificates.ca)

        def stopped() -> bool:
            if link.poll() is not None:
                raise FederationError(f"the SuperLink has ended; see {home.log}; go on with --resume")
            return should_stop(home.folder)

        token = _first_task(runtime, run_id, stopped)
        play_one(runtime, token, lambda grid: outcome.append(serve(grid, prepared, watcher, stopped)), stopped)
        return replace(outcome[0], traffic=control.traffic(run_id))


@contextmanager
def _in_plain_words(home: ServerHome) -> Iterator[None]:
    """What goes wrong between this process and its SuperLink, told to people."""
    try:
        yield
    except httpx.HTTPError as error:
        raise FederationError(
            f"the SuperLink does not answer ({error}); see {home.log}; go on with --resume"
        ) from error
    except RunNotRunningException as error:
        raise FederationError(f"the SuperLink has given up this run; see {home.log}; go on with --resume") from error


@contextmanager
def link_of(home: ServerHome) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """A SuperLink in a process of its own, and the secret that it shares with this one."""
    files, place = home.certificates, home.folder / "flower"
    place.mkdir(parents=True, exist_ok=True)
    for old in place.glob("link.db*"):
        old.unlink()  # all that has to survive is in files of our own
    secret_file, secret = fresh_secret(place)
    arguments = [home.host, "--host", home.host, "--port", str(home.port), "--database", str(place / "link.db")]
    arguments += ["--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)]
    arguments += ["--ssl-ca-certfile", str(files.ca), "--enable-supernode-auth", "--isolation", "process"]
    arguments += ["--disable-runtime-dependency-installation", "--superexec-auth-secret-file", str(secret_file)]
    with home.log.open("ab") as log:
        child = start("superlink", arguments, place, log)
        try:
            yield child, secret
        finally:
            end(child)


@contextmanager
def control_of(home: ServerHome, link: subprocess.Popen[bytes]) -> Iterator[Control]:
    """The registry of a SuperLink, as soon as that is up."""
    _wait_until_ready(home, link)
    control = Control(home.local, home.certificates.ca)
    try:
        yield control
    finally:
        control.close()


def _wait_until_ready(home: ServerHome, link: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + READY
    while time.monotonic() < end:
        if link.poll() is not None:
            raise FederationError(
                f"the SuperLink ended at once; is {with_port(home.host, home.port)} in use, or not of this machine? "
                f"see {home.log}"
            )
        if _is_up(home):
            return
        time.sleep(0.2)
    raise FederationError(f"the SuperLink did not start within {READY:.0f} s; see {home.log}")


def _is_up(home: ServerHome) -> bool:
    trusted = ssl.create_default_context(cafile=home.certificates.ca)
    try:
        return httpx.get(f"https://{home.local}/health", verify=trusted, timeout=2).is_success
    except httpx.HTTPError:
        return False


@contextmanager
def letting_in(home: ServerHome, control: Control, watcher: Watcher) -> Iterator[None]:
    """Keep the registry in step with the folder of keys while the run goes on: a new file lets a new site in."""
    home.sites.mkdir(parents=True, exist_ok=True)
    known = read_site_keys(home.sites)
    _tell(watcher, Admission(refused=control.admit(known.values()).refused))
    over = threading.Event()

    def watch() -> None:
        nonlocal known
        trouble = ""
        while not over.wait(1.0):
            try:
                found = read_site_keys(home.sites)
                if found != known:
                    _tell(watcher, control.admit(found.values()))
                    known = found
                trouble = ""
            except (FedCoPLError, httpx.HTTPError) as error:
                if str(error) != trouble:
                    watcher.noticed(trouble := str(error))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _tell(watcher: Watcher, change: Admission) -> None:
    for name in change.new:
        watcher.noticed(f"{name} may join from now on")
    for name in change.left:
        watcher.noticed(f"{name} may not join any more")
    for name, why in change.refused.items():
        watcher.noticed(f"{name} cannot be let in ({why}); stop the server and start it again with --resume")


def _first_task(runtime: Runtime, run_id: int, stopped: Callable[[], bool]) -> str:
    client = runtime.client()
    end = time.monotonic() + READY
    try:
        while time.monotonic() < end:
            token = take_task(client, TaskType.SERVER_APP)
            if token:
                return token
            if stopped():
                raise Interrupted("stopped; go on with --resume")
            time.sleep(0.1)
    finally:
        client.close()
    raise FederationError(f"the SuperLink gave out no task for run {run_id}")

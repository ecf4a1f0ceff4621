"""`fedcopl server`: a SuperLink as a child process, the registration of sites, and the run itself, in this process.

A site may join if its public key is in a folder; the registry of Flower's SuperLink is kept in step with that folder.
"""

import math
import os
import secrets
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from ...errors import FedCoPLError, FederationError
from ...federation.server import ServerState
from ...files import make_folders, write_private
from ...priors.estimation import FEATURE_SCALES
from ...priors.posterior import no_priors
from ...priors.statistics import Statistic
from ...run.progress_reporter import ProgressReporter
from ...run.record import Outcome
from .. import OFFLINE
from ..addresses import own_address, with_port
from ..flower_internals.connections import Control, RunGivenUp, server_task
from ..keys import Certificates, SiteKey
from ..monitoring import health, metrics_port, server_metrics
from ..packages import admitted_keys, today_utc
from ..processes import GRACE, SECRET, locked_folder, should_stop, write_log
from .grid_transport import GridThreads
from .rounds import PreparedServer, serve

_NUMBER_BYTES = 8  # of a masked number, and of a sum
_LOG_END = 2.0  # seconds to wait until the log of a SuperLink that has ended is written
_OVERHEAD = 2_000_000  # names, headers, keys and shares of some ten thousand sites
_READY = 60.0  # seconds a SuperLink may take to start


@dataclass(frozen=True)
class ServerOptions:
    """The folder, certificates and address of a server."""

    folder: Path  # of certificates, Flower's files and logs
    sites: Path  # public keys of the sites that may join
    certificates: Certificates
    host: str = "0.0.0.0"
    port: int = 9092
    metrics_port: int = 0  # local; 0: none

    @property
    def local(self) -> str:
        """Address by which this machine reaches the server."""
        return with_port(own_address(self.host), self.port)

    @property
    def log(self) -> Path:
        return self.folder / "flower" / "superlink.log"


def run_server(options: ServerOptions, prepared: PreparedServer, progress: ProgressReporter) -> Outcome:
    """Start a SuperLink, admit the sites, run the rounds, and stop the SuperLink."""
    status = {
        "address": with_port(options.host, options.port),
        "local": options.local,
        "out": str(prepared.plan.out.absolute()),
        "ca": str(options.certificates.ca.absolute()),
    }
    with (
        locked_folder(options.folder, "server", status),
        _superlink(options, _max_reply_bytes(prepared.first_state())) as (superlink, secret),
        metrics_port(
            options.metrics_port,
            lambda: server_metrics(options.folder),
            lambda: health(options.folder, () if superlink.poll() is None else ("the SuperLink has ended",)),
        ),
        _superlink_errors(options),
        closing(_connect_control(options, superlink, secret)) as control,
        _keep_admitted(options.sites, control, progress),
    ):

        def stopped() -> bool:
            if superlink.poll() is not None:
                raise FederationError(f"the SuperLink has ended; see {options.log}; continue with --resume")
            return should_stop(options.folder)

        run_id = control.start_run()
        with server_task(options.local, options.certificates.ca, secret, stopped) as grid:
            outcome = serve(GridThreads(grid, stopped), prepared, progress, stopped)
        return replace(outcome, traffic=control.traffic(run_id))


def _admit(control: Control, keys: Iterable[SiteKey], progress: ProgressReporter, *, is_start: bool = False) -> None:
    """Unregister removed keys, register new ones and report both; a key that is rejected does not affect the others.

    The keys at the start of a server are not reported.
    """
    admitted = {(key.name, key.public) for key in keys}
    registered = {(site.name, site.public_key): site for site in control.sites()}
    for name, public in sorted(set(registered) - admitted):
        control.unregister(registered[name, public])
        progress.note(f"{name} may no longer join")
    for name, public in sorted(admitted - set(registered)):
        reason = control.register(name, public)
        if reason:
            progress.note(
                f"{name} cannot be registered ({reason}); if its key was removed while this server runs, the site "
                "needs a new key (delete its site.key and join with --check), or restart the server with --resume"
            )
        elif not is_start:
            progress.note(f"{name} may join now")


@contextmanager
def _keep_admitted(folder: Path, control: Control, progress: ProgressReporter) -> Iterator[None]:
    """Keep the registry in step with a folder of keys: during the run, a new file adds a site."""
    folder.mkdir(parents=True, exist_ok=True)
    previous = admitted_keys(folder, today_utc())
    _admit(control, previous.values(), progress, is_start=True)
    stopped = threading.Event()

    def watch() -> None:
        nonlocal previous
        last_error = ""
        while not stopped.wait(1.0):
            try:
                current = admitted_keys(folder, today_utc())
                if current != previous:
                    _admit(control, current.values(), progress)
                    previous = current
                last_error = ""
            except (FedCoPLError, httpx.HTTPError) as error:
                if str(error) != last_error:
                    progress.note(last_error := str(error))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _max_reply_bytes(state: ServerState) -> int:
    """Return the size limit of a reply in bytes, enough for all prompts and for each prior statistic, masked or not.

    >>> _max_reply_bytes(ServerState(0, {}, classes=10, width=64))
    2017240
    """
    prompt_values = sum(prompt.size for prompt in state.shared.values())
    models = (no_priors(state.classes),) * 2 * len(FEATURE_SCALES)
    statistics = [Statistic("moments"), Statistic("class_sums", models[:2]), Statistic("view_sums", models)]
    sizes = [math.prod(statistic.shape(state.classes, state.width)) for statistic in statistics]
    return _OVERHEAD + _NUMBER_BYTES * max(prompt_values, *sizes)


@contextmanager
def _superlink_errors(options: ServerOptions) -> Iterator[None]:
    """Turn errors of the connection to the SuperLink into one line for the operator."""
    remedy = f"see {options.log}; continue with --resume"
    try:
        yield
    except httpx.HTTPError as error:
        raise FederationError(f"the SuperLink does not respond ({error}); {remedy}") from error
    except RunGivenUp as error:
        raise FederationError(f"the SuperLink has stopped this run; {remedy}") from error


@contextmanager
def _superlink(options: ServerOptions, max_reply: int) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """Start a SuperLink as a child process; yields the process and the secret that it shares with this one."""
    files, folder = options.certificates, options.log.parent
    make_folders(folder)
    secret_file, secret = folder / SECRET, secrets.token_bytes(32)
    write_private(secret_file, secret)
    module = "fedcopl.deployment.flower_internals.superlink"
    command = [sys.executable, "-m", module, str(os.getpid()), options.host, str(max_reply)]
    command += ["--host", options.host, "--port", str(options.port)]
    command += ["--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)]
    command += ["--ssl-ca-certfile", str(files.ca), "--enable-supernode-auth", "--isolation", "process"]
    command += ["--disable-runtime-dependency-installation", "--superexec-auth-secret-file", str(secret_file)]
    # A new session: Ctrl-C reaches only the parent, which then ends its children in order.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **_superlink_environment(folder)},
        start_new_session=True,
    )
    assert child.stdout is not None
    log = write_log(child.stdout, options.log)
    try:
        yield child, secret
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
        child.wait()
        log.join(_LOG_END)  # with a limit: another process may keep the pipe open


def _superlink_environment(folder: Path) -> dict[str, str]:
    """Return the variables of a SuperLink: its files in this folder, no telemetry, no trust in forwarded addresses."""
    return {**OFFLINE, "FLWR_HOME": str(folder.absolute()), "FORWARDED_ALLOW_IPS": "127.0.0.1", "NO_COLOR": "1"}


def _connect_control(options: ServerOptions, superlink: subprocess.Popen[bytes], secret: bytes) -> Control:
    """Wait until a SuperLink responds, and return its Control interface."""
    end, trusted = time.monotonic() + _READY, ssl.create_default_context(cafile=options.certificates.ca)
    while True:
        with suppress(httpx.HTTPError):
            if httpx.get(f"https://{options.local}/health", verify=trusted, timeout=2).is_success:
                return Control(options.local, options.certificates.ca, secret)
        if superlink.poll() is not None:
            raise FederationError(
                f"the SuperLink did not start; is {with_port(options.host, options.port)} in use, "
                f"or not an address of this machine? see {options.log}"
            )
        if time.monotonic() > end:
            raise FederationError(f"the SuperLink did not start within {_READY:.0f} s; see {options.log}")
        time.sleep(0.2)

"""`fedcopl join`: the process of a site, which replies to the server's requests until it is stopped."""

import _thread
import logging
import shlex
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
from flwr.app import Message

from ...errors import FederationError
from ...run.progress_reporter import ProgressReporter
from ..addresses import connect, proxy_to, strip_credentials
from ..audit_log import AuditLog
from ..flower_internals import ANNOUNCED_HEARTBEAT
from ..flower_internals.site_connection import ConnectionLost, SiteConnection, site_connection
from ..keys import private_key, site_key
from ..message_format import refusal_of
from ..monitoring import ReplyCounts, health, metrics_port, site_metrics
from ..processes import locked_folder, should_stop
from ..terms import Refused
from .pipeline import reply_to
from .running_site import RunningSite

_MIN_POLL, _MAX_POLL = 0.1, 5.0  # seconds between two polls for a request
_POLL_SHARE = 0.1  # interval of polls as a share of the time since the last reply, and of `gap`
_MAX_GAP_INTERVAL = 2.0  # seconds, the largest interval because of `gap`
_POLL_BREAK = 10.0  # interval of polls as a multiple of the last poll's duration: a busy server responds slowly
_STOP_CHECK = 0.5  # seconds between two checks whether to stop
_REPEATED = "adapt"  # kind of request that comes dozens of times in a row: one line is logged for all
_RECONNECT = 2.0  # seconds between two attempts to join
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"  # in the texts of OpenSSL errors, which httpx contains
_TIME_CHECK = 0.2  # seconds between two checks of the time limit of a reply
_INTERRUPT_AGAIN = 5.0  # seconds until a computation that continues is interrupted again
_log = logging.getLogger("fedcopl.site")


@dataclass(frozen=True)
class ServerAddress:
    """The address of a server, and the certificate of its authority."""

    address: str
    ca: Path

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")


def check_server(server: ServerAddress) -> None:
    """Verify the server's certificate, if the server is reachable; a wrong certificate is an error."""
    port = server.address.rpartition(":")[2]
    if not server.host or not port.isdigit():
        raise FederationError(f"{server.address}: is not an address; write it as server.example:9092")
    try:
        context = ssl.create_default_context(cafile=server.ca)
    except (OSError, ssl.SSLError) as error:
        raise FederationError(f"{server.ca}: is not the CA certificate of a server (its ca.pem): {error}") from error
    try:
        with (
            connect(server.host, int(port), 5) as connection,
            context.wrap_socket(connection, server_hostname=server.host),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise FederationError(_untrusted_message(server, error.verify_message)) from error
    except OSError:
        return  # not running yet: the site keeps trying


def _untrusted_message(server: ServerAddress, reason: str) -> str:
    return (
        f"{server.address}: its certificate is not signed by {server.ca} ({reason}); "
        f"ask the operator for a new ca.pem or package, and whether the certificate includes {server.host} (--address)"
    )


def _join_error(server: ServerAddress, public: Path, error: httpx.HTTPError, finished: str = "") -> str:
    """Return why the site with this key cannot join now; for `finished` see `_connection_error`."""
    if not isinstance(error, httpx.HTTPStatusError):
        return _connection_error(server, error, finished)
    if error.response.status_code == httpx.codes.UNAUTHORIZED:
        return "the server rejects this site's signature: is the clock of this machine right? trying again"
    return (
        f"the server rejects this site: {public} is not registered there, has expired or was revoked "
        f"(ask the operator), or has another connection (after a kill wait {2 * ANNOUNCED_HEARTBEAT} s); trying again"
    )


def _connection_error(server: ServerAddress, error: httpx.HTTPError, finished: str = "") -> str:
    """Return why the server cannot be reached now, or `finished` after a run, when a server ends without an error."""
    if _UNTRUSTED in str(error):
        return f"{_untrusted_message(server, str(error).rpartition(': ')[2].partition(' (_ssl')[0])}; trying again"
    if finished:
        return finished
    proxy = proxy_to(server.host)
    through = f" through the proxy {strip_credentials(proxy)}" if proxy else ""
    return f"no server at {server.address}{through}; trying again until there is one"


def run_site(site: RunningSite, server: ServerAddress, progress: ProgressReporter, port: int = 0) -> None:
    """Reply to requests until stopped; with a port, serve metrics there."""
    folder, reporter = site.options.folder, SiteReporter(progress, server)
    stopped = partial(should_stop, folder)
    status = {"name": site.name, "server": server.address, "conditions": str(site.options.consent)}
    private, public = site_key(folder, site.name)
    with (
        locked_folder(folder, "site", status),
        metrics_port(port, lambda: site_metrics(folder, reporter.counts), lambda: health(folder)),
    ):
        while not stopped():
            try:
                with site_connection(server.address, server.ca, private_key(private)) as connection:
                    _handle_requests(site, connection, reporter)
            except KeyboardInterrupt:
                if not stopped():
                    raise
            except ConnectionLost as error:
                _log.warning("connection lost, reconnecting: %s", error)
                _wait(_STOP_CHECK, stopped)
            except httpx.HTTPError as error:
                reporter.announce(_join_error(server, public, error, reporter.finished))
                _wait(_RECONNECT, stopped)
            reporter.counts.connected = False
        progress.note("stopped by `fedcopl stop`; the same command joins again")


@dataclass
class SiteReporter:
    """Reports the connection and the replies of a site, to its terminal and its metrics."""

    progress: ProgressReporter
    server: ServerAddress
    counts: ReplyCounts = field(default_factory=ReplyCounts)
    finished: str = ""  # the line that was printed after a finished run; repeated when the server ends
    _announced: str = ""
    _last: tuple[str, str, bool] = ("", "", False)  # round and kind of the last request, and whether it was refused

    def check(self, connection: SiteConnection) -> None:
        """Report that the connection was lost or established since the last check."""
        was_connected, error = self.counts.connected, connection.error
        self.counts.connected = error is None
        if error is not None:
            self.announce(_connection_error(self.server, error, self.finished))
        elif not was_connected:
            self.announce(f"connected to {self.server.address}")

    def announce(self, line: str) -> None:
        """Print a line unless it was the last one."""
        if line != self._announced:
            self._announced = line
            self.progress.note(line)

    def replied(self, request: Message, seconds: float, finished: Path | None = None, *, refused: bool) -> None:
        """Report one reply; after the last request of a run, `finished` is the folder of that run."""
        kind = request.metadata.message_type.removeprefix("query.")
        self.counts.add(kind, seconds, refused=refused)
        result = "refused" if refused else f"replied in {seconds:.1f} s"  # the reason is in the log
        current = (request.metadata.group_id, kind, refused)
        if kind == _REPEATED and not refused:
            result = "replied; further prior-estimation requests are not logged individually"
        if current != self._last or kind != _REPEATED:
            self.progress.note(f"round {request.metadata.group_id}: {kind} {result}")
        self._last = current
        self.finished = ""
        if finished is not None:
            self.finished = (
                f"the run is finished; this site's classifier is in {finished}; label images with: "
                f"fedcopl predict IMAGES --classifier {shlex.quote(str(finished))} --out labels.csv; "
                "this site waits for the next run, Ctrl-C stops it"
            )
            self.announce(self.finished)


def _handle_requests(site: RunningSite, connection: SiteConnection, reporter: SiteReporter) -> None:
    """Reply to requests until the connection is lost or the site has to stop."""
    folder, last_reply, gap = site.options.folder, time.monotonic(), 0.0
    stopped = partial(should_stop, folder)
    while not stopped():
        began = time.monotonic()
        request = connection.next()
        reporter.check(connection)
        if request is None:
            _wait(_poll_interval(time.monotonic() - last_reply, time.monotonic() - began, gap), stopped)
            continue
        gap, began = began - last_reply, time.monotonic()
        time_limit = _time_limit(site.options.limits.seconds, stopped)
        reply = reply_to(request, lambda: site, AuditLog(folder), reporter.server.address, time_limit)
        reporter.replied(request, time.monotonic() - began, site.finished, refused=bool(refusal_of(reply.content)))
        connection.send(reply)
        last_reply = time.monotonic()


@contextmanager
def _time_limit(seconds: float, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Interrupt this block, in the main thread, after `seconds` or as soon as the site has to stop.

    Raises:
        Refused: the time is over.
        KeyboardInterrupt: the site has to stop.
    """
    end = time.monotonic() + seconds
    try:
        with _interrupted_when(lambda: should_stop() or time.monotonic() > end):
            yield
    except KeyboardInterrupt:
        if time.monotonic() > end and not should_stop():
            raise Refused(f"the reply takes longer than this site's limit of {seconds:g} s") from None
        raise


@contextmanager
def _interrupted_when(is_over: Callable[[], bool]) -> Iterator[None]:
    """Raise KeyboardInterrupt in the main thread as soon as `is_over` returns true, and never after this block.

    If Python ignores the exception, as in the finaliser of an object, it is raised again.
    """
    lock, done = threading.Lock(), threading.Event()

    def watch() -> None:
        while not done.wait(_TIME_CHECK):
            if is_over():
                with lock:
                    if not done.is_set():
                        _thread.interrupt_main(signal.SIGINT)
                done.wait(_INTERRUPT_AGAIN)

    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # disabled in background jobs
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with lock:
            done.set()
        signal.signal(signal.SIGINT, previous_handler)


def _poll_interval(waited: float, took: float, gap: float) -> float:
    """Return the seconds until the next poll.

    It grows with the time since the last reply, so that an idle site rarely polls; with the duration of the last poll,
    because many sites poll a busy server; and with `gap`, because a server of many sites rarely sends requests.

    Args:
        waited: seconds since the last reply.
        took: duration of the last poll in seconds.
        gap: seconds between the last request and the reply before it.

    >>> [_poll_interval(waited, 0.005, 0.5) for waited in (0.0, 20.0, 3600.0)], _poll_interval(0.0, 0.08, 0.5)
    ([0.1, 2.0, 5.0], 0.8)
    >>> _poll_interval(0.0, 0.005, 8.0), _poll_interval(0.0, 0.005, 3600.0)
    (0.8, 2.0)
    """
    return min(
        _MAX_POLL, max(_MIN_POLL, _POLL_SHARE * waited, _POLL_BREAK * took, min(_MAX_GAP_INTERVAL, _POLL_SHARE * gap))
    )


def _wait(seconds: float, stopped: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while (remaining := end - time.monotonic()) > 0 and not stopped():
        time.sleep(min(_STOP_CHECK, remaining))

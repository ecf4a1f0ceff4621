"""Monitoring of a server or a site: `fedcopl status`, and `/metrics` for Prometheus and `/health` on a local port.

The numbers are read from the folder at each request, except for the counters of a running site. They contain no
information on images or labels.
"""

import json
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from ..config import RunConfig, read_settings
from ..errors import ConfigError, FedCoPLError, FederationError
from ..privacy.accountant import PrivacyStatement, privacy_statement
from ..run.folder import ENDED, SETTINGS, read_rounds
from ..run.record import RoundRecord
from .keys import read_site_keys
from .packages import expiries
from .processes import SECRET, FolderProcess, process_of
from .site.site_state import NOW, SiteState

_REFUSED = "refused: "  # prefix of a refusal
_HOST = "127.0.0.1"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_SHOWN_ROUNDS = 10  # the last rounds in `fedcopl status`


@dataclass(frozen=True)
class Status:
    """The state of a server or a site."""

    running: bool
    facts: Mapping[str, str]
    privacy: PrivacyStatement | None = None
    sites: list[list[str]] = field(default_factory=list)  # rows: name, connection, since, last trained, expiry of key
    rounds: list[list[str]] = field(default_factory=list)  # rows: round, sites, images, loss, sites left out


def status_of(folder: Path) -> Status:
    """Read the state of the server or site in this folder."""
    process = process_of(folder)
    return _server_status(process) if process.role == "server" else _site_status(process)


def _server_status(process: FolderProcess) -> Status:
    run_folder = process.results
    rounds = read_rounds(run_folder)
    facts = {
        "server": f"running on {process.details['address']}" if process.running else "not running",
        "results": str(run_folder),
        "finished rounds": str(len(rounds)),
    }
    if (run_folder / ENDED).exists() and not process.running:
        facts["reason for its end"] = (run_folder / ENDED).read_text(encoding="utf-8").strip()
    totals = next((record.totals for record in reversed(rounds) if record.totals), None)
    if totals:
        facts["confident per class"] = ", ".join(map(str, totals))
    counts = next((record.labelling for record in reversed(rounds) if record.labelling), None)
    if counts:
        share = 100 * counts.chosen / max(counts.images, 1)
        facts["images selected"] = f"{counts.chosen:,} of {counts.images:,} ({share:.0f} %)"
    if counts and counts.compared:
        unchanged = 100 * counts.unchanged / counts.compared
        facts["labels unchanged"] = f"{counts.unchanged:,} of {counts.compared:,} ({unchanged:.0f} %)"
    facts |= _expiry_facts(process.folder)
    trained = {site: record.number for record in rounds for site in record.sites or ()}
    privacy, sites = _privacy_so_far(run_folder, rounds), _site_rows(process, trained)
    return Status(process.running, facts, privacy, sites, [_round_row(record) for record in rounds[-_SHOWN_ROUNDS:]])


def _privacy_so_far(run_folder: Path, rounds: tuple[RoundRecord, ...]) -> PrivacyStatement | None:
    """Return the privacy guarantee so far; None if all privacy settings are off, or the run has not started."""
    if not (run_folder / SETTINGS).exists():
        return None
    config = RunConfig.from_mapping(read_settings(run_folder / SETTINGS), str(run_folder / SETTINGS))
    return privacy_statement(config, (release for record in rounds for release in record.releases))


def _round_row(record: RoundRecord) -> list[str]:
    loss = "-" if record.loss is None else f"{record.loss:.3f}"
    dropped = "; ".join(f"{site}: {reason}" for site, reason in (*record.dropped.items(), *record.site_notes()))
    images = str(record.examples or "-")  # unknown where the run is private
    return [str(record.number), str(record.participants), images, loss, dropped]


def _site_rows(process: FolderProcess, trained: Mapping[str, int]) -> list[list[str]]:
    """Return a row for each site that may join: its connection, and the last round it trained in."""
    connected, folder = _connected_sites(process) if process.running else {}, process.folder / "sites"
    key_expiry = {expiry.site: str(expiry) for expiry in expiries(process.folder)}

    def row(name: str) -> list[str]:
        last = f"round {trained[name]}" if name in trained else "never"
        return [name, *connected.get(name, ("not connected", "")), last, key_expiry.get(name, "does not expire")]

    return [row(name) for name in sorted(read_site_keys(folder))]


def _expiry_facts(folder: Path) -> dict[str, str]:
    """Return the expiry of certificates, and of the key in a site's folder."""
    return {expiry.subject: str(expiry) for expiry in expiries(folder) if not expiry.site}


def _connected_sites(process: FolderProcess) -> dict[str, tuple[str, str]]:
    """Return name -> ("connected", since) of the sites connected to a running server."""
    # Imported here: a site imports this module too, and would need 40 MB more for the client of a SuperLink.
    from .flower_internals.connections import Control

    address, ca = process.details["local"], process.details["ca"]
    try:
        secret = (process.folder / "flower" / SECRET).read_bytes()
        with closing(Control(address, Path(ca), secret)) as control:
            sites = control.sites()
    except (httpx.HTTPError, OSError, ssl.SSLError) as error:
        raise FederationError(f"the server does not respond at {address}: {error}") from error
    return {site.name: ("connected", site.last_activated_at[:19]) for site in sites if site.status == "online"}


def _site_status(process: FolderProcess) -> Status:
    details = process.details
    facts = {
        "site": f"{details['name']}, {'running' if process.running else 'not running'}",
        "server": details["server"],
        "conditions": details["conditions"],
        **_expiry_facts(process.folder),
    }
    by_age = sorted((process.folder / "runs").glob(f"*/state/{NOW}"), key=lambda file: file.stat().st_mtime)
    if by_age:
        state = by_age[-1].parent
        facts |= {"last run": str(state.parent), "last round": str(SiteState(state).progress().round + 1)}
    return Status(process.running, facts)


class _Metric(NamedTuple):
    """A metric with one value, or one for each value of its label."""

    name: str
    help: str
    values: float | Mapping[str, float]
    label: str = ""
    kind: str = "gauge"


_Metrics = Callable[[], Iterable[_Metric]]
_Health = Callable[[], dict[str, object]]


def _prometheus_text(metrics: Iterable[_Metric]) -> str:
    """Return metrics in the text format of Prometheus.

    >>> print(_prometheus_text([_Metric("up", "Connected sites.", {"north": 1}, "site")]), end="")
    # HELP fedcopl_up Connected sites.
    # TYPE fedcopl_up gauge
    fedcopl_up{site="north"} 1
    """
    lines, escapes = [], str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    for name, help_text, values, label, kind in metrics:
        lines += [f"# HELP fedcopl_{name} {help_text}", f"# TYPE fedcopl_{name} {kind}"]
        if not isinstance(values, Mapping):
            lines.append(f"fedcopl_{name} {values:.10g}")
            continue
        for key, value in values.items():
            lines.append(f'fedcopl_{name}{{{label}="{key.translate(escapes)}"}} {value:.10g}')
    return "\n".join(lines) + "\n"


@dataclass
class ReplyCounts:
    """Counters of a site since its start, by kind of request."""

    replied: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    connected: bool = False

    def add(self, kind: str, seconds: float, *, refused: bool) -> None:
        (self.refused if refused else self.replied)[kind] += 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds


def server_metrics(folder: Path) -> list[_Metric]:
    """Return the metrics of the server's current or last run."""
    process = process_of(folder)
    rounds = read_rounds(process.results)
    connected: Iterable[str] = ()
    with suppress(FederationError):  # the SuperLink may not be running
        connected = _connected_sites(process) if process.running else ()
    is_connected = {name: float(name in connected) for name in sorted(read_site_keys(folder / "sites"))}
    last = rounds[-1] if rounds else RoundRecord(round=-1)
    payload = {"up": sum(record.bytes_up for record in rounds), "down": sum(record.bytes_down for record in rounds)}
    drops = Counter(site for record in rounds for site in record.dropped)
    refusals = Counter(site for record in rounds for site, reason in record.dropped.items() if _REFUSED in reason)
    checks = [record.holdout for record in rounds if record.holdout]
    rollbacks = {
        "training": sum(int(check.trainings_rolled_back) for check in checks),
        "low_confidence": sum(int(check.low_confidence) for check in checks),
        "average": sum(bool(check.server_rolled_back) for check in checks),
    }
    metrics = [
        _Metric("rounds", "Finished rounds of this run.", last.number, kind="counter"),
        _Metric("site_connected", "1 if the site is connected.", is_connected, "site"),
        _Metric("participants", "Sites that trained in the last round.", last.participants),
        _Metric("run_seconds", "Wall time of this run in seconds.", last.seconds, kind="counter"),
        _Metric("message_bytes", "Payload of the messages in bytes.", payload, "direction", "counter"),
        _Metric("dropped_replies", "Rounds with a reply that was not used.", drops, "site", "counter"),
        _Metric("refusals", "Rounds with a request that the site refused.", refusals, "site", "counter"),
        _Metric(
            "rollbacks",
            "Rollbacks by the hold-out check, and trainings left out for low confidence.",
            rollbacks,
            "event",
            "counter",
        ),
    ]
    privacy = _privacy_so_far(process.results, rounds)
    if privacy and privacy.epsilon is not None:
        metrics.append(_Metric("epsilon", "Largest epsilon spent by a site.", privacy.epsilon))
    return [*metrics, _days_left(folder)]


def site_metrics(folder: Path, counts: ReplyCounts) -> list[_Metric]:
    """Return the metrics of a running site."""
    return [
        _Metric("connected", "1 if this site is connected to the server.", float(counts.connected)),
        _Metric("replies", "Replies since the start.", counts.replied, "request", "counter"),
        _Metric("refusals", "Refused requests since the start.", counts.refused, "request", "counter"),
        _Metric("reply_seconds", "Seconds spent on requests since the start.", counts.seconds, "request", "counter"),
        _days_left(folder),
    ]


def _days_left(folder: Path) -> _Metric:
    days = {expiry.subject: float(expiry.days_left) for expiry in expiries(folder)}
    return _Metric("days_left", "Days until a key or certificate expires.", days, "subject")


def health(folder: Path, errors: Iterable[str] = ()) -> dict[str, object]:
    """Return the health of a process: its errors, and expired keys and certificates."""
    problems = list(errors)
    try:
        problems += [f"{expiry.subject}: {expiry}" for expiry in expiries(folder) if expiry.days_left < 0]
        role = process_of(folder).role
    except FedCoPLError as error:
        role, problems = "unknown", [*problems, str(error)]
    return {"status": "error" if problems else "ok", "role": role, "errors": problems}


@contextmanager
def metrics_port(port: int, metrics: _Metrics, health: _Health) -> Iterator[int]:
    """Serve `/metrics` and `/health` on a local port within the block; with port 0, serve nothing."""
    if not port:
        yield 0
        return
    try:
        server = ThreadingHTTPServer((_HOST, port), partial(_LocalHandler, partial(_respond, metrics, health)))
    except OSError as error:
        raise ConfigError(f"--metrics-port {port}: cannot be used: {error.strerror or error}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def _respond(metrics: _Metrics, health: _Health, path: str) -> tuple[int, str, str]:
    """Return the status, content type and content for a path."""
    if path == "/health":
        report = health()
        return 200 if report["status"] == "ok" else 503, "application/json", json.dumps(report) + "\n"
    if path != "/metrics":
        return 404, _TEXT, "there is no such path: use /health or /metrics\n"
    try:
        return 200, _TEXT, _prometheus_text(metrics())
    except (FedCoPLError, OSError) as error:
        return 503, _TEXT, f"{error}\n"


class _LocalHandler(BaseHTTPRequestHandler):
    """Serves only requests with a local Host header, which a web page of another origin cannot send."""

    timeout = 10
    server_version, sys_version = "fedcopl", ""

    def __init__(self, respond: Callable[[str], tuple[int, str, str]], *connection: Any):
        self._respond = respond
        super().__init__(*connection)

    def do_GET(self) -> None:
        is_local = self.headers.get("Host", "").rpartition(":")[0] in (_HOST, "localhost")
        status, kind, text = self._respond(self.path) if is_local else (403, _TEXT, "use 127.0.0.1 or localhost\n")
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: a monitoring agent polls every few seconds."""

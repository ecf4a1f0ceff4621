"""Monitoring: `/metrics` in the text format of Prometheus and `/health`, on a local port.

The numbers are read from the folder at each request, as by `fedcopl status`, except for the counters of a running site.
They contain nothing about an image, a class or a label.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..errors import ConfigError, FedCoPLError, FederationError
from ..run.record import RoundRecord
from .processes import FolderProcess, process_of
from .provisioning.expiry import expiries, today_utc
from .site_keys import read_site_keys
from .status import connected_sites, privacy_so_far, rounds_so_far

_REFUSED = "refused: "  # prefix of a refusal
_HOST = "127.0.0.1"
_TEXT, _JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"


@dataclass(frozen=True)
class Metric:
    """A metric with one value, or one for each set of labels."""

    name: str
    help: str
    values: Mapping[tuple[tuple[str, str], ...], float]
    kind: str = "gauge"

    @classmethod
    def plain(cls, name: str, help: str, value: float, kind: str = "gauge") -> "Metric":
        return cls(name, help, {(): value}, kind)

    @classmethod
    def by(cls, label: str, name: str, help: str, values: Mapping[str, float], kind: str = "gauge") -> "Metric":
        return cls(name, help, {((label, key),): value for key, value in values.items()}, kind)


def prometheus_text(metrics: Iterable[Metric]) -> str:
    """
    >>> print(prometheus_text([Metric.by("site", "up", "Who is here.", {"north": 1})]), end="")
    # HELP fedcopl_up Who is here.
    # TYPE fedcopl_up gauge
    fedcopl_up{site="north"} 1
    """
    lines = []
    for metric in metrics:
        name = f"fedcopl_{metric.name}"
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        lines += [f"{name}{_labels(labels)} {value:.10g}" for labels, value in metric.values.items()]
    return "\n".join(lines) + "\n"


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    inside = ",".join(f'{key}="{value.translate(escapes)}"' for key, value in pairs)
    return f"{{{inside}}}" if inside else ""


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


def server_metrics(folder: Path) -> list[Metric]:
    """Return the metrics of the server's current or last run."""
    process = process_of(folder)
    rounds = rounds_so_far(process.results)
    connected = _connected(process)
    here = {name: float(name in connected) for name in sorted(read_site_keys(folder / "sites"))}
    last = rounds[-1] if rounds else RoundRecord(round=-1)
    drops = Counter(site for record in rounds for site in record.dropped)
    refusals = Counter(site for record in rounds for site, why in record.dropped.items() if _REFUSED in why)
    privacy = privacy_so_far(process.results, rounds)
    found = [
        Metric.plain("rounds", "Finished rounds of this run.", last.number, "counter"),
        Metric.by("site", "site_connected", "1 if the site is connected.", here),
        Metric.plain("participants", "Sites that trained in the last round.", last.participants),
        Metric.plain("run_seconds", "Wall time of this run in seconds.", last.seconds, "counter"),
        Metric.by("direction", "message_bytes", "Payload of the messages in bytes.", _bytes(rounds), "counter"),
        Metric.by("site", "dropped_replies", "Rounds with a reply that was not used.", drops, "counter"),
        Metric.by("site", "refusals", "Rounds with a request that the site refused.", refusals, "counter"),
        Metric.by("event", "rollbacks", "Rollbacks by the hold-out check.", _guard(rounds), "counter"),
    ]
    if privacy and privacy.epsilon is not None:
        found.append(Metric.plain("epsilon", "Largest epsilon spent by a site.", privacy.epsilon))
    return [*found, *_days_left(folder, today_utc())]


def site_metrics(folder: Path, counts: ReplyCounts) -> list[Metric]:
    return [
        Metric.plain("connected", "1 if this site is connected to the server.", float(counts.connected)),
        Metric.by("request", "replies", "Replies since the start.", counts.replied, "counter"),
        Metric.by("request", "refusals", "Refused requests since the start.", counts.refused, "counter"),
        Metric.by("request", "reply_seconds", "Seconds of computation for them.", counts.seconds, "counter"),
        *_days_left(folder, today_utc()),
    ]


def _days_left(folder: Path, today: date) -> list[Metric]:
    days = {ending.what: float(ending.days_left(today)) for ending in expiries(folder)}
    return [Metric.by("what", "days_left", "Days until a key or certificate expires.", days)]


def health(folder: Path, errors: Iterable[str] = ()) -> dict[str, object]:
    """Return the health of a process: its errors, and expired keys and certificates."""
    wrong = list(errors)
    try:
        wrong += [f"{one.what}: {one.text(today_utc())}" for one in expiries(folder) if one.days_left(today_utc()) < 0]
        role = process_of(folder).role
    except FedCoPLError as error:
        role, wrong = "unknown", [*wrong, str(error)]
    return {"status": "error" if wrong else "ok", "role": role, "errors": wrong}


def _connected(process: FolderProcess) -> set[str]:
    """Return the connected sites; none if the SuperLink is not running."""
    try:
        return set(connected_sites(process)) if process.running else set()
    except FederationError:
        return set()


def _bytes(rounds: Iterable[RoundRecord]) -> dict[str, float]:
    rounds = list(rounds)
    return {"up": sum(one.bytes_up for one in rounds), "down": sum(one.bytes_down for one in rounds)}


def _guard(rounds: Iterable[RoundRecord]) -> dict[str, float]:
    checks = [record.holdout for record in rounds if record.holdout]
    return {
        "training": sum(int(one.trainings_rolled_back) for one in checks),
        "uncertain": sum(int(one.low_confidence) for one in checks),
        "average": sum(bool(one.server_rolled_back) for one in checks),
    }


@contextmanager
def metrics_port(
    port: int, metrics: Callable[[], Sequence[Metric]], health: Callable[[], dict[str, object]]
) -> Iterator[int]:
    """Serve both paths inside the block, on the port that is given; with port 0, nothing."""
    if not port:
        yield 0
        return
    try:
        server = ThreadingHTTPServer((_HOST, port), _handler(metrics, health))
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


def respond_to(
    path: str, metrics: Callable[[], Sequence[Metric]], health: Callable[[], dict[str, object]]
) -> tuple[int, str, str]:
    """Return the status, content type and content for a path."""
    if path == "/health":
        report = health()
        return 200 if report["status"] == "ok" else 503, _JSON, json.dumps(report) + "\n"
    if path != "/metrics":
        return 404, _TEXT, "there are /health and /metrics\n"
    try:
        return 200, _TEXT, prometheus_text(metrics())
    except (FedCoPLError, OSError) as error:
        return 503, _TEXT, f"{error}\n"


def _handler(
    metrics: Callable[[], Sequence[Metric]], health: Callable[[], dict[str, object]]
) -> type[BaseHTTPRequestHandler]:
    class LocalHandler(BaseHTTPRequestHandler):
        """Serves requests with a local Host header only: web pages of other origins have another one."""

        timeout = 10
        server_version, sys_version = "fedcopl", ""

        def do_GET(self) -> None:
            own = self.headers.get("Host", "").rpartition(":")[0] in (_HOST, "localhost")
            status, kind, text = (
                respond_to(self.path, metrics, health) if own else (403, _TEXT, "only for this machine\n")
            )
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing: a monitoring agent polls every few seconds."""

    return LocalHandler

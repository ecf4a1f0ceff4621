"""`/health` and `/metrics` on a port of this machine alone, for a monitoring agent beside the program."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..errors import ConfigError, FedCoPLError
from .metrics import Metric, prometheus_text

HOST = "127.0.0.1"
TEXT, JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"


@contextmanager
def metrics_port(
    port: int, metrics: Callable[[], Sequence[Metric]], health: Callable[[], dict[str, object]]
) -> Iterator[int]:
    """Serve both until the end; without a port nothing is served. Gives the port."""
    if not port:
        yield 0
        return
    try:
        server = ThreadingHTTPServer((HOST, port), _handler(metrics, health))
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
    """Status, kind of content and content for a path."""
    if path == "/health":
        said = health()
        return 200 if said["status"] == "ok" else 503, JSON, json.dumps(said) + "\n"
    if path != "/metrics":
        return 404, TEXT, "there are /health and /metrics\n"
    try:
        return 200, TEXT, prometheus_text(metrics())
    except (FedCoPLError, OSError) as error:
        return 503, TEXT, f"{error}\n"


def _handler(
    metrics: Callable[[], Sequence[Metric]], health: Callable[[], dict[str, object]]
) -> type[BaseHTTPRequestHandler]:
    class LocalHandler(BaseHTTPRequestHandler):
        """Answers whoever calls this machine by its own name: a web page of elsewhere cannot."""

        timeout = 10
        server_version, sys_version = "fedcopl", ""

        def do_GET(self) -> None:
            own = self.headers.get("Host", "").rpartition(":")[0] in (HOST, "localhost")
            status, kind, text = respond_to(self.path, metrics, health) if own else (403, TEXT, "not from elsewhere\n")
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: who asks every few seconds is no news."""

    return LocalHandler

"""Whether a federation's server can be reached, and is who it says."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigError
from .findings import Finding, ok, problem

PATIENCE = 5.0  # seconds


def check_server(address: str, certificate: Path | None) -> Iterator[Finding]:
    host, port = split_address(address)
    try:
        connection = socket.create_connection((host, port), PATIENCE)
    except OSError as error:
        do = "check the address, that the server runs, and that no firewall is in between"
        yield problem("server", f"{address} cannot be reached: {error.strerror or error}", do)
        return
    with connection:
        yield ok("server", f"{address} answers")
        yield _handshake(connection, host, certificate)


def _handshake(connection: socket.socket, host: str, certificate: Path | None) -> Finding:
    try:
        context = ssl.create_default_context(cafile=certificate)
        with context.wrap_socket(connection, server_hostname=host) as secured:
            return ok("encryption", f"{secured.version()}, and the certificate is the one expected")
    except ssl.SSLCertVerificationError as error:
        do = "ask the server's owner for its certificate and name it with --certificate"
        return problem("encryption", f"the certificate is not trusted: {error.verify_message}", do)
    except (ssl.SSLError, OSError) as error:
        told = getattr(error, "reason", None) or error.strerror or type(error).__name__
        return problem("encryption", f"no TLS: {told}", "start the server with TLS, or check that the port is its own")


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, or `[::1]:port`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--server: should be HOST:PORT, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)

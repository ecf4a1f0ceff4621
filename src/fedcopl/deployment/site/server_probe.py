"""Before a site joins: is it the right server, and does it let this site in?

A SuperNode that is not let in ends, and starting one takes seconds of work. So a site finds out first, by itself.
"""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from ...errors import FederationError
from ..flower_internals import HEARTBEAT
from ..flower_internals.connections import visit_server


@dataclass(frozen=True)
class ServerAddress:
    """Where the server is and how to be sure that it is the right one."""

    address: str
    ca: Path


def check_server(server: ServerAddress) -> None:
    """Make sure that it is the right server, if it is there; a wrong one is an error."""
    host, _, port = server.address.rpartition(":")
    if not host or not port.isdigit():
        raise FederationError(f"{server.address}: is no address; write it as server.example:9092")
    try:
        context = ssl.create_default_context(cafile=server.ca)
    except (OSError, ssl.SSLError) as error:
        raise FederationError(f"{server.ca}: is not the certificate of a server (its ca.pem): {error}") from error
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=5) as connection,
            context.wrap_socket(connection, server_hostname=host.strip("[]")),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise FederationError(
            f"{server.address}: does not show the certificate that {server.ca} speaks for ({error.verify_message}); "
            f"ask the operator for the ca.pem of now, and whether the server knows itself as {host} (--address)"
        ) from error
    except OSError:
        return  # it may come later: the SuperNode keeps trying


def why_not_let_in(server: ServerAddress, private: Path) -> str | None:
    """In words, why who has this key cannot join now; None if the server lets it in."""
    key = load_ssh_private_key(private.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{private}: is not the key of a site")
    try:
        visit_server(server.address, server.ca, key)
        return None
    except httpx.HTTPStatusError as error:
        return _refusal(error.response.status_code, private.with_suffix(".pub"))
    except httpx.HTTPError:
        return f"nobody answers at {server.address}; trying again until somebody does"


def _refusal(status: int, public: Path) -> str:
    if status == httpx.codes.UNAUTHORIZED:
        return "the server does not believe this site's signature: is the clock of this machine right? trying again"
    return (
        f"the server does not let this site in: it does not have {public} yet, or somebody with this key is connected "
        f"(a site that was killed has to wait {2 * HEARTBEAT} s); trying again"
    )

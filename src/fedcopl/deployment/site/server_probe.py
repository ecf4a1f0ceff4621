"""The server's door, from outside: is it the right server, and does it let this site in?

A SuperNode that is not let in ends, and starting one takes seconds of work. So a site knocks first, by itself.
"""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from ...errors import FederationError
from ..child_process import HEARTBEAT


@dataclass(frozen=True)
class Server:
    """Where the server is and how to be sure that it is the right one."""

    address: str
    ca: Path


def check_server(server: Server) -> None:
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


def knock(server: Server, private: Path) -> str | None:
    """None if the server lets in who has this key, else why not, in words."""
    key = load_ssh_private_key(private.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"{private}: is not the key of a site")
    shown = (RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(key, key.public_key()))
    with FleetHttpClient.from_server_address(server.address, False, server.ca.read_bytes(), shown) as client:
        try:
            public = public_key_to_bytes(key.public_key())
            node = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT))
            client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))  # the place is for the SuperNode
            return None
        except httpx.HTTPStatusError as error:
            return _why_not(error.response.status_code, private.with_suffix(".pub"))
        except httpx.HTTPError:
            return f"nobody answers at {server.address}; trying again until somebody does"


def _why_not(status: int, public: Path) -> str:
    if status == httpx.codes.UNAUTHORIZED:
        return "the server does not believe this site's signature: is the clock of this machine right? trying again"
    return (
        f"the server does not let this site in: it does not have {public} yet, or somebody with this key is connected "
        f"(a site that was killed has to wait {2 * HEARTBEAT} s); trying again"
    )

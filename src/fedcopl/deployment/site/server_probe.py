"""Before a site joins: is it the right server? And if it does not let the site in, why."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx

from ...errors import FederationError
from ..flower_internals import HEARTBEAT
from ..wire.proxies import connect, proxy_to, without_login

NOT_BELIEVED = "CERTIFICATE_VERIFY_FAILED"  # in the words of OpenSSL, which httpx hands on as a text


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
            connect(host.strip("[]"), int(port), 5) as connection,
            context.wrap_socket(connection, server_hostname=host.strip("[]")),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise FederationError(_not_believed(server, error.verify_message)) from error
    except OSError:
        return  # it may come later: the site keeps trying


def _not_believed(server: ServerAddress, why: str) -> str:
    host = server.address.rpartition(":")[0]
    return (
        f"{server.address}: does not show the certificate that {server.ca} speaks for ({why}); "
        f"ask the operator for a new ca.pem or package, and whether the server knows itself as {host} (--address)"
    )


def why_not_let_in(server: ServerAddress, public: Path, error: httpx.HTTPError, finished: str = "") -> str:
    """In words, why who has this key cannot join now; `finished` as for `cut_off`."""
    if isinstance(error, httpx.HTTPStatusError):
        return _refusal(error.response.status_code, public)
    return cut_off(server, error, finished)


def cut_off(server: ServerAddress, error: httpx.HTTPError, finished: str = "") -> str:
    """In words, why the server cannot be reached now: nobody is there, or somebody who is not believed.

    After a run the server leaves, which is no fault: then `finished`, where given, is all there is to say.
    """
    if NOT_BELIEVED in str(error):
        return f"{_not_believed(server, str(error).rpartition(': ')[2].partition(' (_ssl')[0])}; trying again"
    if finished:
        return finished
    proxy = proxy_to(server.address.rpartition(":")[0].strip("[]"))
    through = f" through the proxy {without_login(proxy)}" if proxy else ""
    return f"nobody answers at {server.address}{through}; trying again until somebody does"


def _refusal(status: int, public: Path) -> str:
    if status == httpx.codes.UNAUTHORIZED:
        return "the server does not believe this site's signature: is the clock of this machine right? trying again"
    return (
        f"the server does not let this site in: it does not have {public} yet, or that has ended or was taken back "
        f"(ask the operator), or somebody is connected with it (after a kill wait {2 * HEARTBEAT} s); trying again"
    )

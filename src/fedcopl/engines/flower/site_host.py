"""`fedcopl join`: a SuperNode beside this process, which takes the server's questions and answers them itself."""

import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message
from flwr.supercore.constant import TaskType

from ...errors import FederationError
from ..watcher import Watcher
from .client_app import reply_to
from .codec import is_refusal
from .keys import site_key
from .lifeline import HEARTBEAT, end, start
from .places import should_stop, working
from .site import Site
from .work import Runtime, answer_one, take_task

POLL = 0.2  # seconds between two looks for a question
AGAIN = 2.0  # seconds before a SuperNode that ended is started again


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


def host(site: Site, server: Server, watcher: Watcher) -> None:
    """Serve until stopped."""
    about = {"role": "site", "name": site.name, "server": server.address}
    with working(site.home.folder, about):
        log = site.home.folder / "flower" / "supernode.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
        listening = Listening(log, server, site.home.folder / "site.pub", watcher)
        while not should_stop(site.home.folder):
            with _node(site, server, log) as (node, runtime):
                _serve(site, node, runtime, watcher, listening)
            if not should_stop(site.home.folder):
                time.sleep(AGAIN)


def _serve(
    site: Site, node: subprocess.Popen[bytes], runtime: Runtime, watcher: Watcher, listening: "Listening"
) -> None:
    client = runtime.client()
    try:
        while node.poll() is None and not should_stop(site.home.folder):
            listening.tell()
            token = take_task(client, TaskType.CLIENT_APP)
            if token is None:
                time.sleep(POLL)
            elif not answer_one(runtime, token, lambda message: _reply(message, site, watcher)):
                return  # this SuperNode would wait for the rest of the answer for ever: start another one
    finally:
        listening.tell()
        client.close()


def _reply(message: Message, site: Site, watcher: Watcher) -> Message:
    began = time.monotonic()
    reply = reply_to(message, lambda: site)
    what = f"round {message.metadata.group_id}: {message.metadata.message_type.removeprefix('query.')}"
    if is_refusal(reply.content):
        watcher.noticed(f"{what} could not be answered")  # why was told when it happened
    else:
        watcher.noticed(f"{what} answered in {time.monotonic() - began:.1f} s")
    return reply


@contextmanager
def _node(site: Site, server: Server, log_file: Path) -> Iterator[tuple[subprocess.Popen[bytes], Runtime]]:
    port = _free_port()
    private, _ = site_key(site.home.folder, site.name)
    arguments = ["--superlink", server.address, "--root-certificates", str(server.ca)]
    arguments += ["--auth-supernode-private-key", str(private), "--isolation", "process", "--port", str(port)]
    with log_file.open("ab") as log:
        child = start("node", arguments, log_file.parent, log)
        try:
            yield child, Runtime(f"127.0.0.1:{port}")
        finally:
            end(child)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Listening:
    """Reads what the SuperNode writes, and tells people what it means."""

    def __init__(self, log: Path, server: Server, public_key: Path, watcher: Watcher):
        self._log, self._watcher = log, watcher
        self._read, self._said, self._was_connected = 0, "", False
        self._meanings = {
            "SuperNode ID": f"connected to {server.address}",
            "Connection attempt failed": f"nobody answers at {server.address}; trying again until somebody does",
            "Failed to activate SuperNode": (
                f"the server does not let this site in: it does not have {public_key} yet, or somebody with this key "
                f"is connected (a site that was killed has to wait {2 * HEARTBEAT} s); trying again"
            ),
        }
        self._back = f"connected to {server.address} again"

    def tell(self) -> None:
        """What is new since the last time; nothing is said twice in a row."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            lines = file.read().decode(errors="replace").splitlines()
            self._read = file.tell()
        for line in lines:
            meaning = self._meaning(line)
            if meaning and meaning != self._said:
                self._said = meaning
                self._watcher.noticed(meaning)

    def _meaning(self, line: str) -> str | None:
        if "Connection successful" in line:
            return self._back if self._was_connected else None
        self._was_connected |= "SuperNode ID" in line
        return next((meaning for sign, meaning in self._meanings.items() if sign in line), None)

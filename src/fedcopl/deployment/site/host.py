"""`fedcopl join`: a SuperNode beside this process, which takes the server's questions and answers them itself."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Message
from flwr.supercore.constant import TaskType

from ...run.watcher import Watcher
from ..certificates import site_key
from ..child_process import end, fresh_secret, start
from ..flower_internals.tasks import Runtime, answer_one, take_task
from ..wire.records import is_refusal
from ..working_folder import should_stop, working
from .replies import reply_to
from .server_probe import Server, knock
from .site import RunningSite

POLL = 0.2  # seconds between two looks for a question
AGAIN = 2.0  # seconds between two knocks at the server's door


def host(site: RunningSite, server: Server, watcher: Watcher) -> None:
    """Serve until stopped."""
    about = {"role": "site", "name": site.name, "server": server.address, "conditions": str(site.home.consent)}
    with working(site.home.folder, about):
        log = site.home.folder / "flower" / "supernode.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
        listening = Listening(log, server, watcher)
        while not should_stop(site.home.folder):
            why_not = knock(server, site_key(site.home.folder, site.name)[0])
            if why_not:
                listening.say(why_not)
                time.sleep(AGAIN)
                continue
            with _node(site, server, log) as (node, runtime):
                _serve(site, node, runtime, watcher, listening)
        watcher.noticed("stopped, as asked; the same command joins again")


def _serve(
    site: RunningSite, node: subprocess.Popen[bytes], runtime: Runtime, watcher: Watcher, listening: "Listening"
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


def _reply(message: Message, site: RunningSite, watcher: Watcher) -> Message:
    began = time.monotonic()
    reply = reply_to(message, lambda: site)
    what = f"round {message.metadata.group_id}: {message.metadata.message_type.removeprefix('query.')}"
    if is_refusal(reply.content):
        watcher.noticed(f"{what} could not be answered")  # why was told when it happened
    else:
        watcher.noticed(f"{what} answered in {time.monotonic() - began:.1f} s")
    return reply


@contextmanager
def _node(site: RunningSite, server: Server, log_file: Path) -> Iterator[tuple[subprocess.Popen[bytes], Runtime]]:
    port = _free_port()
    secret_file, secret = fresh_secret(log_file.parent)
    private, _ = site_key(site.home.folder, site.name)
    arguments = ["--superlink", server.address, "--root-certificates", str(server.ca)]
    arguments += ["--auth-supernode-private-key", str(private), "--isolation", "process", "--port", str(port)]
    arguments += ["--superexec-auth-secret-file", str(secret_file)]
    with log_file.open("ab") as log:
        child = start("supernode", arguments, log_file.parent, log)
        try:
            yield child, Runtime(f"127.0.0.1:{port}", secret)
        finally:
            end(child)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Listening:
    """Reads what the SuperNode writes, and tells people what it means."""

    def __init__(self, log: Path, server: Server, watcher: Watcher):
        self._log, self._watcher = log, watcher
        self._read, self._said = 0, ""
        self._meanings = {
            "SuperNode ID": f"connected to {server.address}",
            "Connection attempt failed": f"nobody answers at {server.address}; trying again until somebody does",
            "Connection successful": f"connected to {server.address}",
        }

    def tell(self) -> None:
        """What is new since the last time."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            lines = file.read().decode(errors="replace").splitlines()
            self._read = file.tell()
        for line in lines:
            for sign, meaning in self._meanings.items():
                if sign in line:
                    self.say(meaning)

    def say(self, what: str) -> None:
        """Nothing is said twice in a row."""
        if what != self._said:
            self._said = what
            self._watcher.noticed(what)

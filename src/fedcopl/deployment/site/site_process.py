"""`fedcopl join`: a SuperNode beside this process, which takes the server's questions and answers them itself."""

import logging
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Message

from ...run.watcher import Watcher
from ..certificates import site_key
from ..flower_internals import CONNECTED, NOT_CONNECTED
from ..flower_internals.connections import NotHandedIn, Runtime, TaskQueue, site_task
from ..processes import flower_child, fresh_secret, holding, should_stop
from ..wire.message_format import is_refusal
from .replies import reply_to
from .running_site import RunningSite
from .server_probe import ServerAddress, why_not_let_in

POLL = 0.2  # seconds between two looks for a question
AGAIN = 2.0  # seconds between two tries to be let in
log = logging.getLogger("fedcopl.site")


def run_site(site: RunningSite, server: ServerAddress, watcher: Watcher) -> None:
    """Answer until stopped."""
    folder = site.home.folder
    about = {"name": site.name, "server": server.address, "conditions": str(site.home.consent)}
    with holding(folder, "site", about):
        log_file = folder / "flower" / "supernode.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log_file.write_bytes(b"")
        connection = ConnectionNews(log_file, server, watcher)
        while not should_stop(folder):
            why_not = why_not_let_in(server, site_key(folder, site.name)[0])
            if why_not:
                connection.announce(why_not)
                time.sleep(AGAIN)
                continue
            with supernode(site, server, log_file) as (node, runtime):
                _answer_questions(site, node, runtime, watcher, connection)
        watcher.noticed("stopped, as asked; the same command joins again")


def _answer_questions(
    site: RunningSite,
    node: subprocess.Popen[bytes],
    runtime: Runtime,
    watcher: Watcher,
    connection: "ConnectionNews",
) -> None:
    """Until the SuperNode ends, or has to be started anew, or the site is asked to stop."""
    with TaskQueue.of_site(runtime) as tasks:
        while node.poll() is None and not should_stop(site.home.folder):
            connection.look()
            token = tasks.next()
            if token is None:
                time.sleep(POLL)
                continue
            try:
                with site_task(runtime, token) as task:
                    task.hand_in(_reply(task.question, site, watcher))
            except NotHandedIn as error:
                log.warning("an answer could not be handed in: %s", error)
                break  # this SuperNode would wait for the rest of the answer for ever
    connection.look()


def _reply(question: Message, site: RunningSite, watcher: Watcher) -> Message:
    began = time.monotonic()
    reply = reply_to(question, lambda: site)
    what = f"round {question.metadata.group_id}: {question.metadata.message_type.removeprefix('query.')}"
    if is_refusal(reply.content):
        watcher.noticed(f"{what} could not be answered")  # why was said when it happened
    else:
        watcher.noticed(f"{what} answered in {time.monotonic() - began:.1f} s")
    return reply


@contextmanager
def supernode(
    site: RunningSite, server: ServerAddress, log_file: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Runtime]]:
    """A SuperNode in a process of its own, and where it gives out the server's questions."""
    port = _free_port()
    secret_file, secret = fresh_secret(log_file.parent)
    private, _ = site_key(site.home.folder, site.name)
    arguments = ["--superlink", server.address, "--root-certificates", str(server.ca)]
    arguments += ["--auth-supernode-private-key", str(private), "--isolation", "process", "--port", str(port)]
    arguments += ["--superexec-auth-secret-file", str(secret_file)]
    with flower_child("supernode", arguments, log_file) as child:
        yield child, Runtime(f"127.0.0.1:{port}", secret)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ConnectionNews:
    """Reads in the SuperNode's log how the connection to the server is, and tells people."""

    def __init__(self, log_file: Path, server: ServerAddress, watcher: Watcher):
        self._log_file, self._watcher = log_file, watcher
        self._read, self._announced = 0, ""
        self._meanings = dict.fromkeys(CONNECTED, f"connected to {server.address}")
        self._meanings[NOT_CONNECTED] = f"nobody answers at {server.address}; trying again until somebody does"

    def look(self) -> None:
        """What is new since the last look."""
        with self._log_file.open("rb") as file:
            file.seek(self._read)
            lines = file.read().decode(errors="replace").splitlines()
            self._read = file.tell()
        for line in lines:
            for sign, meaning in self._meanings.items():
                if sign in line:
                    self.announce(meaning)

    def announce(self, what: str) -> None:
        """Nothing is said twice in a row."""
        if what != self._announced:
            self._announced = what
            self._watcher.noticed(what)

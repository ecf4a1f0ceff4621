"""The sites of a server: which may join, which are connected, and the number of each.

A folder of public keys says which sites may join; the registry of Flower's SuperLink is kept in step with it. A site
has the name under which its key is registered. Nodes without a name in the registry, as in a simulation or with plain
`flower-supernode`, are queried for it. Two nodes under one name are never treated as one site.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import httpx
from flwr.app import Message, RecordDict

from ...errors import FedCoPLError
from ...run.progress_reporter import ProgressReporter
from ..flower_internals.connections import Control
from ..keys import SiteKey
from ..packages import admitted_keys, today_utc
from ..wire.message_format import NAME_QUERY, read_name


class SiteGrid(Protocol):
    """The methods of Flower's `Grid` that the server uses."""

    def get_nodes(self) -> Iterable[Any]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


def _admit(control: Control, keys: Iterable[SiteKey], watcher: ProgressReporter, *, is_start: bool = False) -> None:
    """Unregister removed keys, register new ones and report both; an invalid key does not stop the others.

    The keys that a server starts with are not reported.
    """
    admitted = {(key.name, key.public) for key in keys}
    registered = {(site.name, site.public): site for site in control.sites()}
    for removed in sorted(set(registered) - admitted):
        control.unregister(registered[removed])
        watcher.noticed(f"{removed[0]} may no longer join")
    for name, public in sorted(admitted - set(registered)):
        reason = control.register(name, public)
        if reason:
            watcher.noticed(
                f"{name} cannot be registered ({reason}); if its key was removed while this server runs, the site "
                "needs a new key (delete its site.key and join with --check), or restart the server with --resume"
            )
        elif not is_start:
            watcher.noticed(f"{name} may join now")


@contextmanager
def keep_admitted(folder: Path, control: Control, watcher: ProgressReporter) -> Iterator[None]:
    """Keep the registry in step with a folder of keys during the run: a new file adds a site."""
    folder.mkdir(parents=True, exist_ok=True)
    previous = admitted_keys(folder, today_utc())
    _admit(control, previous.values(), watcher, is_start=True)
    stopped = threading.Event()

    def watch() -> None:
        nonlocal previous
        last_error = ""
        while not stopped.wait(1.0):
            try:
                current = admitted_keys(folder, today_utc())
                if current != previous:
                    _admit(control, current.values(), watcher)
                    previous = current
                last_error = ""
            except (FedCoPLError, httpx.HTTPError) as error:
                if str(error) != last_error:
                    watcher.noticed(last_error := str(error))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@dataclass
class KnownSites:
    """Every site that ever connected: its number, which names its random streams and its rank in sums, and its folder.

    To Flower, a key is a site. A second process with the same key, by mistake or not, replies from another folder than
    the site did, and must not be treated as the site.
    """

    numbers: dict[str, int]
    folders: dict[str, str] = field(default_factory=dict)  # site -> its key, and the folder of its first reply
    keep: Callable[["KnownSites"], None] = lambda known: None  # called before anything new is used

    def add(self, names: Iterable[str]) -> None:
        """Assign numbers to new sites, in the order of their names."""
        new = sorted(set(names) - set(self.numbers))
        first = max(self.numbers.values(), default=-1) + 1
        self.numbers |= {name: number for number, name in enumerate(new, first)}
        if new:
            self.keep(self)

    def is_same_folder(self, name: str, key: str, folder: str) -> bool:
        """Return whether a reply comes from the folder of this site's earlier replies; a new key starts over."""
        if not self.folders.get(name, "").startswith(f"{key} "):
            self.folders[name] = f"{key} {folder}"
            self.keep(self)
        return self.folders[name] == f"{key} {folder}"


@dataclass(frozen=True)
class SiteNode:
    """The node of a site in Flower's grid."""

    id: int
    key: str  # digest of its public key
    since: str  # when it connected: a new time means that its pending request is lost


@dataclass
class ConnectedSites:
    """The connected sites by name; each node is queried for its name once."""

    grid: SiteGrid
    name_timeout: float = 60.0  # seconds a node may take to reply with its name
    names: dict[int, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # site -> problem with its connection

    def now(self) -> dict[str, SiteNode]:
        nodes = {node.node_id: node for node in self.grid.get_nodes()}
        self.names |= {id: node.name for id, node in nodes.items() if node.name}
        self._query_names([id for id in nodes if id not in self.names])
        current: dict[str, SiteNode] = {}
        for id in sorted(nodes, key=lambda id: (nodes[id].last_activated_at, id)):
            name = self.names.get(id, "")
            if name in current:
                self.notes[name] = "two sites have this name; the one that connected second is left out"
            elif name:
                key = sha256(nodes[id].public_key).hexdigest()[:16]
                current[name] = SiteNode(id, key, nodes[id].last_activated_at)
        return current

    def _query_names(self, unknown: Iterable[int]) -> None:
        messages = [Message(RecordDict(), id, NAME_QUERY, ttl=self.name_timeout) for id in unknown]
        if not messages:
            return
        waiting = set(self.grid.push_messages(messages))
        end = time.monotonic() + self.name_timeout
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                if not reply.has_error():
                    self.names[reply.metadata.src_node_id] = read_name(reply.content)
            time.sleep(0.1)

"""Which sites there are: who may join, who is connected now, and the number of everyone who ever was.

Who may join is a folder of public keys, with which the registry of Flower's SuperLink is kept in step. A site's name is
the one it was registered under with its key. Nodes without a name in the registry, as in a simulation or with plain
`flower-supernode`, are asked for it. Two nodes under one name are never taken for one site.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import httpx
from flwr.app import Message, RecordDict

from ...errors import FedCoPLError
from ...run.progress_reporter import ProgressReporter
from ..certificates import SiteKey
from ..flower_internals.connections import Control
from ..provisioning.endings import admitted_keys, this_day
from ..wire.message_format import ASK_NAME, read_name
from .grid_threads import SiteGrid


@dataclass(frozen=True)
class AdmissionChange:
    """Names that may join now, names that may no more, and names that cannot be let in, with why."""

    new: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def announce(self, watcher: ProgressReporter) -> None:
        for name in self.new:
            watcher.noticed(f"{name} may join from now on")
        for name in self.left:
            watcher.noticed(f"{name} may not join any more")
        for name, why in self.refused.items():
            watcher.noticed(
                f"{name} cannot be let in ({why}); if its key was taken out while this server runs, the site needs a "
                "new key (delete its site.key and join with --check), or restart the server with --resume"
            )


def admit(control: Control, keys: Iterable[SiteKey]) -> AdmissionChange:
    """Register who is new, unregister who is no longer wanted. One that cannot be registered stops nobody else."""
    wanted = {(key.name, key.public) for key in keys}
    registered = {(site.name, site.public): site for site in control.sites()}
    left = sorted(set(registered) - wanted)
    for known in left:
        control.unregister(registered[known])
    why_not = {name: control.register(name, public) for name, public in sorted(wanted - set(registered))}
    refused = {name: why for name, why in why_not.items() if why}
    return AdmissionChange([name for name in why_not if name not in refused], [name for name, _ in left], refused)


@contextmanager
def admitting(folder: Path, control: Control, watcher: ProgressReporter) -> Iterator[None]:
    """Keep the registry in step with a folder of keys while the run goes on: a new file lets a new site in."""
    folder.mkdir(parents=True, exist_ok=True)
    known = admitted_keys(folder, this_day())
    AdmissionChange(refused=admit(control, known.values()).refused).announce(watcher)
    over = threading.Event()

    def watch() -> None:
        nonlocal known
        trouble = ""
        while not over.wait(1.0):
            try:
                found = admitted_keys(folder, this_day())
                if found != known:
                    admit(control, found.values()).announce(watcher)
                    known = found
                trouble = ""
            except (FedCoPLError, httpx.HTTPError) as error:
                if str(error) != trouble:
                    watcher.noticed(trouble := str(error))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@dataclass
class KnownSites:
    """Every site ever seen: its number, which names its random streams and its rank in every sum, and its folder.

    Whoever has a site's key is that site to Flower. If somebody else comes with it, by mistake or not, he answers from
    another folder than the site did, and must not be taken for it.
    """

    numbers: dict[str, int]
    homes: dict[str, str] = field(default_factory=dict)  # site -> its key, and the folder that first answered with it
    keep: Callable[["KnownSites"], None] = lambda known: None  # called before anything new is used

    def add(self, names: Iterable[str]) -> None:
        """Numbers for those who have none, in the order of their names."""
        new = sorted(set(names) - set(self.numbers))
        first = max(self.numbers.values(), default=-1) + 1
        self.numbers |= {name: number for number, name in enumerate(new, first)}
        if new:
            self.keep(self)

    def is_at_home(self, name: str, key: str, folder: str) -> bool:
        """Whether an answer comes from where this site's answers come from; a new key begins anew."""
        if not self.homes.get(name, "").startswith(f"{key} "):
            self.homes[name] = f"{key} {folder}"
            self.keep(self)
        return self.homes[name] == f"{key} {folder}"


@dataclass(frozen=True)
class SiteNode:
    """The node of Flower's grid behind which a site is."""

    id: int
    key: str  # digest of its public key
    since: str  # when it was connected: another time means that what was under way there is lost


@dataclass
class ConnectedSites:
    """Who is connected, by name; names are learnt once per node."""

    grid: SiteGrid
    patience: float = 60.0  # seconds a node may take to say its name
    names: dict[int, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # what is odd about who is there

    def now(self) -> dict[str, SiteNode]:
        nodes = {node.node_id: node for node in self.grid.get_nodes()}
        self.names |= {id: node.name for id, node in nodes.items() if node.name}
        self._ask_names([id for id in nodes if id not in self.names])
        found: dict[str, SiteNode] = {}
        for id in sorted(nodes, key=lambda id: (nodes[id].last_activated_at, id)):
            name = self.names.get(id, "")
            if name in found:
                self.notes[name] = "two sites have this name; the one that came second is left out"
            elif name:
                key = sha256(nodes[id].public_key).hexdigest()[:16]
                found[name] = SiteNode(id, key, nodes[id].last_activated_at)
        return found

    def _ask_names(self, unknown: Iterable[int]) -> None:
        messages = [Message(RecordDict(), id, ASK_NAME, ttl=self.patience) for id in unknown]
        if not messages:
            return
        waiting = set(self.grid.push_messages(messages))
        end = time.monotonic() + self.patience
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                if not reply.has_error():
                    self.names[reply.metadata.src_node_id] = read_name(reply.content)
            time.sleep(0.1)

"""Who is there: Flower's node ids and the names of sites.

A site's name is the one it was registered under with its key. Nodes without a name in the registry, as in a simulation
or with plain `flower-supernode`, are asked for it. Two nodes under one name are never taken for one site.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from ..wire.records import one_line

ASK_NAME = "query.name"
NAME = "name"


@dataclass(frozen=True)
class Node:
    """A site that is connected."""

    id: int
    key: str  # digest of its public key
    since: str  # when it was connected: another time means that what was under way there is lost


@dataclass
class Known:
    """Every site ever seen: its number, which names its random streams and its place in every sum, and its folder.

    Whoever has a site's key is that site to Flower. If somebody else comes with it, by mistake or not, he answers from
    another folder than the site did, and must not be taken for it.
    """

    numbers: dict[str, int]
    homes: dict[str, str] = field(default_factory=dict)  # site -> its key, and the folder that first answered with it
    keep: Callable[["Known"], None] = lambda known: None  # called before anything new is used

    def add(self, names: Iterable[str]) -> None:
        """Numbers for those who have none, in the order of their names."""
        new = sorted(set(names) - set(self.numbers))
        first = max(self.numbers.values(), default=-1) + 1
        self.numbers |= {name: first + place for place, name in enumerate(new)}
        if new:
            self.keep(self)

    def is_at_home(self, name: str, key: str, folder: str) -> bool:
        """Whether an answer comes from where this site's answers come from; a new key begins anew."""
        if not self.homes.get(name, "").startswith(f"{key} "):
            self.homes[name] = f"{key} {folder}"
            self.keep(self)
        return self.homes[name] == f"{key} {folder}"


@dataclass
class Roster:
    """Names by node, learnt once per node."""

    grid: Grid
    patience: float = 60.0  # seconds a node may take to say its name
    names: dict[int, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # what is odd about who is there

    def present(self) -> dict[str, Node]:
        """Everyone who is connected now, by name."""
        nodes = {node.node_id: node for node in self.grid.get_nodes()}
        self.names |= {id: node.name for id, node in nodes.items() if node.name}
        self._ask_names([id for id in nodes if id not in self.names])
        found: dict[str, Node] = {}
        for id in sorted(nodes, key=lambda id: (nodes[id].last_activated_at, id)):
            name = self.names.get(id, "")
            if name in found:
                self.notes[name] = "two sites have this name; the one that came second is left out"
            elif name:
                key = sha256(nodes[id].public_key).hexdigest()[:16]
                found[name] = Node(id, key, nodes[id].last_activated_at)
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
                    said = reply.content.config_records.get(NAME, ConfigRecord())
                    self.names[reply.metadata.src_node_id] = one_line(said.get(NAME, ""))
            time.sleep(0.1)

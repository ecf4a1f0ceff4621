"""Transport between the server and its sites over Flower's grid.

`GridThreads` makes each call to Flower's grid in a thread: neither a site nor a lost SuperLink blocks the server.
Flower's grid waits for the pieces of a reply for up to two hours, one site after the other, and raises an error if a
piece is malformed; while its SuperLink is away it retries forever. With a thread per reply, only that reply is late.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from ...errors import FederationError, Interrupted, NoClientReplied
from ...federation.transport import Reasons, too_few_message
from ...files import reading, write_text
from ...messages import Evaluate, KeyRequest, Reply, Request, digest, payload_bytes
from ...plurals import counted
from ...run.progress_reporter import ProgressReporter
from ..audit_log import IN, OUT, AuditMessage
from ..flower_internals import is_lost
from ..flower_internals.connections import RunGivenUp
from ..message_format import (
    NAME_QUERY,
    Unreadable,
    audit_message,
    one_line,
    read_name,
    read_reply,
    request_records,
    route,
)
from ..terms import Terms

_OVERHEAD = 1_000_000  # bytes that a reply may have beyond twice those of its request
_NAME_TIMEOUT = 60.0  # seconds a node may take to reply with its name
_CHECK_CONNECTED = 1.0  # seconds between two checks of which sites are connected
_POLL_WAIT = 0.2  # seconds to wait for replies that are being fetched, before those that are complete are returned
_POLL_SHARE, _MAX_POLL = 0.1, 1.0  # poll again after this share of the time since the request, at most after 1 s
_POLL_BREAK = 10.0  # interval of polls as a multiple of the last poll's duration: polls must not occupy the SuperLink
_STOP_CHECK, _TIME_LIMIT = 0.5, 600.0  # seconds between two checks whether to stop; for a call to the SuperLink
_SITE_ERROR = 0  # code of an error after which the request is not sent again


class _Call(threading.Thread):
    """A call to the grid; a daemon thread, because Flower offers no way to cancel a call."""

    def __init__(self, function: Callable[[], Iterable[Any]]):
        super().__init__(daemon=True)
        self._function = function
        self.result: list[Any] = []
        self.error: BaseException | None = None
        self.began = self.ended = time.monotonic()
        self.start()

    def run(self) -> None:
        try:
            self.result = list(self._function())
        except BaseException as error:
            self.error = error
        self.ended = time.monotonic()


class GridThreads:
    """Makes the calls to Flower's grid in threads.

    Args:
        grid: Flower's grid; its calls may block.
        should_stop: returns whether the server has to stop, or raises the error that ends it.
    """

    def __init__(self, grid: Grid, should_stop: Callable[[], bool]):
        self._grid, self._should_stop = grid, should_stop
        self._sent: dict[str, tuple[Message, float]] = {}  # id of a request -> the request, and when it was sent
        self._polls: dict[str, _Call] = {}  # id of a request -> the last poll for its reply

    def get_nodes(self) -> Iterable[Any]:
        return self._wait_for(self._grid.get_nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        requests = list(messages)
        message_ids = self._wait_for(lambda: self._grid.push_messages(requests))
        now = time.monotonic()
        self._sent = {id: sent for id, sent in self._sent.items() if now < sent[1] + 2 * sent[0].metadata.ttl}
        self._polls = {id: poll for id, poll in self._polls.items() if id in self._sent}
        self._sent |= {request.metadata.message_id: (request, now) for request in requests}
        return message_ids

    def _wait_for(self, function: Callable[[], Iterable[Any]]) -> Iterable[Any]:
        call = _Call(function)
        while call.is_alive():
            if self._should_stop():
                raise Interrupted("stopped; continue with --resume")
            if time.monotonic() > call.began + _TIME_LIMIT:
                raise FederationError(f"no response from the SuperLink for {_TIME_LIMIT:.0f} s; continue with --resume")
            call.join(_STOP_CHECK)
        if call.error is not None:
            raise call.error
        return call.result

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are complete, and an error for each malformed one, without waiting for the others."""
        pending = [id for id in message_ids if id in self._sent]
        for id in filter(self._is_due, pending):
            self._polls[id] = _Call(partial(self._grid.pull_messages, [id]))
        end = time.monotonic() + _POLL_WAIT
        replies = []
        for id in pending:
            poll = self._polls[id]
            poll.join(max(0.0, end - time.monotonic()))
            if not poll.is_alive() and (reply := self._reply(id, poll)) is not None:
                replies.append(reply)
                del self._polls[id], self._sent[id]
        return replies

    def _is_due(self, id: str) -> bool:
        """Return whether to poll for the reply to a message: at once, and then less often the longer it takes."""
        if id not in self._polls:
            return True
        poll, now = self._polls[id], time.monotonic()
        interval = min(_MAX_POLL, _POLL_SHARE * (now - self._sent[id][1]))
        return not poll.is_alive() and now >= poll.ended + max(interval, _POLL_BREAK * (poll.ended - poll.began))

    def _reply(self, id: str, poll: _Call) -> Message | None:
        """Return the reply that a finished poll fetched (an error message if malformed); None if there is none yet."""
        if isinstance(poll.error, httpx.HTTPError | RunGivenUp):
            raise poll.error
        if poll.error is not None:
            reason = f"malformed message ({type(poll.error).__name__})"
            return Message(Error(_SITE_ERROR, reason), reply_to=self._sent[id][0])
        return next(iter(poll.result), None)


@dataclass
class KnownSites:
    """All sites that ever connected to a run: the number of each, which names its random streams, and its folder.

    Flower identifies a site by its key. The server also compares the random id of the folder that a reply comes from:
    a second process with the same key, by mistake or not, is not treated as the site. The file `server.json` keeps all
    this for a restarted server, with the id of the run and the number of starts.
    """

    numbers: dict[str, int]
    folders: dict[str, str] = field(default_factory=dict)  # site -> digest of its key, and id of its folder
    run: str = ""  # unique id
    starts: int = 0  # of the server, for this run
    file: Path | None = None  # None: nothing is written

    @classmethod
    def at_start(cls, file: Path, run_name: str) -> "KnownSites":
        """Read the sites of the run from this file and count one more start; a new file gets a unique run id."""
        sites = cls({}, run=f"{run_name}-{secrets.token_hex(6)}", file=file)
        if file.exists():
            with reading(file):
                stored = json.loads(file.read_text(encoding="utf-8"))
                numbers = {str(name): int(number) for name, number in stored["sites"].items()}
                sites = cls(numbers, dict(stored["folders"]), str(stored["run"]), int(stored["starts"]), file)
        sites.starts += 1
        sites._write()
        return sites

    def add(self, names: Iterable[str]) -> None:
        """Assign numbers to new sites, in the order of their names."""
        new = sorted(set(names) - set(self.numbers))
        first = max(self.numbers.values(), default=-1) + 1
        self.numbers |= {name: number for number, name in enumerate(new, first)}
        if new:
            self._write()

    def is_same_folder(self, name: str, key: str, folder: str) -> bool:
        """Return whether a reply comes from the same folder as the first one that was sent with this key."""
        if not self.folders.get(name, "").startswith(f"{key} "):
            self.folders[name] = f"{key} {folder}"
            self._write()
        return self.folders[name] == f"{key} {folder}"

    def _write(self) -> None:
        if self.file:
            stored = {"run": self.run, "starts": self.starts, "sites": self.numbers, "folders": self.folders}
            write_text(self.file, json.dumps(stored, indent=1) + "\n")


@dataclass(frozen=True)
class _SiteNode:
    """The node of a site in Flower's grid."""

    id: int
    key: str  # digest of its public key
    since: str  # when it connected: a new time means that its pending request is lost


@dataclass
class _ConnectedSites:
    """The connected sites by the name of their registered key.

    Nodes without a name in the registry, as in a simulation or with plain `flower-supernode`, are queried for it once.
    Of two nodes with the same name only the first one is a site.
    """

    grid: Grid | GridThreads
    names: dict[int, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # site -> problem with its connection

    def current_nodes(self) -> dict[str, _SiteNode]:
        """Return the node of each connected site, by the site's name."""
        nodes = {node.node_id: node for node in self.grid.get_nodes()}
        self.names |= {id: node.name for id, node in nodes.items() if node.name}
        self._query_names([id for id in nodes if id not in self.names])
        current: dict[str, _SiteNode] = {}
        for id in sorted(nodes, key=lambda id: (nodes[id].last_activated_at, id)):
            name = self.names.get(id, "")
            if name in current:
                self.notes[name] = "two sites have this name; the one that connected second is left out"
            elif name:
                key = sha256(nodes[id].public_key).hexdigest()[:16]
                current[name] = _SiteNode(id, key, nodes[id].last_activated_at)
        return current

    def _query_names(self, nodes: Iterable[int]) -> None:
        messages = [Message(RecordDict(), id, NAME_QUERY, ttl=_NAME_TIMEOUT) for id in nodes]
        if not messages:
            return
        waiting = set(self.grid.push_messages(messages))
        end = time.monotonic() + _NAME_TIMEOUT
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                if not reply.has_error():
                    self.names[reply.metadata.src_node_id] = read_name(reply.content)
            time.sleep(0.1)


@dataclass(frozen=True)
class Timeouts:
    """Timeouts of the server, and the minimum number of sites."""

    timeout: float = 600.0  # seconds for a reply; a site that takes longer is left out of this step
    min_sites: int = 1  # with fewer the server waits, whatever the timeout
    poll: float = 0.3  # seconds between two polls for replies
    start_with: int = 0  # sites to wait for before the first request, if more than `min_sites`


@dataclass
class _Pending:
    """A request whose reply is awaited."""

    request: Request
    node: _SiteNode | None = None  # that it was sent to
    message_id: str = ""  # of Flower; empty: the request has to be sent, perhaps again
    sent: Message | None = None


@dataclass
class GridTransport:
    """Implements `federation.transport.Transport`. A site keeps the number that it gets when it first connects."""

    grid: Grid | GridThreads
    terms: Terms
    known_sites: KnownSites
    timeouts: Timeouts = field(default_factory=Timeouts)
    progress: ProgressReporter = field(default_factory=ProgressReporter)
    should_stop: Callable[[], bool] = lambda: False
    audit: Callable[[AuditMessage], None] = lambda message: None
    connected: _ConnectedSites = field(init=False)
    _drops: Reasons = field(default_factory=Reasons)
    _last_notes: dict[str, str] = field(default_factory=dict)  # site (empty: all sites) -> the last note about it
    _disconnected: set[str] = field(default_factory=set)  # of the sites whose replies are pending, at the last check

    def __post_init__(self) -> None:
        self.connected = _ConnectedSites(self.grid)

    @property
    def min_replies(self) -> int:
        """Minimum number of usable replies in an exchange."""
        return self.timeouts.min_sites

    def begin(self) -> tuple[str, ...]:
        """Wait for the sites that the run starts with, and return their names."""
        return self._wait_for_sites(max(self.timeouts.start_with, self.timeouts.min_sites))

    def clients(self) -> tuple[str, ...]:
        """Return the connected sites in the order of their numbers; waits until there are enough."""
        return self._wait_for_sites(self.timeouts.min_sites)

    def _wait_for_sites(self, count: int) -> tuple[str, ...]:
        while True:
            nodes = self.connected.current_nodes()
            if len(nodes) >= count:
                self.known_sites.add(nodes)
                return tuple(sorted(nodes, key=self.known_sites.numbers.__getitem__))
            self._note_once(f"waiting: {len(nodes)} of at least {counted(count, 'site is', 'sites are')} connected")
            self._pause(_CHECK_CONNECTED)

    def request(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        """Return the usable replies in the order of the requests; late and unreadable ones are missing.

        An evaluation never waits beyond the timeout: no model depends on it.
        """
        is_evaluation = all(isinstance(request, Evaluate) for request in requests.values())
        needed = 0 if is_evaluation else min(self.timeouts.min_sites, len(requests))
        replies: dict[str, Reply] = {}
        self._collect({site: _Pending(request) for site, request in requests.items()}, replies, needed)
        if len(replies) < needed:
            reasons = self._drops.summary()
            dropped = {site: reasons[site] for site in requests if site not in replies}
            raise NoClientReplied(too_few_message(requests, len(replies), needed, dropped))
        return {site: replies[site] for site in requests if site in replies}

    def take_drops(self) -> Reasons:
        """Return the reasons why replies were not used since the last call, and clear them."""
        drops, self._drops = self._drops, Reasons()
        for site, reason in self.connected.notes.items():
            drops.add(site, "connect", reason)
        self.connected.notes = {}
        return drops

    def _collect(self, pending: dict[str, _Pending], replies: dict[str, Reply], needed: int) -> None:
        """Send requests, again to sites that reconnect, until all have replied or the timeout has passed."""
        end, next_check = time.monotonic() + self.timeouts.timeout, 0.0
        while pending:
            if time.monotonic() >= next_check:
                self._send(pending)
                next_check = time.monotonic() + _CHECK_CONNECTED
            replies |= dict(self._usable_replies(pending))
            if time.monotonic() >= end:
                if len(replies) >= needed:
                    break
                self._note_once(
                    f"waiting: {len(replies)} of at least {counted(needed, 'site has', 'sites have')} replied"
                )
            if pending:
                self._pause(self.timeouts.poll)
        for site, late in pending.items():
            self._drop(site, late.request, f"no reply within {self.timeouts.timeout:.0f} s")

    def _send(self, pending: Mapping[str, _Pending]) -> None:
        """Send the requests that are not sent yet, or were lost because their site has reconnected."""
        nodes = self.connected.current_nodes()
        self._note_connections(pending, nodes)
        messages: dict[str, Message] = {}
        for site, entry in pending.items():
            node = nodes.get(site)
            if node is not None and (not entry.message_id or node != entry.node):
                records = request_records(entry.request, self.terms.for_site(self.known_sites.numbers[site]))
                round_number, ttl = str(entry.request.round + 1), self.timeouts.timeout
                message = Message(records, node.id, route(type(entry.request)), ttl=ttl, group_id=round_number)
                self.audit(audit_message(message, OUT, site, "sent"))
                entry.node, entry.sent, messages[site] = node, message, message
        message_ids = set(self.grid.push_messages(list(messages.values()))) if messages else set()
        for site, message in messages.items():
            id = message.metadata.message_id
            pending[site].message_id = id if id in message_ids else ""

    def _note_connections(self, pending: Iterable[str], connected: Iterable[str]) -> None:
        """Report once that a site with a pending request is not connected, and once that it is connected again."""
        disconnected = set(pending) - set(connected)
        for site in sorted(disconnected - self._disconnected):
            self.progress.note(f"{site} is not connected; waiting for it, up to {self.timeouts.timeout:.0f} s")
        for site in sorted(self._disconnected & set(connected)):
            self.progress.note(f"{site} is connected again")
        self._disconnected = disconnected

    def _usable_replies(self, pending: dict[str, _Pending]) -> Iterator[tuple[str, Reply]]:
        """Yield the replies that have arrived; removes them and the unusable ones from `pending`."""
        sites = {entry.message_id: site for site, entry in pending.items() if entry.message_id}
        for message in self.grid.pull_messages(list(sites)) if sites else ():
            site = sites.get(message.metadata.reply_to_message_id)
            if site is None or site not in pending:
                continue
            if is_lost(message):
                pending[site].message_id = ""
                continue
            entry = pending.pop(site)
            try:
                reply = self._read(site, message, entry)
            except Unreadable as error:
                self.audit(audit_message(message, IN, site, f"dropped: {error}", entry.sent))
                self._drop(site, entry.request, str(error))
                continue
            self.audit(audit_message(message, IN, site, "accepted", entry.sent))
            if not isinstance(entry.request, KeyRequest):
                self.progress.replied(site, entry.request)
            yield site, reply

    def _read(self, site: str, message: Message, entry: _Pending) -> Reply:
        """Return the reply in a message; raise `Unreadable` for any error in it."""
        if message.has_error():
            raise Unreadable(f"failed: {one_line(message.error.reason)}")
        if entry.node is None or message.metadata.src_node_id != entry.node.id:
            raise Unreadable("the reply came from another node")
        max_bytes = 2 * payload_bytes(entry.request) + _OVERHEAD  # a reply has prompts of the same size as its request
        try:
            reply, folder = read_reply(message.content, digest(entry.request), max_bytes)
        except Unreadable:
            raise
        except Exception as error:
            raise Unreadable(f"the reply cannot be read: {type(error).__name__}") from error
        if not self.known_sites.is_same_folder(site, entry.node.key, folder):
            raise Unreadable("the reply came from another folder than before: two sites use this key, or it was moved")
        return reply

    def _drop(self, site: str, request: Request, reason: str) -> None:
        """Count a late or unusable reply, and report it unless the last note about the site was the same."""
        self._drops.add(site, type(request).__name__, reason)
        self._note_once(f"round {request.round + 1}, {type(request).__name__}: {site} is left out: {reason}", site)

    def _note_once(self, note: str, site: str = "") -> None:
        if self._last_notes.get(site) != note:
            self._last_notes[site] = note
            self.progress.note(note)

    def _pause(self, seconds: float) -> None:
        if self.should_stop():
            raise Interrupted("stopped; continue with --resume")
        time.sleep(seconds)

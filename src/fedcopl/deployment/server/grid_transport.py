"""Sites over Flower's grid, as the protocol sees them."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import Message

from ...errors import Interrupted, NoClientReplied
from ...federation.transport import Reasons, too_few
from ...messages import Evaluate, KeyRequest, Reply, Request, digest, payload_bytes
from ...plurals import counted
from ...run.progress_reporter import ProgressReporter, SilentReporter
from ..audit_log import IN, OUT, Crossing
from ..flower_internals.messages import is_lost
from ..wire.crossings import crossing
from ..wire.message_format import Unreadable, one_line, question_records, read_answer, route
from ..wire.terms import Terms
from .grid_threads import SiteGrid
from .site_registry import ConnectedSites, KnownSites, SiteNode

SLACK = 1_000_000  # bytes an answer may have beyond twice its question's
LOOK = 1.0  # seconds between two looks at who is there


@dataclass(frozen=True)
class Timeouts:
    """How long to wait, and for how many."""

    timeout: float = 600.0  # seconds for an answer; who takes longer is missing in this step
    min_sites: int = 1  # with fewer nothing goes on, however long it takes
    poll: float = 0.3  # seconds between two looks for answers
    start_with: int = 0  # sites to wait for before the first question, where that should be more


@dataclass
class _Asked:
    """One question under way."""

    request: Request
    node: SiteNode | None = None  # where it was sent to
    message: str = ""  # Flower's id of it; none: it has to be sent, perhaps again
    sent: Message | None = None

    @property
    def most(self) -> int:
        """How many bytes the answer may have: what is shared comes back in the size it was sent."""
        return 2 * payload_bytes(self.request) + SLACK


@dataclass
class GridTransport:
    """Implements `federation.transport.Clients`. A site gets its number when it first appears, and keeps it."""

    grid: SiteGrid
    terms: Terms
    known: KnownSites
    patience: Timeouts = field(default_factory=Timeouts)
    watcher: ProgressReporter = field(default_factory=SilentReporter)
    should_stop: Callable[[], bool] = lambda: False
    audit: Callable[[Crossing], None] = lambda crossing: None
    connected: ConnectedSites = field(init=False)
    _drops: Reasons = field(default_factory=Reasons)
    _said: str = ""
    _last_drop: dict[str, str] = field(default_factory=dict)  # site -> what was last said of an answer of its
    _away: set[str] = field(default_factory=set)  # who is waited for and was not connected at the last look

    def __post_init__(self) -> None:
        self.connected = ConnectedSites(self.grid)

    @property
    def least(self) -> int:
        return self.patience.min_sites

    def begin(self) -> tuple[str, ...]:
        """Everyone who is there at the start; waits for as many as are wanted."""
        return self._at_least(max(self.patience.start_with, self.least))

    def clients(self) -> tuple[str, ...]:
        """Everyone who is connected, in the order of their numbers; waits until there are enough."""
        return self._at_least(self.least)

    def _at_least(self, wanted: int) -> tuple[str, ...]:
        while True:
            present = self.connected.now()
            if len(present) >= wanted:
                self.known.add(present)
                return tuple(sorted(present, key=self.known.numbers.__getitem__))
            self._say(f"waiting: {len(present)} of at least {counted(wanted, 'site is', 'sites are')} connected")
            self._pause(LOOK)

    def request(self, questions: Mapping[str, Request]) -> dict[str, Reply]:
        """Replies in the order asked. Who does not answer in time, or answers rubbish, is missing.

        For measuring nobody is waited for beyond that: no model depends on it.
        """
        measures = all(isinstance(request, Evaluate) for request in questions.values())
        needed = 0 if measures else min(self.least, len(questions))
        replies: dict[str, Reply] = {}
        self._collect({site: _Asked(request) for site, request in questions.items()}, replies, needed)
        if len(replies) < needed:
            known = self._drops.in_words()
            wrong = {site: known[site] for site in questions if site not in replies}
            raise NoClientReplied(too_few(questions, len(replies), needed, wrong))
        return {site: replies[site] for site in questions if site in replies}

    def take_drops(self) -> Reasons:
        """Whose answers were not used, and why, since this was last asked."""
        taken, self._drops = self._drops, Reasons()
        for site, why in self.connected.notes.items():
            taken.add(site, "connect", why)
        self.connected.notes = {}
        return taken

    def _collect(self, asked: dict[str, _Asked], replies: dict[str, Reply], needed: int) -> None:
        """Ask, and ask again where a site was lost on the way, until all have answered or time is up."""
        end, look = time.monotonic() + self.patience.timeout, 0.0
        while asked:
            if time.monotonic() >= look:
                self._send(asked)
                look = time.monotonic() + LOOK
            replies |= dict(self._answers(asked))
            if time.monotonic() >= end:
                if len(replies) >= needed:
                    break
                self._say(f"waiting: {len(replies)} of at least {counted(needed, 'site has', 'sites have')} answered")
            if asked:
                self._pause(self.patience.poll)
        for site, missing in asked.items():
            self._drop(site, missing.request, f"gave no answer within {self.patience.timeout:.0f} s")

    def _send(self, asked: Mapping[str, _Asked]) -> None:
        """Send what has to be sent to those who are there; a site that was away in between has lost its question."""
        present = self.connected.now()
        self._announce_who_left(asked, present)
        messages: dict[str, Message] = {}
        for site, one in asked.items():
            node = present.get(site)
            if node is not None and (not one.message or node != one.node):
                one.node = node
                messages[site] = self._message(node, one.request, site)
                self.audit(crossing(messages[site], OUT, site, "sent"))
                one.sent = messages[site]
        taken = set(self.grid.push_messages(list(messages.values()))) if messages else set()
        for site, message in messages.items():
            asked[site].message = message.metadata.message_id if message.metadata.message_id in taken else ""

    def _announce_who_left(self, asked: Iterable[str], present: Iterable[str]) -> None:
        """Say once that somebody who is waited for is not connected, and once that it is back."""
        away = set(asked) - set(present)
        for site in sorted(away - self._away):
            self.watcher.noticed(f"{site} is not connected; waiting for it, up to {self.patience.timeout:.0f} s")
        for site in sorted(self._away & set(present)):
            self.watcher.noticed(f"{site} is back")
        self._away = away

    def _message(self, node: SiteNode, request: Request, site: str) -> Message:
        records = question_records(request, self.terms.at(self.known.numbers[site]))
        return Message(
            records, node.id, route(type(request)), ttl=self.patience.timeout, group_id=str(request.round + 1)
        )

    def _answers(self, asked: dict[str, _Asked]) -> Iterator[tuple[str, Reply]]:
        """Usable answers that have come; they and the unusable ones are no longer waited for."""
        sites = {one.message: site for site, one in asked.items() if one.message}
        for message in self.grid.pull_messages(list(sites)) if sites else ():
            site = sites.get(message.metadata.reply_to_message_id)
            if site is None or site not in asked:
                continue
            if is_lost(message):
                asked[site].message = ""
                continue
            one = asked.pop(site)
            try:
                reply = self._read(site, message, one)
            except Unreadable as error:
                self.audit(crossing(message, IN, site, f"dropped: {error}", one.sent))
                self._drop(site, one.request, str(error))
                continue
            self.audit(crossing(message, IN, site, "taken", one.sent))
            if not isinstance(one.request, KeyRequest):
                self.watcher.answered(site, one.request)
            yield site, reply

    def _read(self, site: str, message: Message, one: _Asked) -> Reply:
        if message.has_error():
            raise Unreadable(f"broke while answering: {one_line(message.error.reason)}")
        if one.node is None or message.metadata.src_node_id != one.node.id:
            raise Unreadable("another node answered in its place")
        reply, folder = _answer_in(message, one)
        if not self.known.is_at_home(site, one.node.key, folder):
            raise Unreadable("answered from another folder than before: two sites use its key, or it has lost its own")
        return reply

    def _drop(self, site: str, request: Request, why: str) -> None:
        """Count it, and say it once: what is wrong with one of some dozen questions in a row is wrong with all."""
        self._drops.add(site, type(request).__name__, why)
        what = f"round {request.round + 1}, {type(request).__name__}: {site} is left out: {why}"
        if self._last_drop.get(site) != what:
            self._last_drop[site] = what
            self.watcher.noticed(what)

    def _say(self, what: str) -> None:
        """Once, not at every look."""
        if what != self._said:
            self._said = what
            self.watcher.noticed(what)

    def _pause(self, seconds: float) -> None:
        if self.should_stop():
            raise Interrupted("stopped; go on with --resume")
        time.sleep(seconds)


def _answer_in(message: Message, one: _Asked) -> tuple[Reply, str]:
    """The answer and whence it came. Whatever reading it sets off is one site's trouble, not the server's end."""
    try:
        return read_answer(message.content, digest(one.request), one.most)
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"its answer cannot be read: {type(error).__name__}") from error

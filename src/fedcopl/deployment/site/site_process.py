"""`fedcopl join`: takes the server's questions and answers them, in this process, until it is stopped."""

import logging
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from flwr.app import Message

from ...run.progress_reporter import ProgressReporter
from ..audit_log import AuditLog
from ..certificates import private_key, site_key
from ..flower_internals.site_connection import ConnectionLost, SiteConnection, site_connection
from ..metrics import AnswerCounts, health, site_metrics
from ..metrics_port import metrics_port
from ..processes import holding, should_stop
from ..wire.message_format import is_refusal
from .interruption import time_limit
from .replies import reply_to
from .running_site import RunningSite
from .server_probe import ServerAddress, cut_off, why_not_let_in

SOONEST, LATEST = 0.1, 5.0  # seconds between two looks for a question
SHARE = 0.1  # of the time since the last question, or of the time that question was waited for: then the next look
LONGEST_SHARE = 2.0  # seconds, of the latter: a question that comes sooner than the last waits no longer
LEFT_IN_PEACE = 10.0  # times what the last look took: a server that has much to do answers slowly
LOOK = 0.5  # seconds between two looks whether to stop
MANY = "adapt"  # the kind of question that comes dozens of times in a row: a line for each would hide all others
AGAIN = 2.0  # seconds between two tries to be let in
log = logging.getLogger("fedcopl.site")


def run_site(site: RunningSite, server: ServerAddress, watcher: ProgressReporter, port: int = 0) -> None:
    """Answer until stopped; with a port, say there how it goes."""
    folder, news = site.home.folder, SiteNews(watcher, server)
    about = {"name": site.name, "server": server.address, "conditions": str(site.home.consent)}
    private, public = site_key(folder, site.name)
    with (
        holding(folder, "site", about),
        metrics_port(port, lambda: site_metrics(folder, news.counts), lambda: health(folder)),
    ):
        while not should_stop(folder):
            try:
                with site_connection(server.address, server.ca, private_key(private)) as connection:
                    _answer_questions(site, connection, news)
            except KeyboardInterrupt:
                if not should_stop(folder):
                    raise
            except ConnectionLost as error:
                log.warning("the connection was lost and is made anew: %s", error)
                _wait(LOOK, lambda: should_stop(folder))
            except httpx.HTTPError as error:
                news.announce(why_not_let_in(server, public, error, news.finished))
                _wait(AGAIN, lambda: should_stop(folder))
            news.counts.connected = False
        watcher.noticed("stopped, as asked; the same command joins again")


@dataclass
class SiteNews:
    """Tells people, and those who count, how the connection is and what was answered."""

    watcher: ProgressReporter
    server: ServerAddress
    counts: AnswerCounts = field(default_factory=AnswerCounts)
    finished: str = ""  # what to say when the server leaves after a run, and nobody misses it
    _announced: str = ""
    _last: tuple[str, str, bool] = ("", "", False)  # round and kind of the last question, and whether it was refused

    def look(self, connection: SiteConnection) -> None:
        was_connected, trouble = self.counts.connected, connection.trouble
        self.counts.connected = trouble is None
        if trouble is not None:
            self.announce(cut_off(self.server, trouble, self.finished))
        elif not was_connected:
            self.announce(f"connected to {self.server.address}")

    def announce(self, what: str) -> None:
        """Nothing is said twice in a row."""
        if what != self._announced:
            self._announced = what
            self.watcher.noticed(what)

    def answered(self, question: Message, seconds: float, finished: Path | None = None, *, refused: bool) -> None:
        """`finished`: folder of the run whose last question this was."""
        kind = question.metadata.message_type.removeprefix("query.")
        self.counts.add(kind, seconds, refused=refused)
        how = "could not be answered" if refused else f"answered in {seconds:.1f} s"  # why was said when it happened
        again = (question.metadata.group_id, kind, refused)
        if kind == MANY and not refused:
            how = "answered; some dozen more such questions follow, of which nothing is said"
        if again != self._last or kind != MANY:
            self.watcher.noticed(f"round {question.metadata.group_id}: {kind} {how}")
        self._last = again
        self.finished = ""
        if finished is not None:
            self.finished = (
                f"the run is finished; this site's classifier is in {finished}; label images with: "
                f"fedcopl predict IMAGES --classifier {shlex.quote(str(finished))} --out labels.csv; "
                "this site waits for the next run, Ctrl-C stops it"
            )
            self.announce(self.finished)


def _answer_questions(site: RunningSite, connection: SiteConnection, news: SiteNews) -> None:
    """Until the connection is lost or the site is asked to stop."""
    asked, gap = time.monotonic(), 0.0

    def stopped() -> bool:
        return should_stop(site.home.folder)

    while not stopped():
        began = time.monotonic()
        question = connection.next()
        news.look(connection)
        if question is None:
            _wait(pace(time.monotonic() - asked, time.monotonic() - began, gap), stopped)
            continue
        gap = began - asked
        connection.hand_in(_reply(question, site, news))
        asked = time.monotonic()


def pace(waited: float, took: float, gap: float) -> float:
    """How long to wait for the next look: who was asked a moment ago will be asked again soon.

    A question waits for no more than a tenth of the time since the last, and an idle site costs next to nothing. Where
    the last look took long, many sites look at once: all of them together must not keep the server from its work. Where
    the last question was long in coming (`gap`), there are many to ask, and the next will not come at once.

    >>> pace(0.0, 0.005, 0.5), pace(20.0, 0.005, 0.5), pace(3600.0, 0.005, 0.5), pace(0.0, 0.08, 0.5)
    (0.1, 2.0, 5.0, 0.8)
    >>> pace(0.0, 0.005, 8.0), pace(0.0, 0.005, 3600.0)
    (0.8, 2.0)
    """
    return min(LATEST, max(SOONEST, SHARE * waited, LEFT_IN_PEACE * took, min(LONGEST_SHARE, SHARE * gap)))


def _wait(seconds: float, stopped: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stopped():
        time.sleep(min(LOOK, left))


def _reply(question: Message, site: RunningSite, news: SiteNews) -> Message:
    began = time.monotonic()
    folder = site.home.folder
    limit = time_limit(site.home.limits.seconds, lambda: should_stop(folder))
    reply = reply_to(question, lambda: site, AuditLog(folder), news.server.address, limit)
    news.answered(question, time.monotonic() - began, site.finished, refused=is_refusal(reply.content))
    return reply

"""Flower's grid with one thread per site, so that neither a site nor a lost SuperLink can block the server.

Flower's grid waits for the pieces of a reply for up to two hours, one site after the other, and raises on malformed
pieces; while its SuperLink is away it retries forever. Here only the thread of that one reply waits.
"""

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import httpx
from flwr.app import Error, Message

from ...errors import FederationError, Interrupted
from ..flower_internals.connections import RUN_GIVEN_UP

_POLL_WAIT = 0.2  # seconds to wait for replies that are being fetched, before those that are complete are returned
_POLL_SHARE, _POLL_LATEST = 0.1, 1.0  # poll again after this share of the time since the request, at most after 1 s
_POLL_BREAK = 10.0  # times what the last poll took: many requests at once must not occupy the SuperLink
_STOP_CHECK, _TIME_LIMIT = 0.5, 600.0  # seconds between two checks whether to stop; for a call to the SuperLink
_SITE_ERROR = 0  # code of an error after which the request is not sent again


class SiteGrid(Protocol):
    """The methods of Flower's `Grid` that the server uses."""

    def get_nodes(self) -> Iterable[Any]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class _Call(threading.Thread):
    """One call to the grid; a daemon, because Flower offers no way to end it."""

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
    """Implements `SiteGrid` over Flower's grid.

    Args:
        grid: Flower's grid; its calls may block.
        should_stop: whether the server is to stop; may raise an error of its own.
    """

    def __init__(self, grid: SiteGrid, should_stop: Callable[[], bool]):
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
        pending = [message for message in message_ids if message in self._sent]
        for message in filter(self._is_due, pending):
            self._polls[message] = _Call(partial(self._grid.pull_messages, [message]))
        end = time.monotonic() + _POLL_WAIT
        replies = []
        for message in pending:
            poll = self._polls[message]
            poll.join(max(0.0, end - time.monotonic()))
            if not poll.is_alive() and (reply := self._reply(message, poll)) is not None:
                replies.append(reply)
                del self._polls[message], self._sent[message]
        return replies

    def _is_due(self, message: str) -> bool:
        """Whether to poll for this reply: at once, and then less often the longer it takes."""
        if message not in self._polls:
            return True
        poll, now = self._polls[message], time.monotonic()
        waited = min(_POLL_LATEST, _POLL_SHARE * (now - self._sent[message][1]))
        return not poll.is_alive() and now >= poll.ended + max(waited, _POLL_BREAK * (poll.ended - poll.began))

    def _reply(self, message: str, poll: _Call) -> Message | None:
        if isinstance(poll.error, httpx.HTTPError | RUN_GIVEN_UP):
            raise poll.error
        if poll.error is not None:
            reason = f"malformed message ({type(poll.error).__name__})"
            return Message(Error(_SITE_ERROR, reason), reply_to=self._sent[message][0])
        return next(iter(poll.result), None)

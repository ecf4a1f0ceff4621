"""A SuperLink that stores no more of an answer than any answer of the run can have.

A site sends an answer in pieces, one request each; Flower stores whatever comes, and the server looks at it only when
all is there. Here a request that is too large is not read to its end, and of an answer whose pieces are too large
together nothing is kept.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from threading import Lock
from typing import Any, ClassVar

from flwr.server.superlink.linkstate import InMemoryLinkState

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
FOR_SITES = "/v1/fleet/"  # of all paths that a SuperLink serves
log = logging.getLogger("fedcopl.flower")


class NoLargeRequests:
    """Reads no request of a site beyond so many bytes, whatever it says of its length."""

    def __init__(self, app: App, most: int):
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not str(scope["path"]).startswith(FOR_SITES):
            await self.app(scope, receive, send)
        elif _length_said(scope) > self.most:
            log.warning("a request of %s bytes is refused, unread", f"{_length_said(scope):,}")
            await send({"type": "http.response.start", "status": 413, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.app(scope, _up_to(self.most, receive), send)


def _length_said(scope: Scope) -> int:
    said = dict(scope["headers"]).get(b"content-length", b"0")
    return int(said) if said.isdigit() else 0


def _up_to(most: int, receive: Receive) -> Receive:
    """What is received, until it is too much: then as if the other side had gone."""
    came = 0

    async def counted() -> Event:
        nonlocal came
        event = await receive()
        came += len(event.get("body", b""))
        return event if came <= most else {"type": "http.disconnect"}

    return counted


class SparingLinkState(InMemoryLinkState):
    """Keeps at most so many bytes of the answer to a question."""

    most: ClassVar[int] = 10**9
    _answered: ClassVar[dict[str, str]] = {}  # session in which pieces are sent -> the question they answer
    _kept: ClassVar[Counter[str]] = Counter()  # question -> bytes of its answer
    _lock: ClassVar[Lock] = Lock()

    def store_message_and_object_tree(self, message: Any, object_tree: Any, session_id: str) -> tuple[bool, list[str]]:
        if message.metadata.reply_to_message_id:
            self._answered[session_id] = message.metadata.reply_to_message_id
        stored: tuple[bool, list[str]] = super().store_message_and_object_tree(message, object_tree, session_id)
        return stored

    def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        """Refused without a session: whose it is could not be told, and ours have one."""
        if not session_id:
            return False
        question = self._answered.get(session_id)
        if question is None:  # a question of the server's own
            return bool(super().store_object(run_id, session_id, object_id, object_content))
        if not self._has_room(question, len(object_content)):
            log.warning("an answer of more than %s bytes is refused, and nothing of it kept", f"{self.most:,}")
            self._cleanup_push_session(session_id, cleanup_messages=True)
            return False
        stored = bool(super().store_object(run_id, session_id, object_id, object_content))
        if not stored:
            self._has_room(question, -len(object_content))
        return stored

    def _has_room(self, question: str, size: int) -> bool:
        """Whether so many bytes more are allowed; then they are counted."""
        with self._lock:
            if self._kept[question] + size > self.most:
                return False
            self._kept[question] += size
            return True

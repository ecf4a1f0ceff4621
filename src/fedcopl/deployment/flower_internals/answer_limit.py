"""Limits what a site can store at a SuperLink to the size of one reply per request.

A site sends a reply in pieces, one HTTP request each. Flower stores all of them, and the server validates a reply only
when it is complete. This middleware counts the bytes that each key uploads from one request of the server to the next.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
FOR_SITES = "/v1/fleet/"  # of all paths that a SuperLink serves
PULL, UPLOADS = f"{FOR_SITES}pull-messages", (f"{FOR_SITES}push-messages", f"{FOR_SITES}push-object")
KEY = FLEET_HTTP_PUBLIC_KEY_HEADER.encode()
log = logging.getLogger("fedcopl.flower")


class UploadLimit:
    """Refuses what a site uploads beyond `most` bytes in reply to one request, and any single request beyond that.

    An upload counts as soon as it is complete, so that parallel uploads count too, and no longer if it is refused
    further in: nobody can use up the limit of a key that he does not have.
    """

    def __init__(self, app: App, most: int):
        self.app, self.most = app, most
        self._uploaded: Counter[bytes] = Counter()  # key -> bytes since it was last given a request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        if scope["type"] != "http" or not path.startswith(FOR_SITES):
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        key, is_upload = headers.get(KEY, b""), path.startswith(UPLOADS)
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._room(key, is_upload):
            log.warning("a request of %s bytes is refused, unread", f"{int(declared):,}")
            await send({"type": "http.response.start", "status": 413, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        read, counted, status, response = 0, 0, 0, b""

        async def limited() -> Event:
            nonlocal read, counted
            event = await receive()
            read += len(event.get("body", b""))
            if read > self._room(key, is_upload):
                return {"type": "http.disconnect"}
            if is_upload and event["type"] == "http.request" and not event.get("more_body") and not counted:
                counted = read
                self._uploaded[key] += counted
            return event

        async def observed(event: Event) -> None:
            nonlocal status, response
            status = event.get("status", status)
            if path == PULL:
                response += event.get("body", b"")
            await send(event)

        try:
            await self.app(scope, limited, observed)
        finally:
            if status != 200:
                self._uploaded[key] -= counted
            elif path == PULL and _has_request(response):
                self._uploaded[key] = 0
            if not self._uploaded[key]:
                del self._uploaded[key]

    def _room(self, key: bytes, is_upload: bool) -> int:
        return self.most - (self._uploaded[key] if is_upload else 0)


def _has_request(response: bytes) -> bool:
    """Whether a site was given a request of the server's; sites of ours always ask in protobuf."""
    try:
        return bool(PullMessagesResponse.FromString(response).messages_list)
    except Exception:  # protobuf's DecodeError, in a module without types
        return False

"""Flower's SuperLink with two middlewares: `python -m ...flower_internals.superlink PARENT HOST MAX_REPLY ARGUMENTS...`

A SuperLink serves three interfaces on one port: Fleet for the sites, which authenticate with their keys; Control, which
registers keys and starts apps; and Runtime, for its own child processes. The last two do not authenticate, so that
anyone who reaches the port could register a site. `_LocalOnly` opens them to this machine only, and Control only with a
key derived from the secret in the server's folder, so not to other users of the machine.

A site sends a reply in pieces, one HTTP request each. Flower stores all of them, and the server validates a reply only
when it is complete. `_UploadLimit` counts the bytes that each key uploads from one request of the server to the next.

What is stored is in memory, which is Flower's own default: everything that has to survive a restart is in files of the
server, and a database takes three times as long per request.
"""

import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from hmac import compare_digest
from pathlib import Path
from typing import Any

from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink

from ..addresses import AddressNumber, is_this_machine, own_numbers
from ..processes import end_with_parent
from . import CONTROL_HEADER, control_key

_Scope = MutableMapping[str, Any]
_Event = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Event]]
_Send = Callable[[_Event], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]
_FOR_SITES = "/v1/fleet/"  # prefix of the paths of Fleet
_PULL, _UPLOADS = f"{_FOR_SITES}pull-messages", (f"{_FOR_SITES}push-messages", f"{_FOR_SITES}push-object")
_KEY = FLEET_HTTP_PUBLIC_KEY_HEADER.encode()
_FOR_OPERATOR = "/v1/control/"
_SECRET_FILE = "--superexec-auth-secret-file"
_log = logging.getLogger("fedcopl.flower")


class _UploadLimit:
    """Refuses uploads of a site beyond `max_reply` bytes per request of the server, and any larger HTTP request.

    An upload counts as soon as it is complete, so that parallel uploads count too, and no longer if the SuperLink
    rejects it: the limit of a key cannot be used up without that key.
    """

    def __init__(self, app: _App, max_reply: int):
        self.app, self.max_reply = app, max_reply
        self._uploaded: Counter[bytes] = Counter()  # key -> bytes since its last request

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        path = str(scope.get("path", ""))
        if scope["type"] != "http" or not path.startswith(_FOR_SITES):
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        key, is_upload = headers.get(_KEY, b""), path.startswith(_UPLOADS)
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._room(key, is_upload):
            _log.warning("refused a request of %s bytes", f"{int(declared):,}")
            await send({"type": "http.response.start", "status": 413, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        read, counted, status, response = 0, 0, 0, b""

        async def limited() -> _Event:
            nonlocal read, counted
            event = await receive()
            read += len(event.get("body", b""))
            if read > self._room(key, is_upload):
                return {"type": "http.disconnect"}
            if is_upload and event["type"] == "http.request" and not event.get("more_body") and not counted:
                counted = read
                self._uploaded[key] += counted
            return event

        async def observed(event: _Event) -> None:
            nonlocal status, response
            status = event.get("status", status)
            if path == _PULL:
                response += event.get("body", b"")
            await send(event)

        try:
            await self.app(scope, limited, observed)
        finally:
            if status != 200:
                self._uploaded[key] -= counted
            elif path == _PULL and _has_request(response):
                self._uploaded[key] = 0
            if not self._uploaded[key]:
                del self._uploaded[key]

    def _room(self, key: bytes, is_upload: bool) -> int:
        return self.max_reply - (self._uploaded[key] if is_upload else 0)


def _has_request(response: bytes) -> bool:
    """Return whether a response to a site contains a request of the server; our sites always use protobuf."""
    try:
        return bool(PullMessagesResponse.FromString(response).messages_list)
    except Exception:  # protobuf's DecodeError, in a module without types
        return False


class _LocalOnly:
    """Passes requests of sites, and requests from this machine; those to Control need the operator's key."""

    def __init__(self, app: _App, own: Collection[AddressNumber] = (), key: str = ""):
        self.app, self.own, self.key = app, own, key

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http" or self.allows(scope):
            await self.app(scope, receive, send)
            return
        print(f"refused: {scope['path']!r:.80} from {scope.get('client')}", flush=True)
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def allows(self, scope: _Scope) -> bool:
        path, client = str(scope["path"]), scope.get("client")
        if path.startswith(_FOR_SITES) and ".." not in path:
            return True
        if client is None or not is_this_machine(client[0], self.own):
            return False
        if not path.startswith(_FOR_OPERATOR):
            return True
        shown = dict(scope.get("headers") or ()).get(CONTROL_HEADER.encode(), b"")
        return bool(self.key) and compare_digest(shown, self.key.encode())


def _patch_superlink(own: Collection[AddressNumber], key: str, max_reply: int) -> None:
    """Add the middlewares to the SuperLink that this process is about to start."""
    # The three attributes of Starlette's `Middleware`.
    nothing: dict[str, object] = {}
    before = ((_LocalOnly, (own, key), nothing), (_UploadLimit, (max_reply,), nothing))
    setattr(extensions, "get_middleware", lambda: before)  # noqa: B010


def _main() -> None:
    end_with_parent(int(sys.argv.pop(1)))
    secret = Path(sys.argv[sys.argv.index(_SECRET_FILE) + 1]).read_bytes()
    _patch_superlink(own_numbers(sys.argv.pop(1)), control_key(secret), int(sys.argv.pop(1)))
    flower_superlink()


if __name__ == "__main__":
    _main()

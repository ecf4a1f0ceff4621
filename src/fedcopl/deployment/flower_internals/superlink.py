"""Flower's SuperLink with two middlewares: `python -m ...flower_internals.superlink PARENT HOST MAX_REPLY ARGUMENTS...`

A SuperLink serves three interfaces on one port: Fleet for the sites, which authenticate with their keys; Control, which
registers keys and starts apps; and Runtime, for its own child processes. The last two do not authenticate: anyone who
reaches the port could register a site. `_LocalOnly` opens them to this machine only, and Control only with a key that
is derived from the secret in the server's folder, so not to other users of the machine.

A site sends a reply in pieces, one HTTP request each. Flower stores all of them, and the server validates a reply only
when it is complete. `_UploadLimit` counts the bytes that each key uploads from one request of the server to the next.

The SuperLink keeps messages in memory, Flower's default: the server has files for everything that has to survive a
restart, and a database takes three times as long per request.
"""

import logging
import sys
from collections import Counter
from collections.abc import Collection
from hmac import compare_digest
from pathlib import Path

from flwr.proto import fleet_pb2
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..addresses import IPAddress, is_this_machine, own_ip_addresses
from ..processes import end_with_parent
from . import CONTROL_HEADER, control_key

_FOR_SITES = "/v1/fleet/"  # prefix of the paths of Fleet
_PULL, _UPLOADS = f"{_FOR_SITES}pull-messages", (f"{_FOR_SITES}push-messages", f"{_FOR_SITES}push-object")
_KEY = FLEET_HTTP_PUBLIC_KEY_HEADER.encode()
_FOR_OPERATOR = "/v1/control/"
_SECRET_FILE = "--superexec-auth-secret-file"
_log = logging.getLogger("fedcopl.flower")


class _UploadLimit:
    """Refuses uploads of a site beyond `max_reply` bytes per request of the server, and any larger HTTP request.

    An upload counts as soon as it is complete, so that parallel uploads are added up. It no longer counts once the
    SuperLink rejects it: nobody can use up the limit of a key without having that key.
    """

    def __init__(self, app: ASGIApp, max_reply: int):
        self.app, self.max_reply = app, max_reply
        self._uploaded: Counter[bytes] = Counter()  # key -> bytes since the last request to this site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        if scope["type"] != "http" or not path.startswith(_FOR_SITES):
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        key, is_upload = headers.get(_KEY, b""), path.startswith(_UPLOADS)
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._allowed_bytes(key, is_upload):
            _log.warning("refused a request of %s bytes", f"{int(declared):,}")
            await Response(status_code=413)(scope, receive, send)
            return
        received, counted, status, response = 0, 0, 0, b""  # received and counted bytes

        async def receive_limited() -> Message:
            nonlocal received, counted
            event = await receive()
            received += len(event.get("body", b""))
            if received > self._allowed_bytes(key, is_upload):
                return {"type": "http.disconnect"}
            if is_upload and event["type"] == "http.request" and not event.get("more_body") and not counted:
                counted = received
                self._uploaded[key] += counted
            return event

        async def send_observed(event: Message) -> None:
            nonlocal status, response
            status = event.get("status", status)
            if path == _PULL:
                response += event.get("body", b"")
            await send(event)

        try:
            await self.app(scope, receive_limited, send_observed)
        finally:
            if status != 200:
                self._uploaded[key] -= counted
            elif path == _PULL and _has_request(response):
                self._uploaded[key] = 0
            if not self._uploaded[key]:
                del self._uploaded[key]

    def _allowed_bytes(self, key: bytes, is_upload: bool) -> int:
        """Return how many bytes an HTTP request with this key may have."""
        return self.max_reply - (self._uploaded[key] if is_upload else 0)


def _has_request(response: bytes) -> bool:
    """Return whether a response to a site contains a request of the server; our sites use protobuf, never JSON."""
    try:
        return bool(fleet_pb2.PullMessagesResponse.FromString(response).messages_list)
    except Exception:  # protobuf's DecodeError, in a module without types
        return False


class _LocalOnly:
    """Accepts requests to Fleet from any machine, and others from this machine only; Control needs the operator's key.

    `own` are the addresses that count as this machine, besides loopback.
    """

    def __init__(self, app: ASGIApp, own: Collection[IPAddress] = (), key: str = ""):
        self.app, self.own, self.key = app, own, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self.allows(scope):
            await self.app(scope, receive, send)
            return
        print(f"refused: {scope['path']!r:.80} from {scope.get('client')}", flush=True)
        await Response(status_code=404)(scope, receive, send)

    def allows(self, scope: Scope) -> bool:
        path, client = str(scope["path"]), scope.get("client")
        if path.startswith(_FOR_SITES) and ".." not in path:
            return True
        if client is None or not is_this_machine(client[0], self.own):
            return False
        if not path.startswith(_FOR_OPERATOR):
            return True
        given_key = dict(scope.get("headers") or ()).get(CONTROL_HEADER.encode(), b"")
        return bool(self.key) and compare_digest(given_key, self.key.encode())


def _patch_superlink(own: Collection[IPAddress], key: str, max_reply: int) -> None:
    """Add the middlewares to the SuperLink that this process is about to start."""
    middleware = (Middleware(_LocalOnly, own, key), Middleware(_UploadLimit, max_reply))
    setattr(extensions, "get_middleware", lambda: middleware)  # noqa: B010


def _main() -> None:
    end_with_parent(int(sys.argv.pop(1)))
    secret = Path(sys.argv[sys.argv.index(_SECRET_FILE) + 1]).read_bytes()
    _patch_superlink(own_ip_addresses(sys.argv.pop(1)), control_key(secret), int(sys.argv.pop(1)))
    flower_superlink()


if __name__ == "__main__":
    _main()

"""Flower's SuperLink, with one door fewer: `python -m ...flower_internals.superlink PARENT HOST MOST ARGUMENTS...`

SuperLink serves three interfaces on one port: Fleet for the sites, which show their keys; Control, which registers
keys and starts apps; and Runtime, for its own helpers. The last two ask nobody who they are, so whoever reaches the
port could let himself in. Here they are open to this machine only, and Control only to who shows a key made of the
secret that lies in the server's folder: so not to other users of the machine. Runtime gives out tasks for that secret.

A site cannot store replies of more than MOST bytes, see `answer_limit`. What is stored is in memory, as is Flower's own
default: all that has to survive is in files of the server's own, and a database takes three times as long per request.
"""

import sys
from collections.abc import Collection
from hmac import compare_digest
from pathlib import Path

from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink

from ..processes import end_with_parent
from ..wire.addresses import AddressNumber, is_this_machine, own_numbers
from . import CONTROL_HEADER, control_key
from .answer_limit import FOR_SITES, App, Receive, Scope, Send, UploadLimit

FOR_OPERATOR = "/v1/control/"
SECRET_FILE = "--superexec-auth-secret-file"


class OnlySitesFromOutside:
    """Lets a request through if it is a site's or comes from this machine."""

    def __init__(self, app: App, own: Collection[AddressNumber] = (), key: str = ""):
        self.app, self.own, self.key = app, own, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (is_let_in(scope, self.own) and is_operator(scope, self.key)):
            await self.app(scope, receive, send)
            return
        print(f"refused: {scope['path']!r:.80} from {scope.get('client')}", flush=True)
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def is_let_in(scope: Scope, own: Collection[AddressNumber] = ()) -> bool:
    path = str(scope["path"])
    if path.startswith(FOR_SITES) and ".." not in path:
        return True
    client = scope.get("client")
    return client is not None and is_this_machine(client[0], own)


def is_operator(scope: Scope, key: str) -> bool:
    """Whether a request may pass: all but Control's may; those have to show the key."""
    if not str(scope["path"]).startswith(FOR_OPERATOR):
        return True
    shown = dict(scope.get("headers") or ()).get(CONTROL_HEADER.encode(), b"")
    return bool(key) and compare_digest(shown, key.encode())


def patch_superlink(own: Collection[AddressNumber], key: str, most: int) -> None:
    """Put our middleware before that of a SuperLink that is about to start; no reply has more bytes than `most`."""
    # The three parts of Starlette's own `Middleware`, which is all that is looked at.
    nothing: dict[str, object] = {}
    before = ((OnlySitesFromOutside, (own, key), nothing), (UploadLimit, (most,), nothing))
    setattr(extensions, "get_middleware", lambda: before)  # noqa: B010


def main() -> None:
    end_with_parent(int(sys.argv.pop(1)))
    secret = Path(sys.argv[sys.argv.index(SECRET_FILE) + 1]).read_bytes()
    patch_superlink(own_numbers(sys.argv.pop(1)), control_key(secret), int(sys.argv.pop(1)))
    flower_superlink()


if __name__ == "__main__":
    main()

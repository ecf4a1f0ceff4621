"""Flower's SuperLink, with one door fewer: `python -m ...flower_internals.superlink PARENT HOST MOST ARGUMENTS...`

SuperLink serves three interfaces on one port: Fleet for the sites, which show their keys; Control, which registers
keys and starts apps; and Runtime, for its own helpers. The last two ask nobody who they are, so whoever reaches the
port could let himself in. Here they are open to this machine only, and Control only to who shows a key made of the
secret that lies in the server's folder: so not to other users of the machine. Runtime gives out tasks for that secret.

SuperLink also keeps the key of who was unregistered, and takes no key twice: a site whose key was taken out by mistake,
or that has changed its name, could never come back. Here it forgets the key. And it stores no answer of more than MOST
bytes, see `answer_limit`.

What it stores is in memory, as is Flower's own default: all that has to survive is in files of the server's own, and
a database takes three times as long for every request. And its layers hand answers on whole, see `whole_answers`.
"""

import sys
from collections.abc import Collection
from hmac import compare_digest
from pathlib import Path

from flwr.server.superlink.linkstate import linkstate_factory
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink

from ..processes import end_with_parent
from ..wire.addresses import AddressNumber, is_this_machine, own_numbers
from . import CONTROL_HEADER, control_key
from .answer_limit import FOR_SITES, App, NoLargeRequests, Receive, Scope, Send, SparingLinkState
from .whole_answers import patch_middleware

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


class ForgetfulLinkState(SparingLinkState):
    """Forgets the key of who is unregistered."""

    def delete_node(self, owner_aid: str, node_id: int) -> None:
        with self.lock:
            super().delete_node(owner_aid, node_id)
            node = self.nodes[node_id]
            self.node_public_key_to_node_id.pop(node.public_key, None)
            node.public_key = f"unregistered {node_id}".encode()


def patch_superlink(own: Collection[AddressNumber], key: str, most: int) -> None:
    """Put our classes where a SuperLink that is about to start looks for them; no answer has more bytes than `most`."""
    # The three parts of Starlette's own `Middleware`, which is all that is looked at.
    nothing: dict[str, object] = {}
    before = ((OnlySitesFromOutside, (own, key), nothing), (NoLargeRequests, (most,), nothing))
    setattr(extensions, "get_middleware", lambda: before)  # noqa: B010
    SparingLinkState.most = most
    setattr(linkstate_factory, "InMemoryLinkState", ForgetfulLinkState)  # noqa: B010
    patch_middleware()


def main() -> None:
    end_with_parent(int(sys.argv.pop(1)))
    secret = Path(sys.argv[sys.argv.index(SECRET_FILE) + 1]).read_bytes()
    patch_superlink(own_numbers(sys.argv.pop(1)), control_key(secret), int(sys.argv.pop(1)))
    flower_superlink()


if __name__ == "__main__":
    main()

"""Flower's SuperLink, with one door fewer: `python -m ...flower_internals.superlink PARENT HOST ARGUMENTS...`

SuperLink serves three interfaces on one port: Fleet for the sites, which show their keys; Control, which registers
keys and starts apps; and Runtime, for its own helpers. The last two ask nobody who they are, so whoever reaches the
port could let himself in. Here they are open to this machine only.

SuperLink also keeps the key of who was unregistered, and takes no key twice: a site whose key was taken out by mistake,
or that has changed its name, could never come back. Here it forgets the key.
"""

import sys
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from flwr.server.superlink.linkstate import SqlLinkState, linkstate_factory
from flwr.supercore.state.schema.linkstate_models import Node
from flwr.supercore.utils import uint64_to_int64
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink
from sqlalchemy import update

from ..processes import end_with_parent
from ..wire.addresses import AddressNumber, is_this_machine, own_numbers

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
FOR_SITES = "/v1/fleet/"  # of all paths that a SuperLink serves


class OnlySitesFromOutside:
    """Lets a request through if it is a site's or comes from this machine."""

    def __init__(self, app: App, own: Collection[AddressNumber] = ()):
        self.app, self.own = app, own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_let_in(scope, self.own):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def is_let_in(scope: Scope, own: Collection[AddressNumber] = ()) -> bool:
    path = str(scope["path"])
    if path.startswith(FOR_SITES) and ".." not in path:
        return True
    client = scope.get("client")
    return client is not None and is_this_machine(client[0], own)


class ForgetfulLinkState(SqlLinkState):
    """Forgets the key of who is unregistered."""

    def delete_node(self, owner_aid: str, node_id: int) -> None:
        super().delete_node(owner_aid, node_id)
        gone = update(Node).where(Node.node_id == uint64_to_int64(node_id))
        with self.session() as session:
            session.execute(gone.values(public_key=f"unregistered {node_id}".encode()))


def patch_superlink(own: Collection[AddressNumber]) -> None:
    """Put both classes where a SuperLink that is about to start looks for them."""
    # The three parts of Starlette's own `Middleware`, which is all that is looked at.
    setattr(extensions, "get_middleware", lambda: ((OnlySitesFromOutside, (own,), {}),))  # noqa: B010
    setattr(linkstate_factory, "SqlLinkState", ForgetfulLinkState)  # noqa: B010


def main() -> None:
    end_with_parent(int(sys.argv.pop(1)))
    patch_superlink(own_numbers(sys.argv.pop(1)))
    flower_superlink()


if __name__ == "__main__":
    main()

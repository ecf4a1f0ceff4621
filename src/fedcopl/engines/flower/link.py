"""Flower's SuperLink, with one door fewer: `python -m fedcopl.engines.flower.link PARENT ARGUMENTS...`

SuperLink serves three interfaces on one port: Fleet for the sites, which show their keys; Control, which registers
keys and starts apps; and Runtime, for its own helpers. The last two ask nobody who they are, so whoever reaches the
port could let himself in. Here they are open to this machine only.
"""

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any

from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink

from .lifeline import end_with

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
FOR_SITES = "/v1/fleet/"


class OnlySitesFromOutside:
    """Lets a request through if it is a site's or comes from this machine."""

    def __init__(self, app: App):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_let_in(scope):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def is_let_in(scope: Scope) -> bool:
    path = str(scope["path"])
    if path.startswith(FOR_SITES) and ".." not in path:
        return True
    client = scope.get("client")
    return client is not None and ip_address(client[0]).is_loopback


def main() -> None:
    end_with(int(sys.argv.pop(1)))
    # The three parts of Starlette's own `Middleware`, which is all that is looked at.
    setattr(extensions, "get_middleware", lambda: ((OnlySitesFromOutside, (), {}),))  # noqa: B010
    flower_superlink()


if __name__ == "__main__":
    main()

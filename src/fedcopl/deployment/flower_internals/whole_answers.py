"""Starlette's `BaseHTTPMiddleware`, for requests whose answers come in one piece.

A SuperLink has nine layers of it around every request. Each starts tasks of its own and passes the answer on through
a queue, so that an answer could begin before it is whole: half of a SuperLink's computing. Those for sites and for the
server's own task are small and whole. So here a layer calls the next and has the answer when that returns; what is said
to whom, and what a layer does, stays as it is. All other requests go Starlette's way.
"""

from typing import Any

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

from .answer_limit import FOR_SITES, Event, Receive, Scope, Send

FOR_TASKS = "/v1/runtime/"
SHARED = "fedcopl.request"  # of all layers: what one has read, the next need not read again
_through_a_queue = BaseHTTPMiddleware.__call__


async def pass_on_whole(layer: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """What a layer does with a request, in the stead of `BaseHTTPMiddleware.__call__`."""
    if scope["type"] != "http" or not str(scope["path"]).startswith((FOR_SITES, FOR_TASKS)):
        await _through_a_queue(layer, scope, receive, send)
        return
    request = scope.setdefault(SHARED, Request(scope, receive))
    inner = _read_again(request)

    async def call_next(request: Request) -> Response:
        return await _whole_answer(layer.app, scope, inner)

    response = await layer.dispatch_func(request, call_next)
    await response(scope, receive, send)


def _read_again(request: Request) -> Receive:
    """The request for the next layer, also after this one has read it; then whatever comes after it."""
    was_read = False

    async def receive() -> Event:
        nonlocal was_read
        if was_read:
            return await request.receive()
        was_read = True
        return {"type": "http.request", "body": await request.body(), "more_body": False}

    return receive


async def _whole_answer(app: Any, scope: Scope, receive: Receive) -> Response:
    said: list[Event] = []

    async def keep(event: Event) -> None:
        said.append(event)

    await app(scope, receive, keep)
    if not said:
        raise RuntimeError("no answer came")
    body = b"".join(event.get("body", b"") for event in said[1:])
    response = Response(body, said[0]["status"])
    response.raw_headers = list(said[0]["headers"])
    return response


def patch_middleware() -> None:
    setattr(BaseHTTPMiddleware, "__call__", pass_on_whole)  # noqa: B010

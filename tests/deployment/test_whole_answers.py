"""Layers of a SuperLink that hand answers on whole: whoever asks gets what he gets from Starlette's own.

The same of a whole SuperLink: `test_flower_internals.py`.
"""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from fedcopl.deployment.flower_internals import whole_answers
from fedcopl.deployment.flower_internals.answer_limit import NoLargeRequests

SITE, TASK, OPERATOR = "/v1/fleet/x", "/v1/runtime/x", "/v1/control/x"


class Translates(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        try:
            response = await call_next(request)
        except ValueError as error:
            return JSONResponse({"wrong": str(error)}, 418, {"x-said": "no"})
        response.headers["x-said"] = "yes"
        return response


class Reads(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        request.state.read = await request.body()
        return await call_next(request)


class Refuses(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        if request.state.read == b"refuse":
            raise ValueError("refused")
        response = await call_next(request)
        return PlainTextResponse(b"no" + response.body, 403) if request.state.read == b"change" else response


async def echo(request):
    body = await request.body()
    if body == b"break":
        raise ValueError("broken")
    tasks = len(asyncio.all_tasks()) if body == b"tasks" else 0
    return PlainTextResponse(body + request.state.read + str(tasks).encode(), 201, {"x-own": "kept"})


async def in_pieces(request):
    return StreamingResponse(iter([b"a", b"b"]))


def app():
    layers = [Middleware(Translates), Middleware(Reads), Middleware(Refuses)]
    routes = [Route(path, echo, methods=["POST"]) for path in (SITE, TASK, OPERATOR)]
    return Starlette(routes=[*routes, Route("/v1/fleet/pieces", in_pieces, methods=["POST"])], middleware=layers)


@pytest.fixture
def patched(monkeypatch):
    """Puts the patch in when called; it is gone at the end."""
    monkeypatch.setattr(BaseHTTPMiddleware, "__call__", BaseHTTPMiddleware.__call__)
    return whole_answers.patch_middleware


def answer(made, path, body):
    said = TestClient(made, raise_server_exceptions=False).post(path, content=body)
    return said.status_code, sorted(said.headers.items()), said.content


BODIES = [b"", b"hello", b"x" * 300_000, b"refuse", b"break"]


@pytest.mark.parametrize("path", [SITE, TASK, OPERATOR, "/v1/fleet/nothing"])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:8].decode() or "empty")
def test_whoever_asks_gets_the_same(patched, path, body):
    before = answer(app(), path, body)
    patched()
    assert answer(app(), path, body) == before


def test_an_answer_in_pieces_comes_whole(patched):
    patched()
    assert answer(app(), "/v1/fleet/pieces", b"")[2] == b"ab"


def test_a_layer_can_look_into_an_answer(patched):
    patched()
    assert answer(app(), SITE, b"change")[0::2] == (403, b"nochangechange0")


def test_no_layer_starts_a_task(patched):
    before = answer(app(), SITE, b"tasks")[2]
    patched()
    after = answer(app(), SITE, b"tasks")[2]
    assert int(before[10:]) - int(after[10:]) >= 3  # of three layers
    assert answer(app(), OPERATOR, b"tasks")[2] == before  # not on the operator's paths, which have streams


def test_a_request_that_is_too_large_is_not_read_either(patched):
    patched()
    limited = Starlette(routes=app().routes, middleware=[Middleware(NoLargeRequests, 10), *app().user_middleware])
    assert answer(limited, SITE, b"x" * 11)[0] == 413

"""Serving a page on this machine: a free port, an address with a token, until Ctrl-C."""

import hmac
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..data.images import silence_decoders
from ..errors import ConfigError
from ..report import numbers as words
from .access import Keys

HOST = "127.0.0.1"


def serve(make: Callable[[Keys], ASGIApp], *, port: int, token: str, open_it: bool) -> None:
    """Print the address and serve until Ctrl-C, which is raised as KeyboardInterrupt."""
    with closing(_listen(port)) as listening, silence_decoders():
        keys = Keys(token, listening.getsockname()[1])
        settings = uvicorn.Config(
            make(keys),
            lifespan="off",
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        print(keys.address, flush=True)  # the socket listens already: early requests wait
        if open_it:
            webbrowser.open(keys.address)
        uvicorn.Server(settings).run(sockets=[listening])


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # on Windows it would let two programs share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--port {port}: cannot be used: {reason}; without --port any free one is taken") from error
    return listening


def new_token() -> str:
    return secrets.token_urlsafe(24)


def persistent_token(key_file: Path, purpose: str) -> str:
    """Return the same token for the same purpose at each start, so that an open page keeps working.

    It is derived from a secret key of this user. If the key cannot be stored, the token is new.
    """
    with suppress(OSError):
        key_file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            descriptor = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(32))
        key = key_file.read_bytes()
        if len(key) == 32:
            return hmac.new(key, purpose.encode("utf-8", "surrogateescape"), sha256).hexdigest()[:32]
    return new_token()


_FILES = {
    "icon.svg": "image/svg+xml",
    "live.js": "text/javascript",
    "pages.css": "text/css",
    "review.js": "text/javascript",
}


@cache
def _environment() -> Environment:
    jinja = Environment(
        loader=PackageLoader("fedcopl.local_page", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {
        name: getattr(words, name) for name in ("count", "duration", "loss", "percent", "several", "size")
    }
    return jinja


def page(name: str, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(_environment().get_template(name).render(values), status)


def file_routes(*names: str) -> list[Route]:
    """Return one route for each static file; no other file is served."""
    return [_file_route(name) for name in names]


def _file_route(name: str) -> Route:
    content = (files("fedcopl.local_page") / "static" / name).read_bytes()

    def give(request: Request) -> Response:
        return Response(content, media_type=_FILES[name], headers={"cache-control": "no-cache"})

    return Route(f"/static/{name}", give)

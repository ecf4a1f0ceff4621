"""Serve a page on this machine until Ctrl-C, at an address with a token."""

import hmac
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..data.images import silence_decoders
from ..errors import ConfigError
from ..report.run_page import template_environment
from .access import Keys

_HOST = "127.0.0.1"


def serve(build: Callable[[Keys], ASGIApp], *, port: int, open_it: bool, token: str | None = None) -> None:
    """Print the address of the application that `build` returns, and serve it until Ctrl-C.

    Args:
        build: Builds the application.
        port: Port on 127.0.0.1; 0: any free port.
        open_it: Whether to open the page in the browser.
        token: Access token; None: a new token.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    with closing(_listen(port)) as listening, silence_decoders():
        keys = Keys(token or secrets.token_urlsafe(24), listening.getsockname()[1])
        settings = uvicorn.Config(
            build(keys),
            lifespan="off",
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        print(keys.address, flush=True)  # the socket already listens, so early requests wait
        if open_it:
            webbrowser.open(keys.address)
        uvicorn.Server(settings).run(sockets=[listening])


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # on Windows two programs could then share a port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((_HOST, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--port {port}: cannot be used: {reason}; use another port or leave out --port") from error
    return listening


def persistent_token(key_file: Path, purpose: str) -> str:
    """Return a token derived from `purpose` and a secret key of this user, so that an open page survives a restart.

    If the key cannot be stored, the token is new at each start.
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
    return secrets.token_urlsafe(24)


_MEDIA_TYPES = {
    "icon.svg": "image/svg+xml",
    "live.js": "text/javascript",
    "pages.css": "text/css",
    "review.js": "text/javascript",
}


def page(name: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a response with a rendered template."""
    template = template_environment("fedcopl.local_page", "templates").get_template(name)
    return HTMLResponse(template.render(values), status)


def file_route(name: str) -> Route:
    """Return the route of one static file."""
    content = (files("fedcopl.local_page") / "static" / name).read_bytes()

    def respond(request: Request) -> Response:
        return Response(content, media_type=_MEDIA_TYPES[name], headers={"cache-control": "no-cache"})

    return Route(f"/static/{name}", respond)

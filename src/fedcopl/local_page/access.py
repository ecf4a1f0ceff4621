"""Access control of local pages: only a browser with the token, on this machine, and only requests of the page.

| threat | defence |
|---|---|
| another user or program on this machine | the printed address has a token, exchanged for a cookie |
| requests of another web site | SameSite=Strict cookie; Origin and a form key on every POST; Sec-Fetch-Site |
| a web site with a name that resolves to 127.0.0.1 (DNS rebinding) | Host must be a name of this machine |
| script injection | all text is escaped, and the content security policy allows only scripts of this package |
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_FORM = "application/x-www-form-urlencoded"
_MAX_FORM = 10_000  # bytes
_POLICY = (
    "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer" the page's forms would have no Origin
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_REDIRECT = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>fedcopl</title>
<meta http-equiv="refresh" content="0; url=/"><link rel="icon" href="/static/icon.svg"></head>
<body><p><a href="/">Continue</a></p></body></html>"""


@dataclass(frozen=True)
class Keys:
    """The token of a page's address, and the keys derived from it."""

    token: str
    port: int

    @property
    def cookie(self) -> str:
        """Name of the cookie. Browsers send cookies to every port, so each port needs its own name."""
        return f"fedcopl-{self.port}"

    @property
    def form_key(self) -> str:
        return sha256(f"form {self.token}".encode()).hexdigest()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={self.token}"


class AccessControl:
    """Middleware that checks every request and adds security headers to every response.

    Without `writes` it refuses POST requests.
    """

    def __init__(self, app: ASGIApp, keys: Keys, *, writes: bool, policy: str = _POLICY):
        self._app, self._keys = app, keys
        self._headers = _HEADERS | {"content-security-policy": policy}
        self._methods = {"GET", "HEAD", "POST"} if writes else {"GET", "HEAD"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no web sockets, no lifespan events
            return
        request = Request(scope)
        respond = self._check(request) or self._app
        await respond(scope, receive, _with_headers(send, self._headers))

    def _check(self, request: Request) -> Response | None:
        """Return a refusal, or the page that exchanges a token for a cookie; None if the request is allowed."""
        if _host_name(request) not in _HOSTS:
            return PlainTextResponse("This page is for this machine only: use 127.0.0.1 in the address.\n", 421)
        if request.method not in self._methods:
            return PlainTextResponse(f"This page does not accept {request.method} requests.\n", 405)
        if "token" in request.query_params:
            return self._exchange_token(request)
        if not _equal(request.cookies.get(self._keys.cookie, ""), self._keys.token):
            return PlainTextResponse("Open the address that fedcopl printed: it contains the access token.\n", 403)
        if _is_foreign(request):
            return PlainTextResponse("This request comes from another web site.\n", 403)
        return None

    def _exchange_token(self, request: Request) -> Response:
        """Exchange the token in the address for a cookie.

        Uses a page instead of a redirect: after a click in a mail, a redirect would count as cross-site.
        """
        if not _equal(request.query_params["token"], self._keys.token):
            return PlainTextResponse("The token is wrong or expired: open the address that fedcopl printed.\n", 403)
        page = HTMLResponse(_REDIRECT)
        page.set_cookie(self._keys.cookie, self._keys.token, httponly=True, samesite="strict", path="/")
        return page


async def read_form(request: Request, keys: Keys) -> Mapping[str, str] | None:
    """Return the fields of a posted form; None if it is too long, of another type, or without the page's form key."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return None
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM:
            return None
    try:
        fields = {name: values[-1] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}
    except ValueError:
        return None
    return fields if _equal(fields.get("key", ""), keys.form_key) else None


def _host_name(request: Request) -> str:
    """Return the Host header without the port, which differs behind a tunnel."""
    host = request.headers.get("host", "").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _is_foreign(request: Request) -> bool:
    """Return whether a request is cross-site; a POST must have the page's Origin."""
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return True
    own_origin = f"http://{request.headers.get('host', '')}"
    return request.method == "POST" and request.headers.get("origin", "") != own_origin


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Return a `send` that adds these headers to the response, and forbids caching unless the response allows it."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            response_headers = MutableHeaders(scope=message)
            response_headers.update(headers)
            response_headers.setdefault("cache-control", "no-store")
        await send(message)

    return send_with_headers

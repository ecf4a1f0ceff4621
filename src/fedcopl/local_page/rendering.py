"""Pages from templates, and the few files they need. Everything is read from the package, by fixed names."""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from ..report import numbers as words

FILES = {
    "icon.svg": "image/svg+xml",
    "pages.css": "text/css",
    "review.js": "text/javascript",
    "watch.js": "text/javascript",
}


@cache
def environment() -> Environment:
    made = Environment(
        loader=ChoiceLoader([PackageLoader("fedcopl.local_page", "templates"), PackageLoader("fedcopl.report", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {name: getattr(words, name) for name in ("count", "duration", "loss", "percent", "several", "size")}
    return made


def page(name: str, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(environment().get_template(name).render(values), status)


def file_routes(*names: str) -> list[Route]:
    """One route for each file; there is no other way to a file."""
    return [_file_route(name) for name in names]


def _file_route(name: str) -> Route:
    content = (files("fedcopl.local_page") / "static" / name).read_bytes()

    def give(request: Request) -> Response:
        return Response(content, media_type=FILES[name], headers={"cache-control": "no-cache"})

    return Route(f"/static/{name}", give)

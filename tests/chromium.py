"""A real headless Chromium for tests of pages.

A test module imports both fixtures, and marks its tests:

    from chromium import PHONE, browser, overflow, visit  # noqa: F401

    @pytest.mark.browser
    def test_it_renders(visit):
        page = visit(path_or_url, PHONE)
        assert page.title() == "..."

`visit` opens a page and, when the test is over, fails it if the page wrote an error to the console or asked for
anything that could not be had. A test that expects such a thing says so: `visit.visitors[-1].forgive("404")`.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Request, Response, sync_playwright

import waiting

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
LIGHT: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"}
DARK: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"}
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "color_scheme": "light",
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
PATIENCE = 1000 * waiting.PATIENCE  # ms


# Not for the whole session: while it is open, playwright keeps this thread's asyncio loop, and `asyncio.run` in any
# other test would fail. Opening it takes a second.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a module; a machine without Chromium fails, it does not skip."""
    executable = shutil.which("chromium")
    assert executable, "chromium is not installed; leave these tests out with -m 'not browser'"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS, timeout=PATIENCE)
        yield opened
        opened.close()


@dataclass
class Visitor:
    """One page in a context of its own, and all that it asked for and complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", self._failed)
        self.page.on("response", self._answered)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # a page that was left, or a download: not a fault
            self.errors.append(f"failed: {request.method} {request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.errors.append(f"answered {response.status}: {response.request.method} {response.url}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"console {message.type}: {message.text}")

    def forgive(self, part: str) -> None:
        """Take out the errors that hold this text; there must be one."""
        left = [error for error in self.errors if part not in error]
        assert len(left) < len(self.errors), f"nothing about {part!r} in {self.errors}"
        self.errors[:] = left


class Visits:
    """Opens pages, each in a fresh context (no cookies, no cache), and closes them at the end of the test."""

    def __init__(self, browser: Browser):
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.visitors: list[Visitor] = []

    def __call__(self, place: Path | str, options: dict[str, Any] = LIGHT, **more: Any) -> Page:
        """Open a file or an address. `more` goes to playwright's new_context: `java_script_enabled=False`, ..."""
        page = self.blank(options, **more)
        page.goto(place.resolve().as_uri() if isinstance(place, Path) else place, wait_until="load")
        return page

    def blank(self, options: dict[str, Any] = LIGHT, **more: Any) -> Page:
        """An empty page, for a test that wants to prepare it before it goes anywhere."""
        context = self._browser.new_context(**{**options, **more})
        context.set_default_timeout(PATIENCE)
        context.set_default_navigation_timeout(PATIENCE)
        self._contexts.append(context)
        visitor = Visitor(context.new_page())
        self.visitors.append(visitor)
        return visitor.page

    @property
    def errors(self) -> list[str]:
        return [error for visitor in self.visitors for error in visitor.errors]

    @property
    def requests(self) -> list[str]:
        return [request for visitor in self.visitors for request in visitor.requests]

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visits]:
    """Opens pages; afterwards there must have been no error on any of them."""
    visits = Visits(browser)
    yield visits
    errors = list(visits.errors)
    visits.close()
    assert errors == []


def until(page: Page, expression: str, argument: Any = None) -> None:
    """Wait until it is true. Playwright's own waiting would use `eval`, which these pages forbid."""
    end = time.monotonic() + waiting.PATIENCE
    while time.monotonic() < end:
        with suppress(Error):  # the page is just being replaced by another
            if page.evaluate(expression, argument):
                return
        page.wait_for_timeout(20)
    raise AssertionError(f"never true: {expression}, {argument}")


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window: 0 when nothing scrolls sideways."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


CONTRAST = """
(selector) => {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext('2d', {willReadFrequently: true});
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const over = (top, below) => {
    const share = top[3] / 255;
    return [0, 1, 2].map((i) => top[i] * share + below[i] * (1 - share)).concat(255);
  };
  const ground = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    const scheme = getComputedStyle(document.documentElement).colorScheme;
    const dark = scheme.includes('dark') && matchMedia('(prefers-color-scheme: dark)').matches;
    return layers.reverse().reduce((below, top) => over(top, below), dark ? [18, 18, 18, 255] : [255, 255, 255, 255]);
  };
  const bright = (colour) => {
    const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = colour.slice(0, 3).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [];
  for (const element of document.querySelectorAll(selector)) {
    const own = [...element.childNodes].filter((n) => n.nodeType === Node.TEXT_NODE && n.textContent.trim());
    if (!own.length || !element.checkVisibility() || element.closest('.visually-hidden, [aria-hidden=true]')) continue;
    const style = getComputedStyle(element), below = ground(element);
    const colour = over(rgba(element instanceof SVGElement ? style.fill : style.color), below);
    const [high, low] = [bright(colour), bright(below)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    faint.push({ratio, text: own[0].textContent.trim().slice(0, 40), tag: element.tagName});
  }
  return faint.sort((a, b) => a.ratio - b.ratio);
}
"""


def contrasts(page: Page, selector: str = "body *") -> list[dict[str, Any]]:
    """Each text on the page with its contrast to what is below it (WCAG: 4.5 is legible), the faintest first."""
    return list(page.evaluate(CONTRAST, selector))

"""A real headless Chromium for tests of pages.

A test module imports both fixtures, and marks its tests:

    from chromium import PHONE, browser, overflow, visit  # noqa: F401

    @pytest.mark.browser
    def test_it_renders(visit):
        page = visit(path_or_url, PHONE)
        assert page.title() == "..."

`visit` opens a page. At the end of the test it fails if a page logged an error or a warning to the console, or if a
request failed. A test that expects such an error removes it: `visit.logs[-1].ignore_error("404")`.
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
WAIT_LIMIT = 1000 * waiting.WAIT_LIMIT  # ms


# Not of session scope: while a browser is open, playwright keeps this thread's asyncio loop, and `asyncio.run` in
# every other test would fail. Opening a browser takes a second.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a module; a machine without Chromium fails, it does not skip."""
    executable = shutil.which("chromium")
    assert executable, "chromium is not installed; leave these tests out with -m 'not browser'"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS, timeout=WAIT_LIMIT)
        yield opened
        opened.close()


@dataclass
class PageLog:
    """A page in its own browser context, with the addresses it requested and its errors."""

    page: Page
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", self._log_failure)
        self.page.on("response", self._log_response)
        self.page.on("console", self._log_console)
        self.page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))

    def _log_failure(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # a download, or a request of a page that was left
            self.errors.append(f"failed: {request.method} {request.url}: {request.failure}")

    def _log_response(self, response: Response) -> None:
        if response.status >= 400:
            self.errors.append(f"status {response.status}: {response.request.method} {response.url}")

    def _log_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"console {message.type}: {message.text}")

    def ignore_error(self, text: str) -> None:
        """Remove the errors that contain a text; there must be at least one."""
        others = [error for error in self.errors if text not in error]
        assert len(others) < len(self.errors), f"{text!r} is not in {self.errors}"
        self.errors[:] = others


class PageOpener:
    """Opens pages, each in a new context (no cookies, no cache), and closes them at the end of the test."""

    def __init__(self, browser: Browser):
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.logs: list[PageLog] = []

    def __call__(self, address: Path | str, options: dict[str, Any] = LIGHT, **more: Any) -> Page:
        """Open a file or an address; `more` goes to playwright's new_context, such as `java_script_enabled=False`."""
        page = self.blank(options, **more)
        page.goto(address.resolve().as_uri() if isinstance(address, Path) else address, wait_until="load")
        return page

    def blank(self, options: dict[str, Any] = LIGHT, **more: Any) -> Page:
        """Open an empty page, for a test that sets handlers before the page loads an address."""
        context = self._browser.new_context(**{**options, **more})
        context.set_default_timeout(WAIT_LIMIT)
        context.set_default_navigation_timeout(WAIT_LIMIT)
        self._contexts.append(context)
        log = PageLog(context.new_page())
        self.logs.append(log)
        return log.page

    @property
    def errors(self) -> list[str]:
        return [error for log in self.logs for error in log.errors]

    @property
    def requests(self) -> list[str]:
        return [request for log in self.logs for request in log.requests]

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[PageOpener]:
    """Open pages; fail at the end of the test if one of them logged an error."""
    opener = PageOpener(browser)
    yield opener
    errors = list(opener.errors)
    opener.close()
    assert errors == []


def until(page: Page, expression: str, argument: Any = None) -> None:
    """Wait until an expression is true. Playwright's `wait_for_function` uses `eval`, which the pages forbid."""
    end = time.monotonic() + waiting.WAIT_LIMIT
    while time.monotonic() < end:
        with suppress(Error):  # raised while the page is being replaced
            if page.evaluate(expression, argument):
                return
        page.wait_for_timeout(20)
    raise AssertionError(f"never true: {expression}, {argument}")


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than its window; 0: no horizontal scrolling."""
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
    const alpha = top[3] / 255;
    return [0, 1, 2].map((i) => top[i] * alpha + below[i] * (1 - alpha)).concat(255);
  };
  const background = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    const scheme = getComputedStyle(document.documentElement).colorScheme;
    const dark = scheme.includes('dark') && matchMedia('(prefers-color-scheme: dark)').matches;
    return layers.reverse().reduce((below, top) => over(top, below), dark ? [18, 18, 18, 255] : [255, 255, 255, 255]);
  };
  const luminance = (colour) => {
    const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = colour.slice(0, 3).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = [];
  for (const element of document.querySelectorAll(selector)) {
    const own = [...element.childNodes].filter((n) => n.nodeType === Node.TEXT_NODE && n.textContent.trim());
    if (!own.length || !element.checkVisibility() || element.closest('.visually-hidden, [aria-hidden=true]')) continue;
    const style = getComputedStyle(element), below = background(element);
    const colour = over(rgba(element instanceof SVGElement ? style.fill : style.color), below);
    const [high, low] = [luminance(colour), luminance(below)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    texts.push({ratio, text: own[0].textContent.trim().slice(0, 40), tag: element.tagName});
  }
  return texts.sort((a, b) => a.ratio - b.ratio);
}
"""


def contrasts(page: Page, selector: str = "body *") -> list[dict[str, Any]]:
    """Return the texts of a page with their contrast ratio to the background (WCAG: at least 4.5), lowest first."""
    return list(page.evaluate(CONTRAST, selector))

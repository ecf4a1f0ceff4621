"""Take screenshots of pages with a headless Chromium: docs/images/review.png, report.png and comparison.png.

    .venv/bin/python tools/page_pictures.py RUN CLIENT [OTHER...]

RUN is the folder of a finished run. A copy of it is reviewed, so that the folder does not change; the first images of
the random sample are confirmed. With the folders of other runs, the comparison of RUN with them is a third picture.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from fedcopl.report.comparison import ComparedRun, render_comparison
from fedcopl.run.folder import read_so_far

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = {"width": 1280, "height": 1000}
CONFIRMED = 24


@contextmanager
def served(*words: str) -> Iterator[str]:
    """Start a command that serves a page; yield the address that it prints, and stop it at the end."""
    with subprocess.Popen([sys.executable, "-m", "fedcopl", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def confirm(page: Page, images: int) -> None:
    for _ in range(images):
        with page.expect_navigation():
            page.click(".guess.first")


def main(run: Path, client: str, *others: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        copy = shutil.copytree(run, Path(scratch) / run.name)
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport=SIZE, color_scheme="light")
        with served("review", str(copy), "--client", client) as address:
            page.goto(address)
            confirm(page, CONFIRMED)
            page.wait_for_load_state("networkidle")
            page.screenshot(path=IMAGES / "review.png")
        page.goto((run / "report.html").resolve().as_uri())
        page.screenshot(path=IMAGES / "report.png")
        if others:
            comparison = Path(scratch) / "comparison.html"
            runs = [ComparedRun(folder, read_so_far(folder)) for folder in (run, *others)]
            comparison.write_text(render_comparison(runs), encoding="utf-8")
            page.goto(comparison.as_uri())
            page.screenshot(path=IMAGES / "comparison.png")
        chromium.close()


if __name__ == "__main__":
    if len(sys.argv) < 3 or re.match("-", sys.argv[1]):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2], *map(Path, sys.argv[3:]))

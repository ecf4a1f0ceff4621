"""Pictures of the pages for the documents, by a headless Chromium: docs/images/review.png and report.png.

    .venv/bin/python tools/page_pictures.py RUN CLIENT

RUN is the folder of a finished run; a copy of it is reviewed, so that nothing is written into it. The first images of
the random sample are confirmed by keyboard, as an expert would.
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

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = {"width": 1280, "height": 1000}
CONFIRMED = 24


@contextmanager
def served(*words: str) -> Iterator[str]:
    """The address that a command prints, until the picture is taken."""
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


def main(run: Path, client: str) -> None:
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
        chromium.close()


if __name__ == "__main__":
    if len(sys.argv) != 3 or re.match("-", sys.argv[1]):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2])

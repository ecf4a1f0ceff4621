"""Build the documents as a site that works from a folder without a network: build/site/index.html.

.venv/bin/python tools/docs_site.py            # `make docs`

README.md becomes the first page, notebooks become pages with what they printed when they were last run; every page that
mkdocs.yml does not name is still there, under what links to it. A link that leads nowhere ends the build.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
FETCHED = "https://unpkg.com/iframe-worker/shim"
AT_THE_ROOT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def main() -> int:
    gather(PAGES)
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    code = subprocess.run(command, cwd=ROOT, env=quiet).returncode
    keep_at_home(SITE)
    return code


def keep_at_home(site: Path) -> None:
    """The theme fetches one script from the network where pages are files: it lies beside them instead."""
    for page in site.rglob("*.html"):
        way = "../" * (len(page.relative_to(site).parts) - 1)
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(FETCHED, f"{way}javascripts/iframe-worker.js"), encoding="utf-8")


def gather(pages: Path) -> None:
    """All pages in one folder, as mkdocs wants them."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    for name in AT_THE_ROOT:
        text = as_in_docs((ROOT / name).read_text(encoding="utf-8"))
        (pages / ("index.md" if name == "README.md" else name)).write_text(text, encoding="utf-8")
    for page in pages.rglob("*.md"):
        page.write_text(without_files(page.read_text(encoding="utf-8")), encoding="utf-8")
    for notebook in pages.rglob("*.ipynb"):
        notebook.with_suffix(".md").write_text(
            as_page(json.loads(notebook.read_text(encoding="utf-8"))), encoding="utf-8"
        )
    (pages / "decisions" / "index.md").write_text(decisions(pages / "decisions"), encoding="utf-8")


def as_in_docs(text: str) -> str:
    """A page of the root with its links as they are from within docs/."""
    return text.replace("](docs/decisions)", "](decisions/index.md)").replace("](docs/", "](")


def without_files(text: str) -> str:
    """Links to folders of the repository and to notebooks: the one are no pages, the others have become some."""
    text = re.sub(r"\[([^\]]+)\]\((?:\.\./)*(?:experiments|benchmarks|LICENSE)[^)]*\)", r"\1", text)
    text = text.replace("](../README.md)", "](index.md)")
    return re.sub(r"\]\(([\w/.-]+)\.ipynb\)", r"](\1.md)", text)


def as_page(notebook: dict) -> str:
    """Its text, its code, and what that printed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [f"```text\n{text}\n```" for text in map(printed, cell.get("outputs", ())) if text]
    return "\n\n".join(parts) + "\n"


def printed(output: dict) -> str:
    text = output.get("text") or output.get("data", {}).get("text/plain", "")
    return "".join(text).rstrip()


def decisions(folder: Path) -> str:
    titles = (
        (page.name, page.read_text(encoding="utf-8").splitlines()[0].lstrip("# "))
        for page in sorted(folder.glob("0*.md"))
    )
    return "# Decisions\n\n" + "\n".join(f"- [{title}]({name})" for name, title in titles) + "\n"


if __name__ == "__main__":
    sys.exit(main())

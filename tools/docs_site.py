"""Build the documents as a site that works from a folder without a network: build/site/index.html.

.venv/bin/python tools/docs_site.py            # `make docs`

docs/index.md is the home page. Notebooks become pages with the output of their last run. Decisions and notebooks are
not in the navigation; other pages link them. A broken link ends the build.
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
AT_THE_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md")


def main() -> int:
    gather(PAGES)
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    code = subprocess.run(command, cwd=ROOT, env=quiet).returncode
    keep_at_home(SITE)
    return code


def keep_at_home(site: Path) -> None:
    """Replace the one script that the theme loads from the network by a local copy."""
    for page in site.rglob("*.html"):
        way = "../" * (len(page.relative_to(site).parts) - 1)
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(FETCHED, f"{way}javascripts/iframe-worker.js"), encoding="utf-8")


def gather(pages: Path) -> None:
    """Copy all pages into one folder, as mkdocs requires."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    for name in AT_THE_ROOT:
        text = as_in_docs((ROOT / name).read_text(encoding="utf-8"))
        (pages / name).write_text(text, encoding="utf-8")
    for page in pages.rglob("*.md"):
        page.write_text(without_files(page.read_text(encoding="utf-8")), encoding="utf-8")
    for notebook in pages.rglob("*.ipynb"):
        notebook.with_suffix(".md").write_text(
            as_page(json.loads(notebook.read_text(encoding="utf-8"))), encoding="utf-8"
        )
    for page in pages.glob("decisions/0*.md"):
        page.write_text(f"---\nsearch:\n  boost: 0.2\n---\n{page.read_text(encoding='utf-8')}", encoding="utf-8")
    (pages / "decisions" / "index.md").write_text(decisions(pages / "decisions"), encoding="utf-8")


def as_in_docs(text: str) -> str:
    """Return a page of the root with links relative to docs/."""
    return text.replace("](docs/", "](")


def without_files(text: str) -> str:
    """Return a page without links to files of the repository, and with links to notebooks as links to their pages."""
    text = re.sub(r"\[([^\]]+)\]\((?:\.\./)*(?:experiments|benchmarks|LICENSE)[^)]*\)", r"\1", text)
    text = re.sub(r"\]\(\.\./((?:CONTRIBUTING|CHANGELOG)\.md)\)", r"](\1)", text)
    text = text.replace("](decisions)", "](decisions/index.md)")
    return re.sub(r"\]\(([\w/.-]+)\.ipynb\)", r"](\1.md)", text)


def as_page(notebook: dict) -> str:
    """Return a notebook as Markdown: text, code, and printed output."""
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
    texts = ((page.name, page.read_text(encoding="utf-8")) for page in sorted(folder.glob("0*.md")))
    titles = ((name, text.partition("# ")[2].splitlines()[0]) for name, text in texts)
    return "# Decisions\n\n" + "\n".join(f"- [{title}]({name})" for name, title in titles) + "\n"


if __name__ == "__main__":
    sys.exit(main())

"""Build the documents as a site that works from a folder without a network: build/site/index.html.

.venv/bin/python tools/docs_site.py            # `make docs`

docs/index.md is the home page. Notebooks become pages with the output of their last run. Decisions and notebooks are
not in the navigation; other pages link them. A broken link fails the build.
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
SHIM = "https://unpkg.com/iframe-worker/shim"
ROOT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")


def main() -> int:
    collect_pages(PAGES)
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    code = subprocess.run(command, cwd=ROOT, env=quiet).returncode
    use_local_script(SITE)
    return code


def use_local_script(site: Path) -> None:
    """Replace the only script that the theme loads from the network by a local copy."""
    for page in site.rglob("*.html"):
        prefix = "../" * (len(page.relative_to(site).parts) - 1)
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(SHIM, f"{prefix}javascripts/iframe-worker.js"), encoding="utf-8")


def collect_pages(pages: Path) -> None:
    """Copy all pages into one folder, as mkdocs requires."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    for name in ROOT_PAGES:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        (pages / name).write_text(text, encoding="utf-8")
    for page in pages.rglob("*.md"):
        page.write_text(site_links(page.read_text(encoding="utf-8")), encoding="utf-8")
    for notebook in pages.rglob("*.ipynb"):
        text = notebook_page(json.loads(notebook.read_text(encoding="utf-8")))
        notebook.with_suffix(".md").write_text(text, encoding="utf-8")
    for page in pages.glob("decisions/0*.md"):
        page.write_text(f"---\nsearch:\n  boost: 0.2\n---\n{page.read_text(encoding='utf-8')}", encoding="utf-8")
    (pages / "decisions" / "index.md").write_text(list_of_decisions(pages / "decisions"), encoding="utf-8")


def site_links(text: str) -> str:
    """Remove links to files of the repository; change links to notebooks and folders to links to their pages."""
    text = re.sub(r"\[([^\]]+)\]\((?:\.\./)*(?:experiments|benchmarks|LICENSE)[^)]*\)", r"\1", text)
    text = re.sub(r"\]\(\.\./((?:CONTRIBUTING|CHANGELOG)\.md)\)", r"](\1)", text)
    text = text.replace("](decisions)", "](decisions/index.md)")
    return re.sub(r"\]\(([\w/.-]+)\.ipynb\)", r"](\1.md)", text)


def notebook_page(notebook: dict) -> str:
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


def list_of_decisions(folder: Path) -> str:
    texts = ((page.name, page.read_text(encoding="utf-8")) for page in sorted(folder.glob("0*.md")))
    titles = ((name, text.partition("# ")[2].splitlines()[0]) for name, text in texts)
    return "# Decisions\n\n" + "\n".join(f"- [{title}]({name})" for name, title in titles) + "\n"


if __name__ == "__main__":
    sys.exit(main())

"""The documents as a site, the generated page of commands, and the notebooks."""

import json

import pytest

import commands_page
import docs_site
from documents import ROOT, assert_same_output, page, stripped_lines

SEARCHES = {  # a search word in lower case: a section that must contain it
    "cite": "index.html#cite",
    "resume": "errors.html#resume-after-an-error",
    "heic": "install.html#extras",
    "gpu": "install.html#gpu",
}
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
def test_the_page_of_commands_is_up_to_date():
    assert page("docs/commands.md") == commands_page.page(), "run tools/commands_page.py"


@pytest.mark.slow
def test_every_page_is_in_the_navigation_of_the_site():
    named = page("mkdocs.yml")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("*.md")]
    assert [name for name in pages if f" {name}\n" not in named] == []


def test_a_notebook_becomes_a_page():
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": [{"data": {"text/plain": ["2"]}}]},
        {"cell_type": "code", "source": ["x = 1"], "outputs": []},
    ]
    made = docs_site.notebook_page({"cells": cells})
    assert made == "# Title\ntext\n\n```python\n1 + 1\n```\n\n```text\n2\n```\n\n```python\nx = 1\n```\n"


def test_links_to_files_become_links_of_the_site():
    assert docs_site.site_links("[b](decisions)") == "[b](decisions/index.md)"
    assert docs_site.site_links("[the code](../experiments), [n](notebooks/a.ipynb)") == "the code, [n](notebooks/a.md)"


@pytest.mark.slow
def test_the_site_is_built_and_loads_nothing_from_the_network(tmp_path):
    """mkdocs itself fails for a broken link."""
    assert docs_site.main() == 0
    site = ROOT / "build" / "site"
    first = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="tutorial.html"' in first
    for external in ('src="http', "src=http", 'rel="stylesheet" href="http', "fonts.googleapis", "unpkg.com"):
        assert external not in first
    assert (site / "javascripts" / "iframe-worker.js").is_file()
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    sections = json.loads(index[index.index("{") : index.rindex("}") + 1])["docs"]
    for word, expected in SEARCHES.items():
        locations = {
            section["location"] for section in sections if word in f"{section['title']} {section['text']}".lower()
        }
        assert expected in locations, word


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_outputs_of_a_notebook_are_reproduced(path, tmp_path):
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    shown = [docs_site.notebook_page({"cells": [json.loads(json.dumps(cell))]}) for cell in notebook.cells]
    nbclient.NotebookClient(notebook, timeout=1800, kernel_name="python3").execute(cwd=str(tmp_path))
    for cell in notebook.cells:
        cell["outputs"] = [output for output in cell.get("outputs", ()) if output.get("name") != "stderr"]
    for cell, before in zip(notebook.cells, shown, strict=True):
        assert_same_output(stripped_lines(docs_site.notebook_page({"cells": [cell]})), stripped_lines(before))


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["adding-a-method", "first-steps"]

"""`--as-published` is what docs/as-published.md says, and the page leaves no setting out."""

import json
import re
from pathlib import Path

import pytest

from fedcopl.config import AS_PUBLISHED, RunConfig, as_published, by_full_name, override

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| `(?P<name>[\w.]+)` \| (?P<published>[^|]+) \| (?P<default>[^|]+) \|", re.M)
# Which images and which model, where and how fast it is computed, what is measured and hidden: not of the method.
SECTIONS = ("labels", "priors", "train", "sharing")
MORE = {
    "rounds",
    *(f"data.{name}" for name in ("clients", "partition", "beta", "classes_per_client", "min_train")),
    *(f"model.{name}" for name in ("precision", "visual_prompts", "visual_depth", "text_prompts")),
}
DEFAULTS = by_full_name(RunConfig().model_dump())
PUBLISHED = by_full_name(RunConfig.from_mapping(as_published(), "published").model_dump())


def rows():
    page = (DOCS / "as-published.md").read_text(encoding="utf-8")
    return {row["name"]: (row["published"].strip(), row["default"].strip()) for row in ROW.finditer(page)}


def written(value):
    return json.dumps(value) if isinstance(value, bool) else str(value) or "none"


@pytest.mark.parametrize("name", rows())
def test_the_page_says_what_is_set(name):
    published, default = rows()[name]
    assert (published, default.strip("*")) == (written(PUBLISHED[name]), written(DEFAULTS[name]))


def test_bold_is_exactly_what_as_published_changes():
    bold = {name for name, (_, default) in rows().items() if default.startswith("**")}
    assert bold == set(AS_PUBLISHED) == {name for name in DEFAULTS if DEFAULTS[name] != PUBLISHED[name]}


def test_no_setting_of_the_method_is_left_out():
    wanted = MORE | {name for name in DEFAULTS if name.split(".")[0] in SECTIONS}
    assert set(rows()) == wanted, "docs/as-published.md: a row for each, with what was published and why"


def test_the_command_line_sets_the_same():
    pairs = [f"{name}={json.dumps(value)}" for name, value in AS_PUBLISHED.items()]
    assert override({}, pairs) == as_published()


CLAIM, LINK = re.compile(r"as[ -]published", re.I), re.compile(r"\]\((docs/|\.\./)?as-published\.md[)#]")
EXEMPT = {
    "as-published.md",  # is what the others link
    "api.md",  # made from docstrings, which have no links
    "commands.md",  # made from the help of commands, which names the page in words
}
PAGES = [DOCS.parent / "README.md", *sorted(page for page in DOCS.rglob("*.md") if page.name not in EXEMPT)]
CLAIMING = [page for page in PAGES if CLAIM.search(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", CLAIMING, ids=lambda page: page.name)
def test_who_speaks_of_as_published_says_what_that_is(page):
    assert LINK.search(page.read_text(encoding="utf-8")), f"{page}: link docs/as-published.md"


def test_many_pages_speak_of_it():
    assert {"README.md", "methods.md", "priors.md", "results.md", "settings.md"} <= {page.name for page in CLAIMING}

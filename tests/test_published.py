"""docs/as-published.md lists all settings of the method, with the values that `--as-published` sets."""

import json
import re
from pathlib import Path

import pytest

from fedcopl.config import AS_PUBLISHED, RunConfig, as_published, by_full_name, override

DOCS = Path(__file__).parents[1] / "docs"
ROW = re.compile(r"^\| `(?P<name>[\w.]+)` \| (?P<published>[^|]+) \| (?P<default>[^|]+) \|", re.M)
# Sections about data, model, hardware, evaluation and privacy are not part of the published method.
SECTIONS = ("labels", "priors", "train", "sharing")
OTHER_SETTINGS = {
    "rounds",
    *(f"data.{name}" for name in ("clients", "partition", "beta", "classes_per_client", "min_train")),
    *(f"model.{name}" for name in ("precision", "visual_prompts", "visual_depth", "text_prompts")),
}
DEFAULTS = by_full_name(RunConfig().model_dump())
PUBLISHED = by_full_name(RunConfig.from_mapping(as_published(), "published").model_dump())


def rows():
    page = (DOCS / "as-published.md").read_text(encoding="utf-8")
    return {row["name"]: (row["published"].strip(), row["default"].strip()) for row in ROW.finditer(page)}


def as_in_the_page(value):
    return json.dumps(value) if isinstance(value, bool) else str(value) or "none"


@pytest.mark.parametrize("name", rows())
def test_a_row_has_the_published_value_and_the_default(name):
    published, default = rows()[name]
    assert (published, default.strip("*")) == (as_in_the_page(PUBLISHED[name]), as_in_the_page(DEFAULTS[name]))


def test_bold_defaults_are_those_that_as_published_changes():
    bold = {name for name, (_, default) in rows().items() if default.startswith("**")}
    assert bold == set(AS_PUBLISHED) == {name for name in DEFAULTS if DEFAULTS[name] != PUBLISHED[name]}


def test_every_setting_of_the_method_has_a_row():
    expected = OTHER_SETTINGS | {name for name in DEFAULTS if name.split(".")[0] in SECTIONS}
    assert set(rows()) == expected, (
        "docs/as-published.md: one row for each, with the published value and the reason of a change"
    )


def test_the_command_line_can_set_the_same_values():
    pairs = [f"{name}={json.dumps(value)}" for name, value in AS_PUBLISHED.items()]
    assert override({}, pairs) == as_published()


CLAIM, LINK = re.compile(r"as[ -]published", re.I), re.compile(r"\]\((docs/|\.\./)?as-published\.md[)#]")
EXEMPT = {
    "as-published.md",
    "api.md",  # made from docstrings, which have no links
    "commands.md",  # made from the help of commands, which names the page in words
}
PAGES = [DOCS.parent / "README.md", *sorted(page for page in DOCS.rglob("*.md") if page.name not in EXEMPT)]
CLAIMING = [page for page in PAGES if CLAIM.search(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", CLAIMING, ids=lambda page: page.name)
def test_a_page_that_mentions_as_published_links_its_page(page):
    assert LINK.search(page.read_text(encoding="utf-8")), f"{page}: link docs/as-published.md"


def test_the_pages_that_mention_as_published():
    assert {"README.md", "methods.md", "priors.md", "results.md", "settings.md"} <= {page.name for page in CLAIMING}

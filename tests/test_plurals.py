"""Messages use `plurals` for counts: `1 image`, `2 images`."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "experiments/src").rglob("*.py")]
THINGS = "images|clients|sites|rounds|epochs|workers|runs|answers|refreshes|files|messages|problems|notes|days|seconds"
NUMBER_OF = re.compile(rf" ((training|test|labelled|usable|new|other) )*({THINGS})\b")
NOT_A_COUNT = {  # file and expression: text that stands before a verb or a noun
    ("proxies.py", "strip_credentials(proxy)"),
    ("checks.py", "address"),
    ("dataset.py", "records[0].split"),
    ("terms.py", "len(names)"),
}


def counts_before_plurals(tree):
    """Yield expressions of f-strings before a plural, `{n} images`, except constants and `3 of {n} images`."""
    for text in (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)):
        before = [ast.Constant(""), *text.values]
        for last, value, after in zip(before, text.values, text.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                shown = ast.unparse(value.value)
                is_part = isinstance(last, ast.Constant) and last.value.endswith(" of ")
                if NUMBER_OF.match(after.value) and not shown.isupper() and not is_part:
                    yield shown


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_messages_do_not_format_plurals_themselves(file):
    expressions = counts_before_plurals(ast.parse(file.read_text("utf-8")))
    assert [shown for shown in expressions if (file.name, shown) not in NOT_A_COUNT] == []


def test_counts_before_plurals():
    tree = ast.parse('f"{n} images", f"{n:,} training images", f"1 of {n} runs", f"{MOST} files", f"{name} rounds up"')
    assert [*counts_before_plurals(tree)] == ["n", "n", "name"]

"""`1 image`, `2 images`: every number of things in a message goes through one function."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "experiments/src").rglob("*.py")]
THINGS = "images|clients|sites|rounds|epochs|workers|runs|answers|refreshes|files|messages|problems|notes|days|seconds"
NUMBER_OF = re.compile(rf" ((training|test|labelled|usable|new|other) )*({THINGS})\b")
NOT_A_NUMBER = {  # what stands before a verb, and a text whose bits count
    ("proxies.py", "strip_credentials(proxy)"),
    ("checks.py", "address"),
    ("dataset.py", "records[0].split"),
    ("terms.py", "len(names)"),
}


def numbers_without_care(tree):
    """Numbers in f-strings right before a plural: `{count} images`; constants and `3 of {all} images` apart."""
    for text in (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)):
        before = [ast.Constant(""), *text.values]
        for last, value, after in zip(before, text.values, text.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                shown = ast.unparse(value.value)
                is_part = isinstance(last, ast.Constant) and last.value.endswith(" of ")
                if NUMBER_OF.match(after.value) and not shown.isupper() and not is_part:
                    yield shown


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_numbers_of_things_are_counted(file):
    found = numbers_without_care(ast.parse(file.read_text("utf-8")))
    assert [shown for shown in found if (file.name, shown) not in NOT_A_NUMBER] == []


def test_what_the_test_finds():
    tree = ast.parse('f"{n} images", f"{n:,} training images", f"1 of {n} runs", f"{MOST} files", f"{name} rounds up"')
    assert [*numbers_without_care(tree)] == ["n", "n", "name"]

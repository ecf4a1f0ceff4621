"""Helpers of the tests that compare documents with the code."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"\d[\d.,]*(?<![.,])")


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def resolve_name(name):
    """Return the object that a document calls `package.module.function` or `package.module.Class.method`."""
    parts = name.split(".")
    module_parts = next(
        i
        for i in range(len(parts) - 1, 0, -1)
        if (ROOT / "src/fedcopl" / "/".join(parts[:i])).with_suffix(".py").exists()
    )
    resolved = import_module("fedcopl." + ".".join(parts[:module_parts]))
    for part in parts[module_parts:]:
        resolved = getattr(resolved, part)
    return resolved


def stripped_lines(text):
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def assert_same_output(printed, shown):
    """Check that the words are equal and the numbers close; rounding differs between processors."""
    words = ([NUMBER.sub("#", line) for line in lines] for lines in (printed, shown))
    assert next(words) == next(words)
    numbers = (
        [float(number.replace(",", "")) for number in NUMBER.findall(" ".join(lines))] for lines in (printed, shown)
    )
    assert next(numbers) == pytest.approx(next(numbers), rel=0.05, abs=0.05)

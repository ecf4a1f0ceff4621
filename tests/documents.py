"""What tests of documents share."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"\d[\d.,]*(?<![.,])")


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def thing_called(name):
    """What a document calls package.module.function, or package.module.Class.method."""
    parts = name.split(".")
    cut = next(
        i
        for i in range(len(parts) - 1, 0, -1)
        if (ROOT / "src/fedcopl" / "/".join(parts[:i])).with_suffix(".py").exists()
    )
    thing = import_module("fedcopl." + ".".join(parts[:cut]))
    for part in parts[cut:]:
        thing = getattr(thing, part)
    return thing


def lines_of(text):
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def agree(printed, shown):
    """The same words; numbers may differ a little, as another processor may round a last bit otherwise."""
    words = ([NUMBER.sub("#", line) for line in lines] for lines in (printed, shown))
    assert next(words) == next(words)
    numbers = (
        [float(number.replace(",", "")) for number in NUMBER.findall(" ".join(lines))] for lines in (printed, shown)
    )
    assert next(numbers) == pytest.approx(next(numbers), rel=0.05, abs=0.05)

"""Doctests of the package."""

import doctest
from importlib import import_module

import pytest

from layers import MODULES, SOURCE

SLOW = {"api", "classifier.predict"}  # they train models
EXAMPLES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in MODULES
    if ">>> " in path.read_text(encoding="utf-8")
)
EXTENSION_POINTS = {  # modules that users and plug-ins import
    "api",
    "config",
    "errors",
    "federation.transport",
    "methods.base",
    "classifier.predict",
    "run.record",
}


def test_extension_points_have_examples():
    assert set(EXAMPLES) >= EXTENSION_POINTS


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXAMPLES])
def test_examples(name):
    outcome = doctest.testmod(import_module(f"fedcopl.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0

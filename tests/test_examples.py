"""The examples in docstrings are run."""

import doctest
from importlib import import_module

import pytest

from layers import MODULES, SOURCE

SLOW = {"api", "classifier.predict"}  # they train
EXAMPLES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in MODULES
    if ">>> " in path.read_text(encoding="utf-8")
)
WANTED = {  # what others build on
    "api",
    "config",
    "errors",
    "federation.transport",
    "methods.base",
    "classifier.predict",
    "run.record",
}


def test_what_others_build_on_has_examples():
    assert set(EXAMPLES) >= WANTED


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXAMPLES])
def test_examples(name):
    outcome = doctest.testmod(import_module(f"fedcopl.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0

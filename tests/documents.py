"""What tests of documents share."""

from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]


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

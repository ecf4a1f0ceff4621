"""The architecture is a test: each module imports only from the layers below its own (`tools/layers.py`)."""

import ast
import statistics
from collections.abc import Iterator

import pytest

from layers import LEVEL, MODULES, SOURCE, imports, part_of

ONLY = {  # packages from outside that only these parts may use
    "torch": {"clip", "methods", "classifier"},
    "flwr": {"deployment", "flower_app", "simulation"},
    "tokenizers": {"clip"},
    "sklearn": {"data", "classifier"},
    "jinja2": {"report", "local_page", "classifier"},
    "starlette": {"local_page", "review", "watch", "deployment"},  # the last: what a SuperLink of Flower's is made of
    "uvicorn": {"local_page"},
    "sqlite3": {"review"},
    "onnx": {"classifier"},
    "onnxruntime": {"classifier"},
    "typer": {"cli"},
    "rich": {"cli", "progress"},
    "pydantic": {"config", "labelers", "methods", "run", "deployment"},
    "threadpoolctl": {"clip"},
    "filelock": {"run", "data", "classifier"},
    "cryptography": {"privacy", "deployment"},
    "dp_accounting": {"privacy"},
    "matplotlib": set(),
    "tensorboard": set(),
    "mlflow": set(),
    "wandb": set(),
}
PURE = {"numpy", "typing", "dataclasses", "collections", "math"}  # all that algorithm/ may use


def test_the_walk_finds_the_package():
    assert len(MODULES) >= 30
    assert {part_of(path) for path in MODULES} - {"__init__", "__main__"} == set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_looks_only_down(path):
    part = part_of(path)
    for ours, outside in imports(path):
        if ours and ours != part and part not in {"__init__", "__main__"}:
            assert LEVEL[ours] < LEVEL[part], f"{part} must not import {ours}"
        if outside in ONLY:
            assert part in ONLY[outside], f"{part} must not import {outside}"
        if outside and part == "algorithm":
            assert outside in PURE, f"algorithm must not import {outside}"


def bodies() -> Iterator[tuple[str, int]]:
    """Yield every function and the lines of its body; the options of a command are in its signature."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                inside = (inner for statement in node.body for inner in ast.walk(statement))
                lines = {inner.lineno for inner in inside if isinstance(inner, ast.stmt | ast.expr)}
                yield f"{path.relative_to(SOURCE)}:{node.name}", len(lines)


def test_sizes():
    sizes = dict(bodies())
    assert max(sizes.values()) <= 40, max(sizes, key=sizes.get)
    assert statistics.median(sizes.values()) <= 6
    long = [str(path) for path in MODULES if len(path.read_text().splitlines()) > 500]
    assert not long

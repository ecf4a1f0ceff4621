"""The architecture is a test: each module imports only from the layers below its own (`tools/layers.py`)."""

import ast
import statistics
from collections.abc import Iterator

import pytest

from layers import LEVEL, MODULES, SOURCE, imports, part_of

ALLOWED_IN = {  # third-party package: the parts that may import it
    "torch": {"clip", "methods", "classifier"},
    "flwr": {"deployment", "flower_app", "simulation"},
    "tokenizers": {"clip"},
    "sklearn": {"data", "classifier"},
    "jinja2": {"report", "local_page", "classifier"},
    "starlette": {"local_page", "review", "watch", "deployment"},  # Flower's SuperLink is a Starlette application
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
PURE = {
    "numpy",
    "typing",
    "dataclasses",
    "collections",
    "math",
    "bisect",
}  # the only packages that algorithm/ may import


def test_every_part_has_a_layer():
    assert len(MODULES) >= 30
    assert {part_of(path) for path in MODULES} - {"__init__", "__main__"} == set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_from_lower_layers(path):
    part = part_of(path)
    for internal, external in imports(path):
        if internal and internal != part and part not in {"__init__", "__main__"}:
            assert LEVEL[internal] < LEVEL[part], f"{part} must not import {internal}"
        if external in ALLOWED_IN:
            assert part in ALLOWED_IN[external], f"{part} must not import {external}"
        if external and part == "algorithm":
            assert external in PURE, f"algorithm must not import {external}"


def bodies() -> Iterator[tuple[str, int]]:
    """Yield every function with the number of lines of its body, without its signature."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                inside = (inner for statement in node.body for inner in ast.walk(statement))
                lines = {inner.lineno for inner in inside if isinstance(inner, ast.stmt | ast.expr)}
                yield f"{path.relative_to(SOURCE)}:{node.name}", len(lines)


def test_functions_and_modules_are_short():
    sizes = dict(bodies())
    assert max(sizes.values()) <= 40, max(sizes, key=sizes.get)
    assert statistics.median(sizes.values()) <= 6
    long = [str(path) for path in MODULES if len(path.read_text().splitlines()) > 500]
    assert not long

"""Names are unique and not ambiguous in the whole package."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fedcopl"
TREES = {path.relative_to(SOURCE): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
AMBIGUOUS = {"told", "place", "places"}


def is_camel_case(name: str) -> bool:
    return name[0].isupper() and any(letter.islower() for letter in name)


def type_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names of all classes, also nested ones, and of type aliases."""
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from (target.id for target in targets if isinstance(target, ast.Name) and is_camel_case(target.id))


def test_type_names_are_unique():
    files = defaultdict(list)
    for path, tree in TREES.items():
        for name in type_names(tree):
            files[name].append(str(path))
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name)
                | ast.arg(arg=name)
                | ast.Attribute(attr=name)
                | ast.FunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield node.lineno, name


@pytest.mark.parametrize("path", TREES, ids=str)
def test_no_name_is_ambiguous(path):
    assert [f"{path}:{line}" for line, name in names(TREES[path]) if name.strip("_").lower() in AMBIGUOUS] == []

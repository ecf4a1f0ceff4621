"""Names are unique in this package and in `fedcopl`."""

import ast
from collections import Counter
from pathlib import Path

import fedcopl
import fedcopl_experiments

OURS, THEIRS = (Path(package.__file__).parent for package in (fedcopl_experiments, fedcopl))
VAGUE = {"told", "place", "places"}


def trees(folder):
    return [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]


def classes(folder):
    return [node.name for tree in trees(folder) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_class_names_are_unique():
    ours = Counter(classes(OURS))
    assert [name for name, times in ours.items() if times > 1] == []
    assert ours.keys() & set(classes(THEIRS)) == set()


def test_file_names_are_unique():
    files = Counter(path.name for folder in (OURS, THEIRS) for path in folder.rglob("*.py"))
    assert [path.name for path in OURS.rglob("*.py") if files[path.name] > 1 and path.name != "__init__.py"] == []


def names(tree):
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                yield name


def test_no_vague_names():
    assert {name for tree in trees(OURS) for name in names(tree) if name.strip("_") in VAGUE} == set()

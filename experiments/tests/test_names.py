"""Names are unique in this package and in `fedcopl`."""

import ast
from collections import Counter
from pathlib import Path

import fedcopl
import fedcopl_experiments

EXPERIMENTS, PACKAGE = (Path(package.__file__).parent for package in (fedcopl_experiments, fedcopl))
AMBIGUOUS = {"told", "place", "places"}


def trees(folder):
    return [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]


def classes(folder):
    return [node.name for tree in trees(folder) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_class_names_are_unique():
    counts = Counter(classes(EXPERIMENTS))
    assert [name for name, count in counts.items() if count > 1] == []
    assert counts.keys() & set(classes(PACKAGE)) == set()


def test_file_names_are_unique():
    files = Counter(path.name for folder in (EXPERIMENTS, PACKAGE) for path in folder.rglob("*.py"))
    assert [
        path.name for path in EXPERIMENTS.rglob("*.py") if files[path.name] > 1 and path.name != "__init__.py"
    ] == []


def names(tree):
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
                yield name


def test_no_name_is_ambiguous():
    assert {name for tree in trees(EXPERIMENTS) for name in names(tree) if name.strip("_") in AMBIGUOUS} == set()

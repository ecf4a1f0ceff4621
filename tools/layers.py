"""The layers of the package and the imports of each part, for `tests/test_layers.py` and the picture."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fedcopl"
LAYERS = [  # lowest first: a part imports only from layers below its own
    {"errors", "config_errors", "plurals", "rng"},
    {"files"},
    {"config", "algorithm", "messages", "registry"},
    {"labelers", "priors"},
    {"privacy"},
    {"federation"},
    {"clip", "data"},
    {"methods"},
    {"run", "plugins"},
    {"progress", "report"},
    {"deployment", "classifier"},
    {"simulation"},
    {"api", "doctor", "flower_app", "local_page"},
    {"review", "watch"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    """Return the part of a file: the package or module directly below fedcopl/."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path, source: Path = SOURCE) -> Iterator[tuple[str | None, str | None]]:
    """Yield (part of fedcopl, None) or (None, external package) for every import in a file, also in functions."""
    package = (source.name, *path.relative_to(source).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = [*base, *(node.module.split(".") if node.module else [])]
            names = [module] if len(module) > 1 or module != ["fedcopl"] else [[*module, a.name] for a in node.names]
        else:
            continue
        for name in names:
            yield (name[1], None) if name[0] == "fedcopl" and len(name) > 1 else (None, name[0])


def import_graph() -> dict[str, set[str]]:
    """Return the other parts that each part imports."""
    graph: dict[str, set[str]] = {part: set() for part in LEVEL}
    for path in MODULES:
        part = part_of(path)
        if part in graph:
            graph[part] |= {used for used, _ in imports(path) if used in LEVEL and used != part}
    return graph

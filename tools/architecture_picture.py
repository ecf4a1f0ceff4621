"""Draw docs/images/architecture.svg from the imports of the source.

.venv/bin/python tools/architecture_picture.py

The picture has one row for each layer, the highest on top. An arrow is an import; imports that follow from a chain of
arrows are not drawn. The title of a box, shown when the mouse is over it, lists all its imports.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from textwrap import wrap

from layers import LAYERS, LEVEL, SOURCE, import_graph, imports

PICTURE = SOURCE.parents[1] / "docs" / "images" / "architecture.svg"
EXPERIMENTS = SOURCE.parents[1] / "experiments" / "src" / "fedcopl_experiments"
GROUND = (
    "config",
    "errors",
    "files",
    "config_errors",
    "plurals",
    "rng",
)  # single files that every part may import; no arrows are drawn to them
COLOURS = {  # purpose: fill, edge, parts
    "the algorithm": ("#e8f1fb", "#3a74b0", ("algorithm", "messages", "privacy", "federation")),
    "images and model": ("#eaf6ea", "#3f8a48", ("clip", "data", "methods")),
    "a run": ("#fdf3e0", "#b07818", ("run", "simulation", "deployment", "flower_app", "classifier")),
    "for people": (
        "#f5ecf8",
        "#8a4f9e",
        ("progress", "report", "local_page", "review", "watch", "doctor", "api", "cli"),
    ),
}
COLUMN = {  # position of a box in its row, chosen by eye so that no arrow is hidden
    "experiments": 1.1, "cli": 2.4,
    "review": 3.1, "watch": 4.04,
    "doctor": 0, "api": 1, "flower_app": 3.15, "local_page": 4.04,
    "simulation": 2.64,
    "classifier": 1.66, "deployment": 2.55,
    "progress": 1.01, "report": 4.04,
    "run": 2.2, "plugins": 4.04,
    "methods": 2.4,
    "data": 0, "clip": 0.95,
    "federation": 2.4,
    "privacy": 2.4,
    "labelers": 3.3, "priors": 1.4,
    "algorithm": 1.9, "messages": 2.9, "registry": 4.04,
}  # fmt: skip
GROUND_TITLE = "single files that every part may use: no arrows drawn"
STEP, ROW = 226, 106  # pixels from column to column and from row to row
WIDTH, HEIGHT, MARGIN, HEAD = 196, 60, 24, 66  # pixels: of a box, around the picture, above the boxes
CHARACTERS, GROUND_CHARACTERS = 35, 26  # per line of a box
Position = tuple[float, int]  # column and row
Edge = tuple[str, str]


def summary(file: Path) -> str:
    """Return the first sentence of the docstring of a module or package."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ").split(". ")[0].rstrip(".").replace("`", "")


def summaries() -> dict[str, str]:
    """Return the summary of each part."""
    files = {part: SOURCE / f"{part}.py" for part in LEVEL}
    return {part: summary(file if file.exists() else SOURCE / part / "__init__.py") for part, file in files.items()}


@cache
def all_imports() -> dict[str, set[str]]:
    """Return the parts that each part imports, with the experiments as one more part."""
    modules = EXPERIMENTS.rglob("*.py")
    used = {internal for path in modules for internal, _ in imports(path, EXPERIMENTS) if internal in LEVEL}
    return import_graph() | {"experiments": used}


def transitive_reduction(graph: Mapping[str, set[str]]) -> list[Edge]:
    """Return the arrows to draw: without imports that a chain of other imports implies, and without `GROUND`."""

    def below(part: str) -> set[str]:
        return graph[part] | {lower for direct in graph[part] for lower in below(direct)}

    return sorted(
        (part, used)
        for part, direct in graph.items()
        for used in direct
        if not any(used in below(other) for other in direct) and not {part, used} & set(GROUND)
    )


def rows() -> list[list[str]]:
    """Return the parts of each row, from the top."""
    layers = [sorted(names - set(GROUND)) for names in reversed(LAYERS)]
    shown = [names for names in layers if names]
    return [[*shown[0], "experiments"], *shown[1:]]


def positions(lines: Sequence[Sequence[str]]) -> dict[str, Position]:
    """Return the position of each box."""
    missing = [part for parts in lines for part in parts if part not in COLUMN]
    if missing:
        raise SystemExit(f"{missing[0]} has no column in the picture: add it to COLUMN and look at the picture")
    return {part: (COLUMN[part], row) for row, parts in enumerate(lines) for part in parts}


def ports(at: Mapping[str, Position], edges: Sequence[Edge]) -> list[tuple[Position, Position]]:
    """Return start and end of each arrow; the arrows at one side of a box are spread, sorted by their other end."""
    below, above = defaultdict(list), defaultdict(list)
    for upper, lower in sorted(edges, key=lambda edge: at[edge[1]]):
        below[upper].append(lower)
    for upper, lower in sorted(edges, key=lambda edge: at[edge[0]]):
        above[lower].append(upper)
    return [(moved(at[upper], below[upper], lower), moved(at[lower], above[lower], upper)) for upper, lower in edges]


def moved(position: Position, ends: Sequence[str], end: str) -> Position:
    share = (ends.index(end) + 1) / (len(ends) + 1) - 0.5
    return position[0] + share * WIDTH / STEP, position[1]


def picture() -> str:
    """Return the SVG."""
    graph, lines = all_imports(), rows()
    edges = transitive_reduction(graph)
    at, words = positions(lines), summaries() | {"experiments": summary(EXPERIMENTS / "__init__.py")}
    width, height = MARGIN * 2 + round(STEP * max(COLUMN.values())) + WIDTH, HEAD + len(lines) * ROW + HEIGHT + 78
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="Helvetica, Arial, sans-serif" role="img" aria-label="The parts of fedcopl and their imports">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#667"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fcfcfa"/>',
        *title(width),
        *(arrow(*ends) for ends in ports(at, edges)),
        *(box(part, at[part], words[part], graph[part]) for line in lines for part in line),
        *ground(width, height, words),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def title(width: int) -> Iterator[str]:
    yield f'<text x="{MARGIN}" y="32" font-size="20" font-weight="bold" fill="#223">src/fedcopl</text>'
    yield (
        f'<text x="{MARGIN}" y="51" font-size="12" fill="#556">An arrow is an import, and leads down. '
        "Imports that follow from a chain of arrows are not drawn.</text>"
    )
    x = width - MARGIN - 4 * 140
    for name, (fill, edge, _) in COLOURS.items():
        yield f'<rect x="{x}" y="22" width="14" height="14" rx="3" fill="{fill}" stroke="{edge}"/>'
        yield f'<text x="{x + 20}" y="33" font-size="12" fill="#223">{name}</text>'
        x += 140


def corner(position: Position) -> tuple[float, float]:
    column, row = position
    return MARGIN + column * STEP, HEAD + row * ROW + 12


def arrow(start: Position, stop: Position) -> str:
    (x, y), (to, end) = corner(start), corner(stop)
    x, to, y, end = x + WIDTH / 2, to + WIDTH / 2, y + HEIGHT, end - 1
    middle = (y + end) / 2
    path = f"M{x:.0f} {y:.0f}C{x:.0f} {middle:.0f} {to:.0f} {middle:.0f} {to:.0f} {end:.0f}"
    return f'<path d="{path}" fill="none" stroke="#667" stroke-width="1.4" marker-end="url(#tip)"/>'


def box(part: str, position: Position, words: str, used: set[str]) -> str:
    x, y = corner(position)
    fill, edge = next(((f, e) for f, e, parts in COLOURS.values() if part in parts), ("#ffffff", "#778"))
    dashes = ' stroke-dasharray="5 4"' if part == "experiments" else ""
    shape = f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="7"'
    return (
        f"<g><title>{part} imports {', '.join(sorted(used)) or 'no other part'}</title>"
        f'{shape} fill="{fill}" stroke="{edge}"{dashes}/>{label(part, words, x + WIDTH / 2, y, edge, CHARACTERS)}</g>'
    )


def label(part: str, words: str, x: float, y: float, colour: str, width: int) -> str:
    """Draw a name in bold with its summary below."""
    name = f'<text x="{x:.0f}" y="{y + 20:.0f}" font-size="14" font-weight="bold" fill="{colour}">{part}</text>'
    lines = (
        f'<text x="{x:.0f}" y="{y + 38 + 14 * number:.0f}" font-size="11" fill="#334">{escape(line)}</text>'
        for number, line in enumerate(wrap(words, width))
    )
    return f'<g text-anchor="middle">{name}{"".join(lines)}</g>'


def ground(width: int, height: int, words: Mapping[str, str]) -> Iterator[str]:
    """Draw the files that every part may import as one bar at the bottom."""
    y, column_width = height - HEIGHT - 44, (width - 2 * MARGIN) / len(GROUND)
    shape = f'<rect x="{MARGIN}" y="{y}" width="{width - 2 * MARGIN}" height="{HEIGHT + 24}" rx="7"'
    yield f'{shape} fill="#f0f0ec" stroke="#889"/>'
    yield f'<text x="{MARGIN + 10}" y="{y + 17}" font-size="11" fill="#667">{GROUND_TITLE}</text>'
    for number, part in enumerate(GROUND):
        yield label(part, words[part], MARGIN + column_width * (number + 0.5), y + 19, "#445", GROUND_CHARACTERS)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")

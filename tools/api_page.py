"""Write docs/api.md from the signatures and docstrings of what others may build on.

.venv/bin/python tools/api_page.py
"""

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import fedcopl
from fedcopl.federation.transport import Labelling, RoundExchange, RoundReport, Transport
from fedcopl.labelers import Labeler
from fedcopl.methods.base import Method
from fedcopl.run.folder import read_finished, read_so_far
from fedcopl.run.record import (
    Accuracies,
    ClientRecord,
    Measured,
    Outcome,
    RefreshRecord,
    RoundRecord,
    json_schema,
    round_to_plain,
    to_plain,
)
from fedcopl.run.record_reader import ReadOutcome, read_outcome, read_rounds
from results_schema import documented

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
PUBLIC = (
    "simulate",
    "Federation",
    "Site",
    "Result",
    "Classifier",
    "RunConfig",
    "load_config",
    "load_plugin",
    "FedCoPLError",
)
PARTS: Sequence[tuple[str, str, Sequence[Any]]] = (
    (
        "The library",
        "`from fedcopl import ...`; [in Python](python.md) shows it in use, [settings](settings.md) what can be set.",
        [getattr(fedcopl, name) for name in PUBLIC],
    ),
    (
        "The outcome of a run",
        "`fedcopl.run.record`, `fedcopl.run.record_reader` and `fedcopl.run.folder`. What each key means: "
        "[results.json](results-format.md).",
        [
            Outcome,
            RoundRecord,
            RefreshRecord,
            ClientRecord,
            Measured,
            Accuracies,
            ReadOutcome,
            read_outcome,
            read_rounds,
            read_finished,
            read_so_far,
            to_plain,
            round_to_plain,
            json_schema,
        ],
    ),
    (
        "The transport of a federation",
        "`fedcopl.federation.transport`: a class that sends requests to clients implements `Transport`.",
        [Transport, RoundExchange, RoundReport, Labelling],
    ),
    (
        "The contract of a method",
        "`fedcopl.methods.base`; [adding a method](methods.md#adding-and-removing-a-method) is five touches.",
        [Method, Labeler],
    ),
)
BAR = "\\|"  # in a cell of a table
HEAD = """# API

Made by `tools/api_page.py` from docstrings; a test holds it to them, and another runs their examples. What is not on
this page may change with any version.
"""


def page() -> str:
    return HEAD + "".join(part for title, about, things in PARTS for part in chapter(title, about, things))


def chapter(title: str, about: str, things: Sequence[Any]) -> Iterator[str]:
    yield f"\n## {title}\n\n{about}\n"
    for thing in things:
        yield from of_class(thing) if inspect.isclass(thing) else of_function(thing)


def of_function(function: Callable[..., Any]) -> Iterator[str]:
    node = _parsed(function)
    assert isinstance(node, ast.FunctionDef)
    name = "load_config" if function is fedcopl.load_config else node.name
    yield f"\n### {name}\n\n```python\n{signature(node, name)}\n```\n\n{text(node)}\n"


def of_class(kind: type) -> Iterator[str]:
    node = _parsed(kind)
    assert isinstance(node, ast.ClassDef)
    members = [member for member in node.body if isinstance(member, ast.FunctionDef)]
    begin = next((signature(member, kind.__name__) for member in members if member.name == "__init__"), "")
    yield f"\n### {kind.__name__}\n\n"
    if begin and not is_dataclass(kind):
        yield f"```python\n{begin}\n```\n\n"
    yield f"{text(node)}\n"
    yield from _fields(kind)
    for member in members:
        if not member.name.startswith("_"):
            yield from _member(member)


def _fields(kind: type) -> Iterator[str]:
    """What a plain class of data, or a method, has; the meaning of an outcome's keys has a page of its own."""
    if kind in (Outcome, RoundRecord, RefreshRecord, ClientRecord, Measured, Accuracies):
        yield f"\nIts fields: [results.json](results-format.md#{kind.__name__.lower()}).\n"
    elif kind in (Method, Labeler) or is_dataclass(kind):
        yield "\n| attribute | type | |\n|---|---|---|\n"
        for name, (kind_of, meaning) in documented(kind, in_words=ast.unparse).items():
            shown = kind_of.removeprefix("ClassVar[").removesuffix("]") if kind_of.startswith("ClassVar") else kind_of
            yield f"| `{name}` | `{shown.replace('|', BAR)}` | {meaning} |\n"


def _member(node: ast.FunctionDef) -> Iterator[str]:
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    said = text(node).replace("\n\n", "\n\n  ")
    if decorators & {"property", "cached_property"}:
        returns = ast.unparse(node.returns) if node.returns else ""
        yield f"\n* **`{node.name}`**`: {returns}`"
    else:
        yield f"\n* **`{node.name}`**`{signature(node, '')}`"
    yield f"\n  {said}\n" if said else "\n"


def signature(node: ast.FunctionDef, name: str) -> str:
    """As written in the source, without `self`; long ones one argument a line."""
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments = ast.arguments(**{**vars(arguments), "args": arguments.args[1:]})
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    line = f"{name}({ast.unparse(arguments)}){returns}".replace("'", '"')
    return line if len(line) <= 110 or not name else f"{name}(\n    {_one_a_line(arguments)}\n){returns}"


def _one_a_line(arguments: ast.arguments) -> str:
    whole = ast.parse(f"def f({ast.unparse(arguments)}): ...").body[0]
    assert isinstance(whole, ast.FunctionDef)
    parts: list[str] = []
    depth, part = 0, ""
    for letter in ast.unparse(whole.args):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts, part = [*parts, part.strip()], ""
        else:
            part += letter
    return ",\n    ".join([*parts, part.strip()]).replace("'", '"') + ","


def text(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The docstring, its examples set off as code."""
    lines, shown = (ast.get_docstring(node) or "").splitlines(), []
    inside = False
    for line in [*lines, ""]:
        if line.startswith(">>>") and not inside:
            inside = True
            shown.append("```pycon")
        elif inside and not line:
            inside = False
            shown.append("```")
        shown.append(line)
    return "\n".join(shown).strip()


def _parsed(thing: Any) -> ast.stmt:
    return ast.parse(dedent(inspect.getsource(thing))).body[0]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

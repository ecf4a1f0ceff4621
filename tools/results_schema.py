"""Write docs/results.schema.json and docs/results-format.md from the types of a run's outcome.

.venv/bin/python tools/results_schema.py
"""

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from fedcopl.privacy.accountant import PrivacyStatement, Release
from fedcopl.run.record import (
    SCHEMA,
    Accuracies,
    ClientRecord,
    Drift,
    FirstPrompts,
    HoldoutRecord,
    LabelCounts,
    Measured,
    Outcome,
    RefreshRecord,
    RoundRecord,
    json_schema,
)

DOCS = Path(__file__).parents[1] / "docs"
SCHEMA_FILE, PAGE = DOCS / "results.schema.json", DOCS / "results-format.md"
KINDS = (
    Outcome,
    RoundRecord,
    Measured,
    Accuracies,
    RefreshRecord,
    ClientRecord,
    Drift,
    LabelCounts,
    HoldoutRecord,
    FirstPrompts,
    Release,
    PrivacyStatement,
)
HEADLINE = {"$ref": "#/$defs/Headline"}
FOLLOWS: Mapping[str, tuple[dict[str, Any], str]] = {  # written by `to_plain` for those who only look, never read back
    "final": (HEADLINE, "`macro`, `weighted`, `global` and `round` of the last round that was measured"),
    "best": (HEADLINE, "the same of the round with the highest `macro`"),
    "bytes_up": ({"type": "integer"}, "sum over the rounds"),
    "bytes_down": ({"type": "integer"}, "sum over the rounds"),
    "images_used": ({"type": "integer"}, "chosen at the last refresh; in a real federation those of the last round"),
    "pseudo_label_accuracy": ({"type": "array"}, "of each refresh"),
}
WORDS = {
    "Count": "count",
    "Number": "number",
    "float": "number",
    "int": "count",
    "Share": "share",
    "Text": "text",
    "str": "text",
    "Flag": "true or false",
    "bool": "true or false",
    "Counts": "list of counts",
    "Any": "anything",
    "None": "null",
}
HEAD = f"""# What results.json holds

Made by `tools/results_schema.py` from `src/fedcopl/run/record.py`; a test holds it to that. The same as a JSON schema:
[results.schema.json](results.schema.json).

A run's folder has the outcome three times: `results.json` when the run is over, `progress.json` while it goes on (in
the same form), and `rounds.jsonl` with one [round](#roundrecord) a line, for those who follow it. A server of real
sites writes the same form as a simulation; what it cannot know (anybody's labels, how many images there are) is null
or empty.

## The version

`schema` is {SCHEMA}.

* A **new key** does not change the version: whoever reads must pass over keys it does not know.
* A key that **means something else**, or goes, makes it {SCHEMA + 1}, with a way to read {SCHEMA}.

## Reading it

```python
import json
from pathlib import Path

from fedcopl.run.record_reader import read_outcome

reading = read_outcome(json.loads(Path("runs/demo/results.json").read_text()))
print(reading.outcome.final.macro, reading.errors)
```

`read_outcome` never fails: missing keys get their defaults (None or empty), invalid values are
left out and named in `errors`, as in `rounds[3].loss is 'high'`. `fedcopl.run.folder.read_finished(folder)`
takes a folder and refuses what is damaged in one line. In Python, `simulate(...).outcome` and
`Federation(...).fit().outcome` are of the same [types](api.md).

A *count* is a whole number from 0, a *share* a number from 0 to 1. Rounds are counted from 0.

## Keys
"""


def documented(kind: type, in_words: Callable[[ast.expr], str] | None = None) -> dict[str, tuple[str, str]]:
    """Key -> its type and its meaning, in words, of the fields that this class itself declares."""
    source = inspect.getsource(kind)
    [tree] = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    lines, found = source.splitlines(), {}
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            meaning = _docstring(after) or lines[node.lineno - 1].partition("  # ")[2]
            found[_alias(node.annotation) or node.target.id] = ((in_words or words_for)(node.annotation), meaning)
    return found


def _docstring(node: ast.stmt | None) -> str:
    """Python forgets the docstrings of attributes: they are read from the source."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""


def _alias(annotation: ast.expr) -> str:
    named = [word for call in ast.walk(annotation) if isinstance(call, ast.Call) for word in call.keywords]
    return next((str(ast.literal_eval(word.value)) for word in named if word.arg == "alias"), "")


def words_for(annotation: ast.expr) -> str:
    """A type as people say it."""
    match annotation:
        case ast.Name(id=name):
            return WORDS.get(name) or f"[{name}](#{name.lower()})"
        case ast.Constant(value=None):
            return "null"
        case ast.BinOp(left=left, right=right):
            return f"{words_for(left)} or {words_for(right)}"
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inside, *_])):
            return words_for(inside)
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[inside, *_])):
            return f"list of {_each(words_for(inside))}"
        case ast.Subscript(value=ast.Name(id="Mapping"), slice=ast.Tuple(elts=[_, inside])):
            return f"by name: {words_for(inside)}"
    raise ValueError(f"no words for {ast.unparse(annotation)}")


def _each(words: str) -> str:
    return f"({words})" if " or " in words else words


def schema() -> dict[str, Any]:
    """The schema of the types, with what each key means, and with the keys that follow from others."""
    plain = json_schema()
    for kind in KINDS:
        described = plain if kind is Outcome else plain["$defs"].get(kind.__name__)
        for name, (_, meaning) in all_documented(kind).items() if described else ():
            described["properties"][name] = {"description": meaning} | described["properties"][name]
    accuracies = {name: {"type": ["number", "null"]} for name in ("macro", "weighted", "global")}
    plain["$defs"]["Headline"] = {"type": "object", "properties": accuracies | {"round": {"type": "integer"}}}
    plain["properties"] |= {name: {"description": meaning} | form for name, (form, meaning) in FOLLOWS.items()}
    return plain


def all_documented(kind: type) -> dict[str, tuple[str, str]]:
    """With the fields of the classes that it is built on."""
    return {
        name: row
        for base in reversed(kind.__mro__)
        if is_dataclass(base) and fields(base)
        for name, row in documented(base).items()
    }


def page() -> str:
    return HEAD + "".join(part for kind in KINDS for part in section(kind))


def section(kind: type) -> Iterator[str]:
    yield f"\n### {kind.__name__}\n\n{_said(kind)}\n\n"
    bases = [base for base in kind.__bases__ if is_dataclass(base)]
    if bases:
        yield f"All keys of [{bases[0].__name__}](#{bases[0].__name__.lower()}), and:\n\n"
    yield "| key | type | what it is |\n|---|---|---|\n"
    for name, (words, meaning) in documented(kind).items():
        yield f"| `{name}` | {words} | {meaning.replace('None', 'null')} |\n"
    if kind is Outcome:
        yield "\nFor those who only look, the file also has what follows from these; it is never read back:\n\n"
        yield "| key | what it is |\n|---|---|\n"
        yield from (f"| `{name}` | {meaning} |\n" for name, (_, meaning) in FOLLOWS.items())


def _said(kind: type) -> str:
    """The first paragraph of its docstring."""
    return re.sub(r"\s+", " ", (inspect.getdoc(kind) or "").split("\n\n")[0])


def schema_text() -> str:
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")

"""Write docs/settings.md from the settings themselves.

.venv/bin/python tools/settings_page.py
"""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fedcopl.config import RunConfig, Section

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """# Settings

Made by `tools/settings_page.py` from `src/fedcopl/config.py`; a test holds it to that.

In a TOML file sections are tables; on the command line a setting is `section.key=value`, and the bare key is enough
where only one section has it: `clients=5` is `data.clients=5`. Unknown settings are refused with the nearest right
name. Which of these are the paper's, which its authors' and which ours: [what `--as-published` means](as-published.md).
"""


def page() -> str:
    top = {name: field for name, field in RunConfig.model_fields.items() if not is_section(field.annotation)}
    parts = [HEAD, table("", top)]
    for name, field in RunConfig.model_fields.items():
        if is_section(field.annotation):
            parts.append(
                f"\n## {name}\n\n{field.annotation.__doc__}\n\n{table(name + '.', field.annotation.model_fields)}"
            )
    return "\n".join(parts)


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def table(prefix: str, fields: dict[str, Any]) -> str:
    rows = ["| setting | default | what it is |", "|---|---|---|"]
    for name, field in fields.items():
        default = "none" if field.default in ("", {}) else field.default
        shown = str(default).lower() if isinstance(default, bool) else default
        rows.append(f"| `{prefix}{name}` | {shown} | {field.description}{choices(field.annotation)} |")
    return "\n".join(rows) + "\n"


def choices(kind: Any) -> str:
    """The words that a setting takes, where it takes only some."""
    parts = [kind] if get_origin(kind) is Literal else [part for part in get_args(kind) if get_origin(part) is Literal]
    words = [f"`{word}`" for part in parts for word in get_args(part)]
    number = "a number, or " if words and get_origin(kind) is not Literal else ""
    return f" ({number}{', '.join(words)})" if words else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""Write the table of models in docs/models.md from `fedcopl.clip.known_models`.

.venv/bin/python tools/models_page.py
"""

from pathlib import Path

from fedcopl.clip.known_models import KNOWN_MODELS, KnownModel, measured

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- made by tools/models_page.py -->\n", "<!-- end -->\n"


def row(model: KnownModel) -> str:
    measurement = measured().get(model.name)
    numbers = ["not measured"] * 3
    if measurement:
        weights = f"{measurement.parameters / 1e6:,.0f} M"
        numbers = [weights, f"{measurement.memory:.1f} GB", f"{measurement.seconds:,.0f} s"]
    revision = f"`{model.revision[:8]}`" if model.revision else "none"
    loads = "yes" if model.loads else "**no**"
    tried = "yes" if measurement or not model.loads else "no"
    cells = [f"`{model.name}`", model.purpose, model.licence, revision, loads, tried, *numbers]
    return f"| {' | '.join(cells if model.loads else [*cells[:-3], '', '', ''])} |"


def table() -> str:
    titles = ["model", "for", "licence", "pinned at", "loads", "tested here", "weights", "memory", "1,000 images"]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}", *map(row, KNOWN_MODELS)]
    return "\n".join(lines) + "\n"


def page() -> str:
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

"""Write the table of benchmarks/README.md and benchmarks/benchmarks.svg from benchmarks/history.jsonl.

.venv/bin/python -m benchmarks.history_page
"""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from .history import PastRun, read_history
from .measure import Line

ROOT = Path(__file__).parents[1]

PAGE, PICTURE = ROOT / "benchmarks" / "README.md", ROOT / "benchmarks" / "benchmarks.svg"
BEGIN, END = "<!-- made by benchmarks/history_page.py -->\n", "<!-- end -->\n"
NO_RUNS = "No measurement on an idle machine is recorded yet.\n"
WIDTH, HEIGHT, GAP, COLUMNS = 300, 130, 20, 2  # size of a panel, space between panels, panels in a row
LEFT, TOP, BOTTOM = 40, 24, 20  # margins of a panel outside its axes
MAX_RUNS = 12  # newest runs in a panel


def newest(history: Sequence[PastRun]) -> dict[str, tuple[PastRun, Line]]:
    """Return the newest run and line of each benchmark."""
    return {key: (run, line) for run in history for key, line in run.lines.items()}


def table(history: Sequence[PastRun]) -> str:
    if not history:
        return NO_RUNS
    titles = ["what", "against", "ratio (middle half of the turns)", "to reach", "detail", "measured"]
    rows = [_row(run, line) for run, line in newest(history).values()]
    machines = dict.fromkeys(f"{run.cpu}, {run.threads} threads, torch {run.torch}" for run in history)
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}", *rows, "", f"On: {'; '.join(machines)}."]
    return "\n".join(lines) + "\n"


def _row(run: PastRun, line: Line) -> str:
    reach = "–" if line.reach is None else f"{'at most ' if line.at_most else ''}{line.reach:g}"
    ratio = str(line.ratio) if line.reached is not False else f"**{line.ratio}, not reached**"
    return f"| {line.what} | {line.against} | {ratio} | {reach} | {line.detail} | {run.date}, `{run.commit}` |"


def page(history: Sequence[PastRun]) -> str:
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    return before + BEGIN + table(history) + END + rest.split(END)[1]


def picture(history: Sequence[PastRun]) -> str:
    """Draw a panel for each benchmark: its ratio in each run with its spread, and the target as a dashed line."""
    keys = list(newest(history))
    rows = -(-len(keys) // COLUMNS) or 1
    width, height = COLUMNS * (WIDTH + GAP), rows * (HEIGHT + GAP)
    panels = [
        f'<g transform="translate({number % COLUMNS * (WIDTH + GAP)} {number // COLUMNS * (HEIGHT + GAP)})">\n'
        + "\n".join(_panel([run for run in history if key in run.lines][-MAX_RUNS:], key))
        + "\n</g>"
        for number, key in enumerate(keys)
    ]
    style = "text{font:11px sans-serif;fill:#444}.far{stroke:#c33;stroke-dasharray:4 3}.ours{stroke:#258;fill:#258}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><style>{style}</style>'
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, ground, *panels, "</svg>"]) + "\n"


def _panel(runs: Sequence[PastRun], key: str) -> Iterator[str]:
    lines = [run.lines[key] for run in runs]
    reach = lines[-1].reach
    top = 1.15 * max([line.ratio.high for line in lines] + ([] if reach is None else [reach]))
    axis_height, axis_width = HEIGHT - TOP - BOTTOM, WIDTH - LEFT

    def y(ratio: float) -> float:
        return round(TOP + axis_height * (1 - ratio / top), 1)

    yield f'<text x="0" y="12">{escape(lines[-1].what)}</text>'
    yield f'<path d="M{LEFT} {TOP}V{TOP + axis_height}H{WIDTH}" fill="none" stroke="#999"/>'
    yield f'<text x="{LEFT - 6}" y="{y(0)}" text-anchor="end">0</text>'
    last = lines[-1].ratio.median
    yield f'<text x="{LEFT - 6}" y="{y(last) + 4}" text-anchor="end">{last:.2f}</text>'
    if reach is not None:
        yield f'<path class="far" d="M{LEFT} {y(reach)}H{WIDTH}"/>'
    for number, (run, line) in enumerate(zip(runs, lines, strict=True)):
        x = round(LEFT + axis_width * (number + 0.5) / len(runs), 1)
        ratio = line.ratio
        yield f'<path class="ours" d="M{x} {y(ratio.low)}V{y(ratio.high)}"/>'
        yield f'<circle class="ours" cx="{x}" cy="{y(ratio.median)}" r="3"><title>{run.date} {ratio}</title></circle>'
    yield f'<text x="{LEFT}" y="{HEIGHT - 6}">{runs[0].date}</text>'
    if runs[-1].date != runs[0].date:
        yield f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{runs[-1].date}</text>'


def write_page() -> None:
    PAGE.write_text(page(read_history()), "utf-8")
    PICTURE.write_text(picture(read_history()), "utf-8")


if __name__ == "__main__":
    write_page()

"""Drawing of figures as PDF, SVG and PNG, with reproducible bytes, legible in grey print."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcopl.files import publish_bytes

from .figure_panels import FigureLine, Panel, PartitionMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours are distinct with colour blindness, the markers also in grey print.
COLOURS = ("#D55E00", "#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")
GREY = "#555555"
PAGE_WIDTH, COLUMN_WIDTH = 7.0, 3.4  # inches
MAX_EVEN_TICKS = 5  # up to this many values on the x axis are drawn at even distances
OFFSET = 0.07  # between the markers of two lines at the same value
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.4,
    "grid.color": "#DDDDDD",
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedcopl",
}
METADATA: dict[str, dict[str, Any]] = {  # without date and version, so that equal numbers give equal files
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


def draw_lines(panels: Sequence[Panel], file: Path) -> list[Path]:
    """Draw panels with one legend to `file` with each suffix; return the written files."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        columns = _columns(panels)
        figure, axes = _figure(len(panels), columns, height=1.75)
        for number, (panel, axis) in enumerate(zip(panels, axes, strict=True)):
            _draw_panel(panel, axis, labelled=number % columns == 0 or panel.y_label != panels[number - 1].y_label)
        _add_legend(figure, panels)
        return _save(figure, file)


def draw_heat_maps(maps: Sequence[PartitionMap], file: Path) -> list[Path]:
    """Draw the class counts of the clients, one map for each skew, with a common colour scale."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE | {"axes.spines.top": True, "axes.spines.right": True}):
        figure, axes = _figure(len(maps), len(maps), height=2.2)
        highest = max(int(partition.counts.max()) for partition in maps)
        image = None
        for partition, axis in zip(maps, axes, strict=True):
            counts = np.ma.masked_equal(partition.counts, 0)  # empty cells are white
            image = axis.imshow(counts, cmap="viridis_r", vmin=1, vmax=highest, aspect="auto")
            axis.set(title=partition.title, xlabel="class")
            axis.set_yticks(range(len(counts)), [str(client + 1) for client in range(len(counts))])
            axis.set_xticks(range(len(partition.classes)), partition.classes, rotation=90, parse_math=False)
        axes[0].set_ylabel("client")
        if image is not None:
            figure.colorbar(image, ax=axes, label="training images", fraction=0.05, pad=0.01)
        return _save(figure, file)


def _columns(panels: Sequence[Panel]) -> int:
    """Return the number of panels in a row: one for each y axis, or up to four if all have the same."""
    kinds = len({panel.y_label for panel in panels})
    return kinds if kinds > 1 else min(len(panels), 4 if len(panels) != 6 else 3)


def _figure(count: int, columns: int, height: float) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    rows = -(-count // columns)
    width = COLUMN_WIDTH if columns == 1 else PAGE_WIDTH
    figure = Figure(figsize=(width, 0.45 + height * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(count)]
    return figure, axes


def _draw_panel(panel: Panel, axis: "Axes", *, labelled: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(line.name for line in panel.lines))
    for line in panel.lines:
        number = names.index(line.name)
        _draw_line(line, axis, number, _positions(panel, number - (len(names) - 1) / 2), over_rounds=not panel.ticks)
    axis.set(title=panel.title, xlabel=panel.x_label)
    if labelled:
        axis.set_ylabel(panel.y_label)
    if _is_stepped(panel):
        axis.set_xticks(range(len(panel.ticks)), [f"{tick:g}" for tick in panel.ticks])
    elif not panel.ticks:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.grid(visible=True)
    axis.set_axisbelow(True)


def _is_stepped(panel: Panel) -> bool:
    """Return whether the values of the x axis are drawn at even distances."""
    return 0 < len(panel.ticks) <= MAX_EVEN_TICKS


def _positions(panel: Panel, shift: float) -> Callable[[float], float]:
    """Return the map of values to positions on the x axis, shifted so that markers of lines do not overlap."""
    if not _is_stepped(panel):
        return lambda value: value
    return lambda value: panel.ticks.index(value) + OFFSET * shift


def _draw_line(
    line: FigureLine, axis: "Axes", number: int, position: Callable[[float], float], *, over_rounds: bool
) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    xs, means = [position(point.x) for point in line.points], [point.mean for point in line.points]
    spread = [point.sample.std or 0.0 for point in line.points]
    style = "--" if line.variant else "-"
    axis.plot(xs, means, style, color=colour, marker=marker, markevery=max(1, len(xs) // 10), zorder=3)
    if over_rounds:
        low, high = ([m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
        axis.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
    elif any(spread):
        axis.errorbar(xs, means, spread, fmt="none", ecolor=colour, elinewidth=0.8, capsize=2)
    if line.paper:
        printed = [position(x) for x, _ in line.paper], [y for _, y in line.paper]
        axis.plot(*printed, ":", color=colour, marker=marker, markerfacecolor="white", zorder=2)


def _add_legend(figure: "Figure", panels: Sequence[Panel]) -> None:
    """Add every name once, and the meaning of dashed lines and open markers."""
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    handles = [
        Line2D([], [], color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)], label=name)
        for number, name in enumerate(names)
    ]
    for variant in dict.fromkeys(line.variant for panel in panels for line in panel.lines if line.variant):
        handles.append(Line2D([], [], color=GREY, linestyle="--", label=variant))
    if any(line.paper for panel in panels for line in panel.lines):
        handles.append(
            Line2D([], [], color=GREY, linestyle=":", marker="o", markerfacecolor="white", label="the paper")
        )
    if len(handles) > 1:
        columns = min(len(handles), 6) if figure.get_figwidth() > COLUMN_WIDTH else 3
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)


def _save(figure: "Figure", file: Path) -> list[Path]:
    written = []
    for kind, metadata in METADATA.items():
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=200, metadata=metadata)
        written.append(file.with_name(f"{file.name}.{kind}"))
        publish_bytes(written[-1], content.getvalue())
    return written

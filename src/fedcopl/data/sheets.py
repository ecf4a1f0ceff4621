"""Two pictures of a data set: some of its images, and who holds how many of each class."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ..errors import DataError
from .dataset import Dataset, ImageSet
from .images import BadImage

DPI = 110
PER_ROW = 10
SIDE, GAP = 72, 4  # dots of one image on the sheet, and between two
UNLABELLED = 200  # images shown where there are no classes to choose by


def contact_sheet(dataset: Dataset, file: Path) -> None:
    """A row of training images for each class; without labels, the first ones as they come."""
    rows = _rows(dataset)
    step = SIDE + GAP
    canvas = np.full((len(rows) * step, PER_ROW * step, 3), 255, np.uint8)
    for row, (_, places) in enumerate(rows):
        for column, place in enumerate(places):
            top, left = row * step, column * step
            canvas[top : top + SIDE, left : left + SIDE] = _thumbnail(dataset.train, place)
    names = [fill(name, 24) for name, _ in rows]
    figure = _figure(width=2 + canvas.shape[1] / DPI, height=canvas.shape[0] / DPI)
    axes = figure.add_axes((2 * DPI / (2 * DPI + canvas.shape[1]), 0, canvas.shape[1] / (2 * DPI + canvas.shape[1]), 1))
    axes.imshow(canvas, interpolation="none", aspect="auto")
    axes.set_yticks([row * step + SIDE / 2 for row in range(len(rows))], names, fontsize=8, parse_math=False)
    axes.tick_params(length=0, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    _save(figure, file)


def heat_map(counts: NDArray[np.int64], classes: Sequence[str], clients: Sequence[str], file: Path) -> None:
    """Clients by classes, (K, C): the area of a circle is the number of images, as the paper draws it."""
    figure = _figure(width=2.6 + 0.38 * len(clients), height=1.6 + 0.26 * len(classes))
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    client, label = np.nonzero(counts)
    held = counts[client, label]
    dots = axes.scatter(client, label, s=220 * held / max(int(counts.max(initial=0)), 1), c=held, cmap="viridis_r")
    axes.set_xticks(range(len(clients)), clients, rotation=90, fontsize=7, parse_math=False)
    axes.set_yticks(range(len(classes)), classes, fontsize=7, parse_math=False)
    axes.set(xlim=(-0.6, len(clients) - 0.4), ylim=(len(classes) - 0.4, -0.6), xlabel="client", ylabel="class")
    axes.tick_params(top=True, labeltop=True)  # with many classes the lower end is far away
    axes.grid(linewidth=0.3)
    axes.set_axisbelow(True)
    if len(held):
        figure.colorbar(dots, ax=axes, label="training images", fraction=0.05)
    _save(figure, file)


def _rows(dataset: Dataset) -> list[tuple[str, list[int]]]:
    labels = dataset.train.labels
    if labels is None:
        shown = range(min(len(dataset.train), UNLABELLED))
        return [("", list(shown[start : start + PER_ROW])) for start in range(0, len(shown), PER_ROW)]
    return [
        (name, [int(place) for place in np.flatnonzero(labels == number)[:PER_ROW]])
        for number, name in enumerate(dataset.classes)
    ]


def _thumbnail(images: ImageSet, place: int) -> NDArray[np.uint8]:
    """A square of the image; a broken one is grey."""
    try:
        picture = images.images[place].convert("RGB")
    except (BadImage, OSError):
        picture = Image.new("RGB", (SIDE, SIDE), "grey")
    return np.asarray(ImageOps.fit(picture, (SIDE, SIDE)))


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # half a second: only when a picture is asked for

    return Figure(figsize=(width, height), dpi=DPI)


def _save(figure: Any, file: Path) -> None:
    temporary = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # a name in a script its font lacks: boxes will do
            figure.savefig(temporary, format="png")
        temporary.replace(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be written: {error.strerror or error}") from error

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

PER_ROW = 10
MOST_ROWS = 50
SIDE = 64  # dots of one image on the sheet


def contact_sheet(dataset: Dataset, file: Path) -> None:
    """A row of training images for each class; without labels, the first ones as they come."""
    rows = _rows(dataset)[:MOST_ROWS]
    figure = _figure(width=1.8 + 0.7 * PER_ROW, height=0.3 + 0.72 * len(rows))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(-2.5, PER_ROW), ylim=(len(rows), -0.4))
    for row, (name, places) in enumerate(rows):
        axes.text(-0.1, row + 0.5, fill(name, 24), ha="right", va="center", fontsize=8, parse_math=False)
        for column, place in enumerate(places):
            thumbnail = _thumbnail(dataset.train, place)
            axes.imshow(thumbnail, extent=(column + 0.02, column + 0.98, row + 0.98, row + 0.02), aspect="auto")
    axes.set(xlim=(-2.5, PER_ROW), ylim=(len(rows), -0.4))  # imshow moves them
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
    axes.grid(linewidth=0.3)
    axes.set_axisbelow(True)
    if len(held):
        figure.colorbar(dots, ax=axes, label="training images", fraction=0.05)
    _save(figure, file)


def _rows(dataset: Dataset) -> list[tuple[str, list[int]]]:
    labels = dataset.train.labels
    if labels is None:
        shown = range(min(len(dataset.train), PER_ROW * MOST_ROWS))
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

    return Figure(figsize=(width, min(height, 200)), dpi=110)


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

"""A look at a whole data set before anybody works with it: counts, broken images, and two pictures."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ..errors import DataError
from .cache import Progress, in_order
from .dataset import Dataset, ImageSet, Skipped
from .digests import UNREADABLE, digest
from .images import BadImage, StoredImages, quiet
from .prepare import repeats


@dataclass(frozen=True)
class DatasetSurvey:
    """What was found. Broken images are counted in no class."""

    dataset: Dataset  # without the broken ones, which are in its `skipped`
    notes: tuple[str, ...]

    def counts(self) -> dict[str, tuple[int | None, int | None]]:
        """Of each class: its train and test images; None where nobody knows."""
        classes = self.dataset.classes
        train, test = (_by_class(images, len(classes)) for images in (self.dataset.train, self.dataset.test))
        return {
            name: (
                None if train is None else int(train[place]),
                None if test is None else int(test[place]),
            )
            for place, name in enumerate(classes)
        }


def survey(dataset: Dataset, progress: Progress = lambda done, total: None) -> DatasetSurvey:
    """Open every image once. Nothing is written anywhere."""
    first, total = len(dataset.train), len(dataset.train) + len(dataset.test)
    train, broken_train = _open_all(dataset.train, lambda done: progress(done, total))
    test, broken_test = _open_all(dataset.test, lambda done: progress(first + done, total))
    skipped: list[Skipped] = [
        *((dataset.train.names[place], reason) for place, reason in broken_train.items()),
        *((dataset.test.names[place], reason) for place, reason in broken_test.items()),
    ]
    usable = dataset.without(broken_train, broken_test, skipped)
    notes = [*repeats(train, test), *_small_clients(usable), *_empty_classes(usable)]
    return DatasetSurvey(usable, tuple(notes))


def _open_all(images: ImageSet, progress: Callable[[int], None]) -> tuple[list[str], dict[int, str]]:
    """The digest of each image, and why the broken ones are."""
    stored = images.images
    if not isinstance(stored, StoredImages):
        return [digest(image.mode, image.tobytes()) for image in stored], {}
    contents, broken = [], {}
    with quiet():
        for place, (content, reason) in enumerate(in_order(lambda place: _open(stored, place), len(stored))):
            contents.append(content)
            if reason:
                broken[place] = reason
            progress(place + 1)
    return contents, broken


def _open(stored: StoredImages, place: int) -> tuple[str, str]:
    try:
        content = stored.content(place)
    except OSError as error:
        reason = f"{UNREADABLE}{error.strerror or error}"
        return reason, reason
    try:
        stored.decode(content)
    except BadImage as reason:
        return digest(stored.kind, content), str(reason)
    return digest(stored.kind, content), ""


def _by_class(images: ImageSet, classes: int) -> NDArray[np.int64] | None:
    return None if images.labels is None else np.bincount(images.labels, minlength=classes)


def _empty_classes(dataset: Dataset) -> list[str]:
    counts = _by_class(dataset.train, len(dataset.classes))
    empty = [] if counts is None else [dataset.classes[place] for place in np.flatnonzero(counts == 0)]
    return [f"no training image of {', '.join(empty)}"] if empty else []


def _small_clients(dataset: Dataset) -> list[str]:
    if dataset.train.clients is None:
        return []
    held = np.bincount(dataset.train.clients, minlength=len(dataset.clients))
    return [
        f"the client {dataset.clients[place]} has {held[place] or 'no'} training image"
        for place in np.flatnonzero(held <= 1)
    ]


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

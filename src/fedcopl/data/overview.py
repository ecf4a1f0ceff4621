"""Overview of a data set: class counts, unusable images, a contact sheet and a heat map."""

import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from ..errors import DataError, RunFolderError
from ..files import write_bytes
from .cache import Progress, repeats
from .dataset import Dataset, ImageSet, Skipped
from .decoding import BadImage, Span
from .images import UNREADABLE, StoredImages, digest, silence_decoders
from .parallel import in_order


@dataclass(frozen=True)
class DatasetSurvey:
    """Result of a survey. Unusable images are not counted."""

    dataset: Dataset  # without unusable images, which are in its `skipped`
    notes: tuple[str, ...]

    def counts(self) -> dict[str, tuple[int | None, int | None]]:
        """Number of train and test images of each class; None without labels."""
        classes = self.dataset.classes
        train, test = (_by_class(images, len(classes)) for images in (self.dataset.train, self.dataset.test))
        counts = ([None] * len(classes) if split is None else split.tolist() for split in (train, test))
        return dict(zip(classes, zip(*counts, strict=True), strict=True))


def survey(dataset: Dataset, progress: Progress = lambda done, total: None) -> DatasetSurvey:
    """Decode every image once; nothing is written."""
    first, total = len(dataset.train), len(dataset.train) + len(dataset.test)
    train = _open_all(dataset.train, lambda done: progress(done, total))
    test = _open_all(dataset.test, lambda done: progress(first + done, total))
    broken_train, broken_test = _broken(train), _broken(test)
    skipped: list[Skipped] = [
        *((dataset.train.names[index], reason) for index, reason in broken_train.items()),
        *((dataset.test.names[index], reason) for index, reason in broken_test.items()),
    ]
    usable = dataset.without(broken_train, broken_test, skipped)
    again = repeats([seen.digest for seen in train], [seen.digest for seen in test])
    notes = [*again, *_small_clients(usable), *_empty_classes(usable), *_how_read([*train, *test])]
    return DatasetSurvey(usable, tuple(notes))


class _OpenedImage(NamedTuple):
    """Result of decoding an image, without its pixels."""

    digest: str
    reason: str = ""  # why it cannot be used
    remarks: tuple[str, ...] = ()  # how it was decoded
    span: Span | None = None


def _open_all(images: ImageSet, progress: Callable[[int], None]) -> list[_OpenedImage]:
    stored = images.images
    if not isinstance(stored, StoredImages):
        return [_OpenedImage(digest(image.mode, image.tobytes())) for image in stored]
    opened = []
    with silence_decoders():
        for seen in in_order(lambda index: _open(stored, index), len(stored)):
            opened.append(seen)
            progress(len(opened))
    return opened


def _open(stored: StoredImages, index: int) -> _OpenedImage:
    try:
        content = stored.content(index)
    except OSError as error:
        reason = f"{UNREADABLE}{error.strerror or error}"
        return _OpenedImage(reason, reason)
    known = digest(stored.kind(index), content)
    try:
        picture = stored.picture(index, content)
    except BadImage as reason:
        return _OpenedImage(known, str(reason))
    return _OpenedImage(known, "", picture.remarks, picture.span)


def _broken(opened: Sequence[_OpenedImage]) -> dict[int, str]:
    return {index: seen.reason for index, seen in enumerate(opened) if seen.reason}


def _how_read(opened: Sequence[_OpenedImage]) -> list[str]:
    """Count the remarks on how images were decoded."""
    counts = Counter(remark for seen in opened for remark in seen.remarks)
    spans: dict[str, list[Span]] = {}
    for seen in opened:
        if seen.span is not None:
            spans.setdefault(seen.remarks[0], []).append(seen.span)
    return [f"{many:,} x {remark}{_reach(spans.get(remark, []))}" for remark, many in counts.items()]


def _reach(spans: Sequence[Span]) -> str:
    """Describe the intensity range of all images, and how to scale all alike if each was scaled by its own."""
    if len(set(spans)) < 2:
        return f": {spans[0].low:.10g} to {spans[0].high:.10g}" if spans else ""
    low, high = min(span.low for span in spans), max(span.high for span in spans)
    return f": in all {low:.10g} to {high:.10g}; data.window={low:.10g}:{high:.10g} scales all alike"


def _by_class(images: ImageSet, classes: int) -> NDArray[np.int64] | None:
    return None if images.labels is None else np.bincount(images.labels, minlength=classes)


def _empty_classes(dataset: Dataset) -> list[str]:
    counts = _by_class(dataset.train, len(dataset.classes))
    empty = [] if counts is None else [dataset.classes[index] for index in np.flatnonzero(counts == 0)]
    return [f"no training image of {', '.join(empty)}"] if empty else []


def _small_clients(dataset: Dataset) -> list[str]:
    if dataset.train.clients is None:
        return []
    held = np.bincount(dataset.train.clients, minlength=len(dataset.clients))
    return [
        f"the client {dataset.clients[index]} has {held[index] or 'no'} training image"
        for index in np.flatnonzero(held <= 1)
    ]


_PER_ROW = 10
_SIDE, _GAP = 72, 4  # pixels of one image on the sheet, and between two
_CELL = 28  # pixels of a client and class
_LONGEST = 30  # letters of a name
_LIGHT_BLUE, _DARK_BLUE = np.array([158, 202, 225]), np.array([8, 48, 107])
_FONT = ImageFont.load_default(12)
_UNLABELLED = 200  # images shown without labels


def contact_sheet(dataset: Dataset, file: Path) -> None:
    """Draw a row of training images for each class; without labels, the first images."""
    rows, step = _rows(dataset), _SIDE + _GAP
    margin = _widest([name for name, _ in rows]) + 2 * _GAP
    sheet = Image.new("RGB", (margin + _PER_ROW * step, max(len(rows) * step, 1)), "white")
    draw = ImageDraw.Draw(sheet)
    for row, (name, indices) in enumerate(rows):
        draw.text((margin - _GAP, row * step + _SIDE / 2), _line(name), "black", _FONT, anchor="rm")
        with silence_decoders():
            for column, number in enumerate(indices):
                sheet.paste(_thumbnail(dataset.train, number), (margin + column * step, row * step))
    _save(sheet, file)


def heat_map(counts: NDArray[np.int64], classes: Sequence[str], clients: Sequence[str], file: Path) -> None:
    """Draw counts (K, C) as circles whose area is the number of images, as in the paper."""
    left, top = _widest(classes) + 2 * _GAP, _widest(clients) + 2 * _GAP
    picture = Image.new("RGB", (left + len(clients) * _CELL + _GAP, top + len(classes) * _CELL + _GAP), "white")
    draw = ImageDraw.Draw(picture)
    for row, name in enumerate(classes):
        draw.text((left - _GAP, top + (row + 0.5) * _CELL), _line(name), "black", _FONT, anchor="rm")
    for column, name in enumerate(clients):
        picture.paste(_upright(name, top - _GAP), (left + column * _CELL, 0))
    for client, label in np.argwhere(counts):
        middle = left + (client + 0.5) * _CELL, top + (label + 0.5) * _CELL
        share = counts[client, label] / counts.max()
        red, green, blue = (_LIGHT_BLUE + share * (_DARK_BLUE - _LIGHT_BLUE)).astype(int).tolist()
        draw.circle(middle, max(0.5 * _CELL * share**0.5, 1), (red, green, blue))
    _save(picture, file)


def _line(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."


def _widest(names: Sequence[str]) -> int:
    return math.ceil(max((_FONT.getlength(_line(name)) for name in names), default=0))


def _upright(name: str, height: int) -> Image.Image:
    """Draw a name vertically, as wide as a cell."""
    strip = Image.new("RGB", (height, _CELL), "white")
    ImageDraw.Draw(strip).text((0, _CELL / 2), _line(name), "black", _FONT, anchor="lm")
    return strip.rotate(90, expand=True)


def _rows(dataset: Dataset) -> list[tuple[str, list[int]]]:
    labels = dataset.train.labels
    if labels is None:
        shown = range(min(len(dataset.train), _UNLABELLED))
        return [("", list(shown[start : start + _PER_ROW])) for start in range(0, len(shown), _PER_ROW)]
    return [
        (name, [int(index) for index in np.flatnonzero(labels == number)[:_PER_ROW]])
        for number, name in enumerate(dataset.classes)
    ]


def _thumbnail(images: ImageSet, number: int) -> Image.Image:
    """Crop an image to a square thumbnail; an unusable one is grey."""
    try:
        picture = images.images[number].convert("RGB")
    except (BadImage, OSError):
        picture = Image.new("RGB", (_SIDE, _SIDE), "grey")
    return ImageOps.fit(picture, (_SIDE, _SIDE))


def _save(picture: Image.Image, file: Path) -> None:
    content = io.BytesIO()
    picture.save(content, "PNG")
    try:
        write_bytes(file, content.getvalue())
    except RunFolderError as error:
        raise DataError(str(error)) from error

"""Overview of a data set: images per class, unusable images, a contact sheet and a heat map of the partition."""

import io
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from ..errors import DataError, RunFolderError
from ..files import write_bytes
from ..plurals import counted
from .cache import Progress, describe_duplicates
from .dataset import Dataset, ImageSet
from .decoding import BadImage, IntensityRange
from .images import UNREADABLE, digest, silence_decoders
from .parallel import parallel_map


@dataclass(frozen=True)
class DatasetSurvey:
    """The usable images of a data set, and notes for the user."""

    dataset: Dataset  # `skipped` lists the unusable images
    notes: tuple[str, ...]

    def counts(self) -> dict[str, tuple[int | None, int | None]]:
        """Return the numbers of train and test images of each class; None for a split without labels."""
        classes = self.dataset.classes
        columns = []
        for images in (self.dataset.train, self.dataset.test):
            counts = None if images.labels is None else np.bincount(images.labels, minlength=len(classes)).tolist()
            columns.append(counts or [None] * len(classes))
        return dict(zip(classes, zip(*columns, strict=True), strict=True))


class _OpenedImage(NamedTuple):
    """The result of decoding an image, without its pixels."""

    digest: str
    reason: str = ""  # why the image cannot be used
    remarks: tuple[str, ...] = ()  # on the decoding
    intensity_range: IntensityRange | None = None


def survey(dataset: Dataset, progress: Progress = lambda done, total: None) -> DatasetSurvey:
    """Decode all images of a data set, without writing to the cache; return the usable ones, with notes."""
    train_count, total = len(dataset.train), len(dataset.train) + len(dataset.test)
    train = _open_all(dataset.train, lambda done: progress(done, total))
    test = _open_all(dataset.test, lambda done: progress(train_count + done, total))
    bad_train, bad_test = (
        {index: image.reason for index, image in enumerate(opened) if image.reason} for opened in (train, test)
    )
    usable = dataset.without(bad_train, bad_test)
    notes = describe_duplicates([image.digest for image in train], [image.digest for image in test])
    if usable.train.clients is not None:
        train_images = np.bincount(usable.train.clients, minlength=len(usable.clients))
        for index in np.flatnonzero(train_images <= 1):
            notes.append(f"the client {usable.clients[index]} has {train_images[index] or 'no'} training image")
    if usable.train.labels is not None:
        counts = np.bincount(usable.train.labels, minlength=len(usable.classes))
        empty = [usable.classes[index] for index in np.flatnonzero(counts == 0)]
        notes += [f"no training image of {', '.join(empty)}"] if empty else []
    return DatasetSurvey(usable, (*notes, *_decoding_notes([*train, *test])))


def _open_all(images: ImageSet, progress: Callable[[int], None]) -> list[_OpenedImage]:
    stored = images.images

    def open_image(index: int) -> _OpenedImage:
        try:
            content = stored.content(index)
        except OSError as error:
            reason = f"{UNREADABLE}{error.strerror or error}"
            return _OpenedImage(reason, reason)
        key = digest(stored.kind(index), content)
        try:
            picture = stored.picture(index, content)
        except BadImage as error:
            return _OpenedImage(key, str(error))
        return _OpenedImage(key, "", picture.remarks, picture.intensity_range)

    opened = []
    with silence_decoders():
        for image in parallel_map(open_image, len(stored)):
            opened.append(image)
            progress(len(opened))
    return opened


def _decoding_notes(opened: Sequence[_OpenedImage]) -> Iterator[str]:
    """Yield notes on the decoding: number of images, range of intensities, and the setting that scales all alike."""
    counts = Counter(remark for image in opened for remark in image.remarks)
    for remark, count in counts.items():
        ranges = {image.intensity_range for image in opened if image.intensity_range and image.remarks[0] == remark}
        values = ""
        if ranges:
            low, high = min(span.low for span in ranges), max(span.high for span in ranges)
            values = f": {low:.10g} to {high:.10g}"
            if len(ranges) > 1:
                values = f", together {low:.10g} to {high:.10g}; data.window={low:.10g}:{high:.10g} scales all alike"
        yield f"{counted(count, 'image')}: {remark}{values}"


_PER_ROW = 10  # images
_SIDE, _GAP = 72, 4  # pixels of an image on the contact sheet, and between two images
_CELL = 28  # pixels of a client and class in the heat map
_MAX_NAME_LENGTH = 30  # characters of a name
_LIGHT_BLUE, _DARK_BLUE = np.array([158, 202, 225]), np.array([8, 48, 107])
_FONT = ImageFont.load_default(12)
_MAX_UNLABELLED = 200  # images on the contact sheet of a data set without labels


def contact_sheet(dataset: Dataset, file: Path) -> None:
    """Draw a row of training images for each class, or the first images of a set without labels."""
    images, labels = dataset.train, dataset.train.labels
    if labels is None:
        first = range(min(len(images), _MAX_UNLABELLED))
        rows = [("", list(first[start : start + _PER_ROW])) for start in range(0, len(first), _PER_ROW)]
    else:
        rows = [
            (name, np.flatnonzero(labels == number)[:_PER_ROW].tolist()) for number, name in enumerate(dataset.classes)
        ]
    step, margin = _SIDE + _GAP, _max_text_width([name for name, _ in rows]) + 2 * _GAP
    sheet = Image.new("RGB", (margin + _PER_ROW * step, max(len(rows) * step, 1)), "white")
    draw = ImageDraw.Draw(sheet)
    for row, (name, indices) in enumerate(rows):
        draw.text((margin - _GAP, row * step + _SIDE / 2), _shortened(name), "black", _FONT, anchor="rm")
        with silence_decoders():
            for column, number in enumerate(indices):
                try:
                    picture = images.images[number].convert("RGB")
                except BadImage:
                    picture = Image.new("RGB", (_SIDE, _SIDE), "grey")
                sheet.paste(ImageOps.fit(picture, (_SIDE, _SIDE)), (margin + column * step, row * step))
    _save(sheet, file)


def heat_map(counts: NDArray[np.int64], classes: Sequence[str], clients: Sequence[str], file: Path) -> None:
    """Draw the numbers of images per client and class, (K, C), as circles of proportional area, as in the paper."""
    left, top = _max_text_width(classes) + 2 * _GAP, _max_text_width(clients) + 2 * _GAP
    picture = Image.new("RGB", (left + len(clients) * _CELL + _GAP, top + len(classes) * _CELL + _GAP), "white")
    draw = ImageDraw.Draw(picture)
    for row, name in enumerate(classes):
        draw.text((left - _GAP, top + (row + 0.5) * _CELL), _shortened(name), "black", _FONT, anchor="rm")
    for column, name in enumerate(clients):
        strip = Image.new("RGB", (top - _GAP, _CELL), "white")
        ImageDraw.Draw(strip).text((0, _CELL / 2), _shortened(name), "black", _FONT, anchor="lm")
        picture.paste(strip.rotate(90, expand=True), (left + column * _CELL, 0))
    for client, label in np.argwhere(counts):
        middle = left + (client + 0.5) * _CELL, top + (label + 0.5) * _CELL
        share = counts[client, label] / counts.max()
        red, green, blue = (_LIGHT_BLUE + share * (_DARK_BLUE - _LIGHT_BLUE)).astype(int).tolist()
        draw.circle(middle, max(0.5 * _CELL * share**0.5, 1), (red, green, blue))
    _save(picture, file)


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[: _MAX_NAME_LENGTH - 3]}..."


def _max_text_width(names: Sequence[str]) -> int:
    """Return the width of the longest name on the picture, in pixels."""
    return math.ceil(max((_FONT.getlength(_shortened(name)) for name in names), default=0))


def _save(picture: Image.Image, file: Path) -> None:
    content = io.BytesIO()
    picture.save(content, "PNG")
    try:
        write_bytes(file, content.getvalue())
    except RunFolderError as error:
        raise DataError(str(error)) from error

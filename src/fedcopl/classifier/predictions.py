"""Images to label and their predictions, batch by batch, in memory that does not grow with their number."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..clip.encoder import ENCODE_BATCH as BATCH  # as in evaluation: the same images have the same bits
from ..data.cache import Cut
from ..data.dataset import Skipped
from ..data.decoding import BadImage, DecodeOptions
from ..data.images import silence_decoders
from ..data.in_memory import GivenPicture, files_below, open_picture, pages_of
from ..data.parallel import in_order
from ..errors import DataError


class NamedImages(NamedTuple):
    """An image and its name."""

    name: str
    picture: GivenPicture


class Prediction(NamedTuple):
    """The prediction for one image."""

    image: str
    label: str | None  # None if the classifier abstains, or the image cannot be read
    probability: float | None  # of the most probable class
    abstains: bool | None  # None without a threshold
    problem: str | None  # why the image cannot be read
    top: tuple[tuple[str, float], ...]  # the most probable classes, whether it abstains or not


@dataclass(frozen=True)
class ImageBatch:
    """Some images, decoded and resized; those that cannot be read have a reason instead."""

    names: Sequence[str]
    pixels: NDArray[np.uint8]  # of the readable ones, in their order
    problems: Mapping[int, str]


def refuse_missing(paths: Iterable[str]) -> None:
    """Raise DataError if a path does not exist."""
    for path in paths:
        if not Path(path).exists():
            raise DataError(f"{path}: there is no such file or folder")


def pictures_at(paths: Sequence[str], skipped: list[Skipped], reading: DecodeOptions) -> Iterator[NamedImages]:
    """Yield the images at these paths and below folders, sorted there; each is named by its path.

    Raises:
        DataError: A path does not exist, or there is no image.
    """
    refuse_missing(paths)

    def named() -> Iterator[NamedImages]:
        for path in map(Path, paths):
            if path.is_dir():
                below = named_below(path, skipped)
                yield from (NamedImages((path / one.name).as_posix(), one.picture) for one in below)
            else:
                yield NamedImages(path.as_posix(), path)

    pictures = every_page(named(), reading)
    first = next(pictures, None)
    if first is None:
        raise DataError(f"{', '.join(paths)}: holds no image; name image files, or folders that have some")
    return chain([first], pictures)


def named_below(folder: Path, skipped: list[Skipped]) -> Iterator[NamedImages]:
    """Yield the images below a folder, named by their relative paths; other files are added to `skipped`."""
    root = folder.resolve()
    return (NamedImages(file.relative_to(root).as_posix(), file) for file in files_below(root, skipped))


def every_page(pictures: Iterable[NamedImages], reading: DecodeOptions) -> Iterator[NamedImages]:
    """Yield each page of a file as an image of its own, named file#1, file#2, ..., where the settings say so."""
    for image in pictures:
        pages = pages_of(image.picture, reading)
        several = len(pages) > 1
        yield from (
            NamedImages(f"{image.name}#{number}" if several else image.name, page)
            for number, page in enumerate(pages, start=1)
        )


def batches(pictures: Iterable[NamedImages], cut: Cut, reading: DecodeOptions) -> Iterator[ImageBatch]:
    """Yield all images in batches of a fixed size.

    Args:
        pictures: The images with their names.
        cut: Resizes and crops an image to the pixels of the model.
        reading: The settings for reading files.
    """
    waiting = iter(pictures)
    while chunk := list(islice(waiting, BATCH)):
        with silence_decoders():
            given = [image.picture for image in chunk]
            opened = list(in_order(partial(_open, given, cut, reading), len(chunk)))
        good = [pixels for pixels in opened if not isinstance(pixels, str)]
        problems = {index: reason for index, reason in enumerate(opened) if isinstance(reason, str)}
        pixels = np.stack(good) if good else np.zeros((0,), np.uint8)
        yield ImageBatch([image.name for image in chunk], pixels, problems)


def _open(pictures: Sequence[GivenPicture], cut: Cut, reading: DecodeOptions, index: int) -> NDArray[np.uint8] | str:
    try:
        return cut(open_picture(pictures[index], reading))
    except BadImage as reason:
        return str(reason)

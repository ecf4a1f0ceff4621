"""A data set whose files are read by the rules of the settings, with an image for every page where that is wanted."""

from dataclasses import replace

import numpy as np

from ..config import Data
from .dataset import Dataset, ImageSet
from .formats import pages_in
from .images import ImageFiles, StoredImages, quiet
from .parallel import in_order
from .reading import ImageReading


def read_by_settings(dataset: Dataset, data: Data) -> Dataset:
    """The same images, by the rules of `data`: window, bands, pages."""
    reading = ImageReading.of(data)
    return replace(dataset, train=_read_by(dataset.train, reading), test=_read_by(dataset.test, reading))


def _read_by(images: ImageSet, reading: ImageReading) -> ImageSet:
    stored = images.images
    if not isinstance(stored, StoredImages):
        return images
    if reading.pages == "all" and isinstance(stored, ImageFiles):
        return _every_page(images, stored.read_as(reading))
    return replace(images, images=stored.read_as(reading))


def _every_page(images: ImageSet, files: ImageFiles) -> ImageSet:
    """An image for each page, called file#1, file#2 and so on; a file of one page stays what it is."""
    with quiet():
        counts = list(in_order(lambda index: _pages_of(files, index), len(files)))
    source = np.repeat(np.arange(len(files)), counts)
    page = [number if many > 1 else files.pages[index] for index, many in enumerate(counts) for number in range(many)]
    names = [
        images.names[index] if number is None or counts[index] == 1 else f"{images.names[index]}#{number + 1}"
        for index, number in zip(source.tolist(), page, strict=True)
    ]
    taken = files.take(source.tolist())
    taken.pages = page
    return ImageSet(
        taken,
        None if images.labels is None else images.labels[source],
        names,
        None if images.clients is None else images.clients[source],
    )


def _pages_of(files: ImageFiles, index: int) -> int:
    """The pages of a page are one."""
    return 1 if files.pages[index] is not None else pages_in(files.paths[index], files.reading)

"""Table of data sets: name -> reader."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..config import Data
from ..errors import ConfigError
from .dataset import TEMPLATE, Dataset, ImageSet
from .decoding import DecodeOptions
from .folder import read_folder
from .formats import pages_in
from .images import ImageFiles, StoredImages, silence_decoders
from .official import read_cifar10, read_cifar100, read_cub200, read_dtd, read_resisc45, read_ucf101
from .parallel import in_order
from .tables import read_huggingface, read_manifest

_DIGITS = "datasets/data/digits.csv.gz"  # in scikit-learn
CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def load_digits() -> Dataset:
    """Load scikit-learn's digits; every third image is a test image, as the set has no official split."""
    dots, labels = _digits()
    images = [Image.fromarray(grey) for grey in (dots * (255 / 16)).round().astype(np.uint8)]
    is_test = np.arange(len(labels)) % 3 == 2
    train, test = (
        ImageSet([images[index] for index in np.flatnonzero(chosen)], labels[chosen]) for chosen in (~is_test, is_test)
    )
    return Dataset("digits", CLASSES, TEMPLATE, train, test)


def _digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read the file of scikit-learn without importing the package, which takes a second."""
    package = find_spec("sklearn")
    file = Path(package.origin if package and package.origin else "").parent / _DIGITS
    if file.exists():
        rows = np.loadtxt(file, delimiter=",")
        return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    from sklearn import datasets  # the file may be elsewhere in another version

    bunch = datasets.load_digits()
    return bunch.images, bunch.target.astype(np.int64)


@dataclass(frozen=True)
class _Source:
    """A reader of a data set, and its description."""

    read: Callable[[Data], Dataset]
    about: str  # one line for `fedcopl data list`


SOURCES: Mapping[str, _Source] = {
    "digits": _Source(lambda data: load_digits(), "1,797 handwritten digits, embedded"),
    "folder": _Source(read_folder, "your images in train/<class>/*, or flat with classes.txt"),
    "manifest": _Source(read_manifest, "your images in a CSV or Parquet table"),
    "cifar10": _Source(read_cifar10, "60,000 tiny photographs of 10 things"),
    "cifar100": _Source(read_cifar100, "60,000 tiny photographs of 100 things"),
    "dtd": _Source(read_dtd, "5,640 textures of 47 kinds (split 1)"),
    "resisc45": _Source(read_resisc45, "31,500 satellite scenes of 45 kinds"),
    "cub200": _Source(read_cub200, "11,788 birds of 200 species (CUB-200-2011)"),
    "ucf101": _Source(read_ucf101, "11,422 middle frames of videos of 101 actions"),
    "huggingface": _Source(read_huggingface, "a data set of Hugging Face, from the hub or a folder"),
}


def load_dataset(data: Data) -> Dataset:
    """List the images of the configured data set; nothing is decoded yet."""
    if data.source not in SOURCES:
        near = difflib.get_close_matches(data.source, SOURCES, n=1)
        hint = (
            f"; did you mean {near[0]}?" if near else "; a folder of images is read by data.source=folder data.path=DIR"
        )
        raise ConfigError(f"data.source: unknown data set {data.source!r} (known: {', '.join(SOURCES)}){hint}")
    if data.source == "digits" and data.path:
        raise ConfigError("data.path: the embedded digits read no path; for your images use data.source=folder")
    DecodeOptions.of(data)  # report invalid settings before files are listed
    return read_by_settings(SOURCES[data.source].read(data), data)


def read_by_settings(dataset: Dataset, data: Data) -> Dataset:
    """Apply the decode options of the settings: window, bands, pages."""
    options = DecodeOptions.of(data)
    splits = []
    for images in (dataset.train, dataset.test):
        stored = images.images
        if isinstance(stored, StoredImages):
            images = replace(images, images=stored.with_options(options))
        splits.append(_every_page(images) if options.pages == "all" else images)
    return replace(dataset, train=splits[0], test=splits[1])


def _every_page(images: ImageSet) -> ImageSet:
    """Make an image of each page of a file, named file#1, file#2 and so on; a file of one page keeps its name."""
    files = images.images
    if not isinstance(files, ImageFiles):
        return images

    def count_pages(index: int) -> int:
        return 1 if files.pages[index] is not None else pages_in(files.paths[index], files.options)

    with silence_decoders():
        counts = list(in_order(count_pages, len(files)))
    source: list[int] = []
    names: list[str] = []
    pages: list[int | None] = []
    for index, count in enumerate(counts):
        for page in range(count):
            source.append(index)
            names.append(f"{images.names[index]}#{page + 1}" if count > 1 else images.names[index])
            pages.append(page if count > 1 else files.pages[index])
    taken = files.take(source)
    taken.pages = pages
    labels, clients = (None if numbers is None else numbers[source] for numbers in (images.labels, images.clients))
    return ImageSet(taken, labels, names, clients)

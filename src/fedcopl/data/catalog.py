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
from .cifar import read_cifar10, read_cifar100
from .dataset import Dataset, ImageSet
from .decoding import DecodeOptions
from .folder import read_folder
from .formats import pages_in
from .huggingface import read_huggingface
from .images import ImageFiles, StoredImages, silence_decoders
from .manifest import read_manifest
from .official import read_cub200, read_dtd, read_resisc45, read_ucf101
from .parallel import in_order

DIGITS = "datasets/data/digits.csv.gz"  # in scikit-learn
CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def load_digits() -> Dataset:
    """Load scikit-learn's digits; every third image is a test image, as the set has no official split."""
    dots, labels = _digits()
    is_test = np.arange(len(labels)) % 3 == 2
    return Dataset(
        "digits",
        CLASSES,
        "a photo of a {}",
        _image_set(dots[~is_test], labels[~is_test]),
        _image_set(dots[is_test], labels[is_test]),
    )


def _digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read the file of scikit-learn without importing the package, which takes a second."""
    package = find_spec("sklearn")
    file = Path(package.origin if package and package.origin else "").parent / DIGITS
    if file.exists():
        rows = np.loadtxt(file, delimiter=",")
        return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    from sklearn import datasets  # the file may be elsewhere in another version

    bunch = datasets.load_digits()
    return bunch.images, bunch.target


def _image_set(dots: NDArray[np.float64], labels: NDArray[np.int64]) -> ImageSet:
    grey = (dots * (255 / 16)).round().astype(np.uint8)
    return ImageSet([Image.fromarray(image) for image in grey], labels.astype(np.int64))


@dataclass(frozen=True)
class Source:
    """A reader of a data set, and its description."""

    read: Callable[[Data], Dataset]
    about: str  # one line for `fedcopl data list`


SOURCES: Mapping[str, Source] = {
    "digits": Source(lambda data: load_digits(), "1,797 handwritten digits, embedded"),
    "folder": Source(read_folder, "your images in train/<class>/*, or flat with classes.txt"),
    "manifest": Source(read_manifest, "your images in a CSV or Parquet table"),
    "cifar10": Source(read_cifar10, "60,000 tiny photographs of 10 things"),
    "cifar100": Source(read_cifar100, "60,000 tiny photographs of 100 things"),
    "dtd": Source(read_dtd, "5,640 textures of 47 kinds (split 1)"),
    "resisc45": Source(read_resisc45, "31,500 satellite scenes of 45 kinds"),
    "cub200": Source(read_cub200, "11,788 birds of 200 species (CUB-200-2011)"),
    "ucf101": Source(read_ucf101, "11,422 middle frames of videos of 101 actions"),
    "huggingface": Source(read_huggingface, "a data set of Hugging Face, from the hub or a folder"),
}


def load_dataset(data: Data) -> Dataset:
    """List the images of the configured data set; nothing is decoded yet."""
    if data.source not in SOURCES:
        near = difflib.get_close_matches(data.source, SOURCES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"data.source: unknown data set {data.source!r} (known: {', '.join(SOURCES)}){hint}")
    if data.source == "digits" and data.path:
        raise ConfigError("data.path: the embedded digits read no path; for your images use data.source=folder")
    DecodeOptions.of(data)  # report invalid settings before files are listed
    return read_by_settings(SOURCES[data.source].read(data), data)


def read_by_settings(dataset: Dataset, data: Data) -> Dataset:
    """Apply the decode options of the settings: window, bands, pages."""
    options = DecodeOptions.of(data)
    return replace(dataset, train=_read_by(dataset.train, options), test=_read_by(dataset.test, options))


def _read_by(images: ImageSet, options: DecodeOptions) -> ImageSet:
    stored = images.images
    if not isinstance(stored, StoredImages):
        return images
    if options.pages == "all" and isinstance(stored, ImageFiles):
        return _every_page(images, stored.with_options(options))
    return replace(images, images=stored.with_options(options))


def _every_page(images: ImageSet, files: ImageFiles) -> ImageSet:
    """Make an image of each page, named file#1, file#2 and so on; a file of one page keeps its name."""

    def pages_of(index: int) -> int:
        return 1 if files.pages[index] is not None else pages_in(files.paths[index], files.options)

    with silence_decoders():
        counts = list(in_order(pages_of, len(files)))
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

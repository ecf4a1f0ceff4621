"""Data sets by name: their readers, and resumable downloads from their publishers with checksums."""

import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..config import Data
from ..errors import ConfigError, DataError, did_you_mean
from .dataset import TEMPLATE, Dataset, ImageSet
from .decoding import DecodeOptions
from .folder import read_folder
from .images import ImageList, ImageSource, PillowImages, pages_of, silence_decoders
from .official import read_cifar, read_dataset_with_lists
from .parallel import parallel_map
from .tables import read_huggingface, read_manifest

_DIGITS = "datasets/data/digits.csv.gz"  # in scikit-learn
CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def load_digits() -> Dataset:
    """Load scikit-learn's digits; they have no official split, so every third image is a test image."""
    intensities, labels = _read_digits()  # from 0 to 16
    images = [Image.fromarray(grey) for grey in (intensities * (255 / 16)).round().astype(np.uint8)]
    is_test = np.arange(len(labels)) % 3 == 2
    train, test = (
        ImageSet(PillowImages([images[index] for index in np.flatnonzero(in_split)]), labels[in_split])
        for in_split in (~is_test, is_test)
    )
    return Dataset("digits", CLASSES, TEMPLATE, train, test)


def _read_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read the digits from a file of scikit-learn, because importing the package takes a second."""
    package = find_spec("sklearn")
    file = Path(package.origin if package and package.origin else "").parent / _DIGITS
    if file.exists():
        rows = np.loadtxt(file, delimiter=",")
        return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    from sklearn import datasets  # other versions may store the file elsewhere

    bunch = datasets.load_digits()
    return bunch.images, bunch.target.astype(np.int64)


@dataclass(frozen=True)
class _Source:
    """A reader of a data set, and its description."""

    read: Callable[[Data], Dataset]
    description: str  # one line for `fedcopl data list`


SOURCES: Mapping[str, _Source] = {
    "digits": _Source(lambda data: load_digits(), "1,797 handwritten digits, built in"),
    "folder": _Source(read_folder, "your images in train/<class>/*, or flat with classes.txt"),
    "manifest": _Source(read_manifest, "your images in a CSV or Parquet table"),
    "cifar10": _Source(read_cifar, "60,000 tiny photographs of 10 things"),
    "cifar100": _Source(read_cifar, "60,000 tiny photographs of 100 things"),
    "dtd": _Source(read_dataset_with_lists, "5,640 textures of 47 kinds (split 1)"),
    "resisc45": _Source(read_dataset_with_lists, "31,500 satellite scenes of 45 kinds"),
    "cub200": _Source(read_dataset_with_lists, "11,788 birds of 200 species (CUB-200-2011)"),
    "ucf101": _Source(read_dataset_with_lists, "11,422 middle frames of videos of 101 actions"),
    "huggingface": _Source(read_huggingface, "a data set of Hugging Face, from the hub or a folder"),
}


def load_dataset(data: Data) -> Dataset:
    """List the images of the configured data set without decoding them."""
    if data.source not in SOURCES:
        hint = did_you_mean(data.source, SOURCES) or "; a folder of images is read by data.source=folder data.path=DIR"
        raise ConfigError(f"data.source: unknown data set {data.source!r} (known: {', '.join(SOURCES)}){hint}")
    if data.source == "digits" and data.path:
        raise ConfigError("data.path: the built-in digits have no path; for your images use data.source=folder")
    DecodeOptions.of(data)  # reports invalid settings before files are listed
    return with_decode_options(SOURCES[data.source].read(data), data)


def with_decode_options(dataset: Dataset, data: Data) -> Dataset:
    """Set the options with which images will be decoded; with `pages=all`, each page becomes an image."""
    options = DecodeOptions.of(data)
    splits = []
    for images in (dataset.train, dataset.test):
        images = replace(images, images=images.images.with_options(options))
        splits.append(_split_pages(images, options) if options.pages == "all" else images)
    return replace(dataset, train=splits[0], test=splits[1])


def _split_pages(images: ImageSet, options: DecodeOptions) -> ImageSet:
    """Return a set with each page of a file as an image; pages of a multi-page file are named file#1, file#2, ..."""
    image_list = images.images
    if not isinstance(image_list, ImageList):
        return images
    with silence_decoders():
        pages_of_files = list(parallel_map(lambda index: pages_of(image_list.sources[index], options), len(image_list)))
    rows: list[int] = []
    names: list[str] = []
    sources: list[ImageSource] = []
    for row, (name, pages) in enumerate(zip(images.names, pages_of_files, strict=True)):
        rows += [row] * len(pages)
        names += [name] if len(pages) == 1 else [f"{name}#{number}" for number in range(1, len(pages) + 1)]
        sources += pages
    labels, clients = (None if numbers is None else numbers[rows] for numbers in (images.labels, images.clients))
    return ImageSet(image_list.with_sources(sources), labels, names, clients)


_BytesProgress = Callable[[int, int | None], None]
"""Callback with the number of downloaded bytes and the total, or None if the server does not report it."""

_PIECE = 1 << 20  # bytes
_PARTIAL_CONTENT, _RANGE_NOT_SATISFIABLE = 206, 416


@dataclass(frozen=True)
class _Download:
    """Address, checksum and content of an archive."""

    url: str
    md5: str  # by the publisher or torchvision
    folder: str  # the folder in the archive


DOWNLOADS: dict[str, _Download] = {
    "cifar10": _Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        "cifar-10-batches-py",
    ),
    "cifar100": _Download(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        "cifar-100-python",
    ),
    "dtd": _Download(
        "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
        "fff73e5086ae6bdbea199a49dfb8a4c1",
        "dtd",
    ),
    "cub200": _Download(
        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        "97eceeb196236b17998738112f37df78",
        "CUB_200_2011",
    ),
}
_BY_HAND: Mapping[str, str] = {
    "resisc45": "its authors offer it on OneDrive only: https://1drv.ms/u/s!AmgKYzARBl5ca3HNaHIlzp_IXjs",
    "ucf101": "CoOp offers the middle frames on Google Drive only; see DATASETS.md in github.com/KaiyangZhou/CoOp",
}


def download_dataset(name: str, folder: Path, progress: _BytesProgress = lambda done, total: None) -> Path:
    """Download a data set and unpack it below a folder; return the folder of the data set."""
    if name not in DOWNLOADS:
        reason = _BY_HAND.get(name, f"these can: {', '.join(DOWNLOADS)}")
        raise DataError(f"{name}: cannot be downloaded by this program; {reason}")
    download = DOWNLOADS[name]
    dataset_folder, archive = folder / download.folder, folder / download.url.rsplit("/", 1)[-1]
    if dataset_folder.exists():
        return dataset_folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not archive.exists():
            _fetch_file(download, archive, progress)
        with archive.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != download.md5:
            archive.unlink()
            raise DataError(f"{download.url}: the download has the checksum {md5}, not {download.md5}; it was removed")
        _unpack(archive, dataset_folder)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or repr(error)
        raise DataError(
            f"{download.url}: cannot be downloaded: {reason}; run the same command again to resume"
        ) from error
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from error
    archive.unlink()
    return dataset_folder


def _fetch_file(download: _Download, archive: Path, progress: _BytesProgress) -> None:
    """Download into a temporary file, resuming an interrupted download, and rename it."""
    part = archive.with_name(f"{archive.name}.part")
    received = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={received}-"} if received else {})
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE:
            raise
        part.rename(archive)  # it was complete; the caller verifies the checksum
        return
    with response, part.open("ab") as file:
        if received and response.status != _PARTIAL_CONTENT:  # the server ignores the range and sends the whole file
            file.truncate(0)
            received = 0
        length = response.headers.get("Content-Length")
        total = received + int(length) if length else None
        while piece := response.read(_PIECE):
            file.write(piece)
            received += len(piece)
            progress(received, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and received < total:
        raise ConnectionError(f"{received:,} of {total:,} bytes received")
    part.rename(archive)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack the folder in an archive under a temporary name, then rename it."""
    if not hasattr(tarfile, "data_filter"):
        raise DataError(f"{archive}: unpacking safely needs Python 3.11.4 or newer; unpack it by hand: tar xf")
    temporary = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(temporary, filter="data")  # this filter refuses paths outside of the folder
        (temporary / folder.name).rename(folder)
    except (tarfile.TarError, EOFError, FileNotFoundError) as error:
        raise DataError(f"{archive}: cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

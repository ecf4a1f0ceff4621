"""Data sets of images given in Python as paths, arrays or Pillow images, for one data set or for several sites."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError, printable
from ..plurals import counted
from .dataset import TEMPLATE, Dataset, ImageSet, Skipped, by_name, clean_class_name
from .folder import folders_in, images_below
from .images import FilePage, ImageList, ImageSource, PillowImages

Images = str | Path | Image.Image | NDArray[np.uint8] | Sequence[str | Path | Image.Image | NDArray[np.uint8]]
"""A folder, a file, a Pillow image, an array (n, height, width, 3) or (n, height, width), or a list of images."""
ImageLabels = Sequence[str] | Sequence[int] | NDArray[Any]
"""Class names, or the numbers of classes in the list of classes."""

SITES = "sites"  # the value of `data.source` for images given in Python


@dataclass(frozen=True)
class _ImageCollection:
    """Images and their names."""

    items: Sequence[ImageSource]
    names: Sequence[str]
    skipped: Sequence[Skipped] = ()  # files that are not images

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class SiteImages:
    """Images of one site."""

    name: str
    train: _ImageCollection
    test: _ImageCollection = field(default_factory=lambda: _ImageCollection((), ()))
    truth: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # of the test images


def collect_images(images: Images, argument: str) -> _ImageCollection:
    """List images with their names; error messages contain the name of the `argument`."""
    if isinstance(images, str | Path):
        path = Path(images).expanduser()
        if path.is_file():
            return _ImageCollection([FilePage(path)], [printable(path.name)])
        if not path.is_dir():
            raise DataError(f"{argument}: {path}: there is no such folder or file")
        skipped: list[Skipped] = []
        root = path.resolve()
        files = list(files_below(root, skipped))
        names = [printable(file.relative_to(root).as_posix()) for file in files]
        reasons = [(printable(name), reason) for name, reason in skipped]
        return _ImageCollection([FilePage(file) for file in files], names, reasons)
    if isinstance(images, Image.Image):
        return _ImageCollection([images], ["0"])
    if isinstance(images, np.ndarray):
        _check_array(images, argument)
        return _ImageCollection(list(images), [str(index) for index in range(len(images))])
    items = [_image_source(image, index, argument) for index, image in enumerate(images)]
    names = [printable(str(item)) if isinstance(item, FilePage) else str(index) for index, item in enumerate(items)]
    return _ImageCollection(items, names)


def files_below(folder: Path, skipped: list[Skipped], root: Path | None = None) -> Iterator[Path]:
    """Yield the image files of a folder, sorted, then those of its subfolders; one folder at a time is in memory."""
    root = root or folder
    yield from sorted(images_below(folder, root, skipped, recursive=False), key=lambda path: by_name(path.name))
    subfolders: list[Path] = []
    with suppress(DataError):  # an unreadable folder is in `skipped` already
        subfolders = sorted(folders_in(folder), key=lambda path: by_name(path.name))
    for subfolder in subfolders:
        yield from files_below(subfolder, skipped, root)


def _check_array(images: NDArray[Any], argument: str) -> None:
    if images.dtype != np.uint8:
        raise DataError(f"{argument}: arrays of images must be uint8 from 0 to 255, not {images.dtype}")
    is_grey, is_colour = images.ndim == 3 and images.shape[-1] != 3, images.ndim == 4 and images.shape[-1] == 3
    if not (is_grey or is_colour) or 0 in images.shape[1:]:
        raise DataError(
            f"{argument}: arrays of images must be (n, height, width, 3), or (n, height, width) for grey, "
            f"not {images.shape}; for a single image write image[None]"
        )


def _image_source(image: object, index: int, argument: str) -> ImageSource:
    match image:
        case str() | Path():
            return FilePage(Path(image).expanduser())
        case Image.Image():
            return image
        case np.ndarray():
            _check_array(image[None], f"{argument}, image {index}")
            return image
    raise DataError(f"{argument}: image {index} is a {type(image).__name__}, not a path, a Pillow image or an array")


def class_numbers(labels: ImageLabels, classes: Sequence[str], argument: str) -> NDArray[np.int64]:
    """Convert labels to class numbers; error messages contain the name of the `argument`."""
    labels = list(labels)
    if labels and all(isinstance(label, int | np.integer) and not isinstance(label, bool) for label in labels):
        numbers = np.array(labels, np.int64)
        wrong = numbers[(numbers < 0) | (numbers >= len(classes))]
        if len(wrong):
            raise DataError(
                f"{argument}: the label {wrong[0]} is not one of the {counted(len(classes), 'class')}, counted from 0"
            )
        return numbers
    number_of = {name: number for number, name in enumerate(classes)}
    unknown = [label for label in labels if clean_class_name(str(label)) not in number_of]
    if unknown:
        raise DataError(f"{argument}: the label {unknown[0]!r} is not among the classes ({', '.join(classes)})")
    return np.array([number_of[clean_class_name(str(label))] for label in labels], np.int64)


def collect_labelled_images(
    images: Images, labels: ImageLabels | None, classes: Sequence[str], argument: str
) -> tuple[_ImageCollection, NDArray[np.int64]]:
    """List images with their true labels; if `labels` is None, `images` is a folder with a subfolder for each class."""
    if labels is None:
        if not isinstance(images, str | Path) or not Path(images).expanduser().is_dir():
            raise DataError(
                f"{argument}: needs labels: give (images, labels), or a folder with a subfolder for each class"
            )
        folders = sorted(folders_in(Path(images).expanduser().resolve()), key=lambda path: by_name(path.name))
        labelled = [(file, folder.name) for folder in folders for file in files_below(folder, [])]
        images, labels = [file for file, _ in labelled], [label for _, label in labelled]
    pictures, truth = collect_images(images, argument), class_numbers(labels, classes, argument)
    if len(truth) != len(pictures):
        raise DataError(f"{argument}: {len(truth)} labels for {counted(len(pictures), 'image')}; give one per image")
    return pictures, truth


def dataset_of_sites(sites: Sequence[SiteImages], classes: Sequence[str]) -> Dataset:
    """Combine the sites' images into one data set with a natural partition."""
    names, truth = [site.name for site in sites], np.concatenate([site.truth for site in sites])
    train = _combine([site.train for site in sites], names)
    test = _combine([site.test for site in sites], names, truth if len(truth) else None)
    skipped = [(f"{site.name}/{name}", reason) for site in sites for name, reason in site.train.skipped]
    return Dataset(SITES, tuple(classes), TEMPLATE, train, test, tuple(names), skipped)


def dataset_of_images(
    train: _ImageCollection,
    labels: NDArray[np.int64] | None,
    test: tuple[_ImageCollection, NDArray[np.int64]] | None,
    classes: Sequence[str],
) -> Dataset:
    """Build one data set to be partitioned; `labels` are the true labels of the training images, if given."""
    test_images = ImageSet(PillowImages([]))
    if test is not None:
        test_images = ImageSet(ImageList(test[0].items), test[1], test[0].names)
    train_images = ImageSet(ImageList(train.items), labels, train.names)
    return Dataset(SITES, tuple(classes), TEMPLATE, train_images, test_images, skipped=train.skipped)


def _combine(
    parts: Sequence[_ImageCollection], sites: Sequence[str], labels: NDArray[np.int64] | None = None
) -> ImageSet:
    """Combine the images of several sites, named site/image."""
    items = [item for part in parts for item in part.items]
    names = [f"{site}/{name}" for site, part in zip(sites, parts, strict=True) for name in part.names]
    clients = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return ImageSet(ImageList(items), labels, names, clients)

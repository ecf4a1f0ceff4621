"""Data sets of images given in Python: paths, arrays or Pillow images, of one data set or of several sites."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError, printable
from ..plurals import counted
from .dataset import TEMPLATE, Dataset, ImageSet, Skipped, by_name, clean
from .folder import folders_in, images_below
from .images import FilePage, ImageList, ImageSource, PillowImages

Images = str | Path | Image.Image | NDArray[np.uint8] | Sequence[str | Path | Image.Image | NDArray[np.uint8]]
"""A folder, a file, a Pillow image, an array (n, height, width, 3) or (n, height, width), or a list of single ones."""
ImageLabels = Sequence[str] | Sequence[int] | NDArray[Any]
"""Class names, or their numbers in the list of classes."""

SITES = "sites"  # `data.source` of images given in Python


@dataclass(frozen=True)
class _Pictures:
    """Images given in Python, and their names."""

    items: Sequence[ImageSource]
    names: Sequence[str]
    skipped: Sequence[Skipped] = ()  # files that are no images

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class SiteImages:
    """Images of one site."""

    name: str
    train: _Pictures
    test: _Pictures = field(default_factory=lambda: _Pictures((), ()))
    truth: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # of the test images


def collect_images(images: Images, argument: str) -> _Pictures:
    """Collect the given images; `argument` names the argument in error messages."""
    if isinstance(images, str | Path):
        path = Path(images).expanduser()
        if path.is_file():
            return _Pictures([FilePage(path)], [printable(path.name)])
        if not path.is_dir():
            raise DataError(f"{argument}: {path}: there is no such folder or file")
        skipped: list[Skipped] = []
        root = path.resolve()
        files = list(files_below(root, skipped))
        below = [printable(file.relative_to(root).as_posix()) for file in files]
        return _Pictures(
            [FilePage(file) for file in files], below, [(printable(name), reason) for name, reason in skipped]
        )
    if isinstance(images, Image.Image):
        return _Pictures([images], ["0"])
    if isinstance(images, np.ndarray):
        _check_array(images, argument)
        return _Pictures(list(images), [str(index) for index in range(len(images))])
    items = [_single(image, index, argument) for index, image in enumerate(images)]
    names = [printable(str(item)) if isinstance(item, FilePage) else str(index) for index, item in enumerate(items)]
    return _Pictures(items, names)


def files_below(folder: Path, skipped: list[Skipped], root: Path | None = None) -> Iterator[Path]:
    """Yield the sorted image files of a folder, then those of its sub-folders, one folder in memory at a time."""
    root = root or folder
    yield from sorted(images_below(folder, root, skipped, deep=False), key=lambda path: by_name(path.name))
    below: list[Path] = []
    with suppress(DataError):  # an unreadable folder is in `skipped` already
        below = sorted(folders_in(folder), key=lambda path: by_name(path.name))
    for sub_folder in below:
        yield from files_below(sub_folder, skipped, root)


def _check_array(images: NDArray[Any], argument: str) -> None:
    if images.dtype != np.uint8:
        raise DataError(f"{argument}: arrays of images must be uint8 from 0 to 255, not {images.dtype}")
    grey, colour = images.ndim == 3 and images.shape[-1] != 3, images.ndim == 4 and images.shape[-1] == 3
    if not (grey or colour) or 0 in images.shape[1:]:
        raise DataError(
            f"{argument}: arrays of images must be (n, height, width, 3), or (n, height, width) for grey, "
            f"not {images.shape}; for a single image write image[None]"
        )


def _single(image: object, index: int, argument: str) -> ImageSource:
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
    """Convert labels to class numbers; `argument` names the argument in error messages."""
    given = list(labels)
    if given and all(isinstance(label, int | np.integer) and not isinstance(label, bool) for label in given):
        numbers = np.array(given, np.int64)
        wrong = numbers[(numbers < 0) | (numbers >= len(classes))]
        if len(wrong):
            raise DataError(
                f"{argument}: the label {wrong[0]} is not one of the {counted(len(classes), 'class')}, counted from 0"
            )
        return numbers
    number_of = {name: number for number, name in enumerate(classes)}
    unknown = [label for label in given if clean(str(label)) not in number_of]
    if unknown:
        raise DataError(f"{argument}: the label {unknown[0]!r} is not among the classes ({', '.join(classes)})")
    return np.array([number_of[clean(str(label))] for label in given], np.int64)


def collect_labelled_images(
    images: Images, labels: ImageLabels | None, classes: Sequence[str], argument: str
) -> tuple[_Pictures, NDArray[np.int64]]:
    """Collect images with their true labels; without `labels`, from a folder with a sub-folder for each class."""
    if labels is None:
        if not isinstance(images, str | Path) or not Path(images).expanduser().is_dir():
            raise DataError(
                f"{argument}: needs labels: give (images, labels), or a folder with a sub-folder for each class"
            )
        folders = sorted(folders_in(Path(images).expanduser().resolve()), key=lambda path: by_name(path.name))
        labelled = [(file, folder.name) for folder in folders for file in files_below(folder, [])]
        images, labels = [file for file, _ in labelled], [label for _, label in labelled]
    pictures, truth = collect_images(images, argument), class_numbers(labels, classes, argument)
    if len(truth) != len(pictures):
        raise DataError(f"{argument}: {counted(len(pictures), 'image')} but {len(truth)} labels")
    return pictures, truth


def dataset_of_sites(holdings: Sequence[SiteImages], classes: Sequence[str]) -> Dataset:
    """Combine the sites' images into one data set with a natural partition."""
    trains, tests = [holding.train for holding in holdings], [holding.test for holding in holdings]
    sites = [holding.name for holding in holdings]
    truth = np.concatenate([holding.truth for holding in holdings])
    return Dataset(
        SITES,
        tuple(classes),
        TEMPLATE,
        _image_set(trains, sites),
        replace(_image_set(tests, sites), labels=truth if len(truth) else None),
        tuple(sites),
        [(f"{holding.name}/{name}", reason) for holding in holdings for name, reason in holding.train.skipped],
    )


def dataset_of_images(
    train: _Pictures,
    labels: NDArray[np.int64] | None,
    test: tuple[_Pictures, NDArray[np.int64]] | None,
    classes: Sequence[str],
) -> Dataset:
    """Build one data set to be partitioned; `labels` are the true labels of the training images, where known."""
    images = replace(_image_set([train], [""]), labels=labels, clients=None)
    test_images = ImageSet(PillowImages([]))
    if test is not None:
        test_images = replace(_image_set([test[0]], [""]), labels=test[1], clients=None)
    return Dataset(SITES, tuple(classes), TEMPLATE, images, test_images, skipped=train.skipped)


def _image_set(parts: Sequence[_Pictures], sites: Sequence[str]) -> ImageSet:
    """Combine the images of several sites, each named after its site unless that has no name."""
    items = [item for pictures in parts for item in pictures.items]
    named = zip(sites, parts, strict=True)
    names = [f"{site}/{name}" if site else name for site, pictures in named for name in pictures.names]
    return ImageSet(
        ImageList(items), None, names, np.repeat(np.arange(len(parts)), [len(pictures) for pictures in parts])
    )

"""Images where they lie: opened one at a time, always by the same rules, never written.

The rules: the first frame of an animation; turned as its EXIF entry says; more than 8 bits per colour by the window of
the settings. What is transparent, CMYK or has a palette becomes RGB in the model's transform.
"""

import copy
import json
import os
import time
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .decoding import ImageReading, Picture
from .formats import read_picture
from .parallel import in_order

SUFFIXES = frozenset(".bmp .dcm .dicom .gif .heic .heif .hif .ima .jpeg .jpg .pgm .png .ppm .tif .tiff .webp".split())


class StoredImages(Sequence[Image.Image]):
    """Images that are kept as bytes somewhere and opened when asked for."""

    reading = ImageReading()

    @abstractmethod
    def content(self, index: int) -> bytes:
        """The bytes that an image is in. May raise OSError."""

    def kind(self, index: int) -> str:
        """Of the bytes: those of a file, of a page of it, or bare pixels. Same kind and bytes are the same image."""
        return "file"

    def picture(self, index: int, content: bytes) -> Picture:
        """The image in these bytes, or BadImage."""
        return read_picture(content, self.reading)

    @abstractmethod
    def take(self, indices: Sequence[int]) -> Self:
        """Some of the images."""

    def read_as(self, reading: ImageReading) -> Self:
        """The same images, by these rules."""
        same = copy.copy(self)
        same.reading = reading
        return same

    @overload
    def __getitem__(self, index: int) -> Image.Image: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Image.Image]: ...
    def __getitem__(self, index: int | slice) -> Image.Image | Sequence[Image.Image]:
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        number = range(len(self))[index]
        return self.picture(number, self.content(number)).image


class ImageFiles(StoredImages):
    """One file each, or one page of a file each."""

    def __init__(self, paths: Sequence[Path], pages: Sequence[int | None] | None = None):
        self.paths = paths
        self.pages = pages or [None] * len(paths)  # counted from 0; None: whatever stands for the file

    def __len__(self) -> int:
        return len(self.paths)

    def content(self, index: int) -> bytes:
        return self.paths[index].read_bytes()

    def kind(self, index: int) -> str:
        page = self.pages[index]
        return "file" if page is None else f"page {page}"

    def picture(self, index: int, content: bytes) -> Picture:
        return read_picture(content, self.reading, self.pages[index])

    def take(self, indices: Sequence[int]) -> Self:
        some = copy.copy(self)
        some.paths = [self.paths[index] for index in indices]
        some.pages = [self.pages[index] for index in indices]
        return some


class ImageArrays(StoredImages):
    """Small RGB images of one size, (n, height, width, 3), all in memory."""

    def __init__(self, pixels: NDArray[np.uint8]):
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def content(self, index: int) -> bytes:
        return bytes(self.pixels[index].tobytes())

    def kind(self, index: int) -> str:
        return "x".join(map(str, self.pixels.shape[1:]))

    def picture(self, index: int, content: bytes) -> Picture:
        return Picture(Image.fromarray(np.frombuffer(content, np.uint8).reshape(self.pixels.shape[1:])))

    def take(self, indices: Sequence[int]) -> Self:
        return type(self)(self.pixels[np.asarray(indices, np.int64)])


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings of decoders about images that are refused anyway, or have a harmless flaw.

    Those of pydicom may quote a patient's file.
    """
    with warnings.catch_warnings():
        for package in ("PIL", "pydicom", "tifffile", "fedcopl.data.formats"):
            warnings.filterwarnings("ignore", module=package)
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


Traits = list[int]
Index = dict[str, tuple[Traits, str]]
"""Of each path: the traits the file had when it was read, and its digest."""

UNREADABLE = "unreadable: "  # instead of a digest, with the reason
SETTLED = 2_000_000_000  # ns: a file younger than this may change again without its times showing it


def digest(kind: str, content: bytes) -> str:
    return blake2b(content, digest_size=20, person=kind.encode()[:16]).hexdigest()


def digests(images: StoredImages, known: Index) -> tuple[list[str], Index]:
    """The digest of each image, and what was learnt about the files among them."""
    if not isinstance(images, ImageFiles):
        return [_digest_or_reason(images, index) for index in range(len(images))], {}
    found = [_unchanged(images, index, known) for index in range(len(images))]
    unread = [index for index, result in enumerate(found) if result is None]
    learnt: Index = {}
    read = in_order(lambda number: _read(images, unread[number]), len(unread))
    for index, (traits, result) in zip(unread, read, strict=True):
        found[index] = result
        if traits is not None:
            learnt[_known_as(images, index)] = (traits, result)
    return [result or "" for result in found], learnt


def _known_as(images: ImageFiles, index: int) -> str:
    """In the index: a path, with the page where only that is meant."""
    kind = images.kind(index)
    return str(images.paths[index]) + ("" if kind == "file" else f" {kind}")


def _unchanged(images: ImageFiles, index: int, known: Index) -> str | None:
    try:
        traits, result = known[_known_as(images, index)]
        return result if _traits(images.paths[index]) == traits else None
    except (KeyError, OSError):
        return None


def _read(images: ImageFiles, index: int) -> tuple[Traits | None, str]:
    """Its traits, unless they cannot be relied on, and its digest."""
    path = images.paths[index]
    try:
        traits = _traits(path)
        result = _digest_or_reason(images, index)
        relied_on = _is_settled(traits) and _traits(path) == traits and not result.startswith(UNREADABLE)
        return traits if relied_on else None, result
    except OSError as error:
        return None, f"{UNREADABLE}{error.strerror or error}"


def _digest_or_reason(images: StoredImages, index: int) -> str:
    try:
        return digest(images.kind(index), images.content(index))
    except OSError as error:
        return f"{UNREADABLE}{error.strerror or error}"


def _traits(path: Path) -> Traits:
    """Size, times and number: whatever is written into a file, the second time, which nobody can set, moves."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _is_settled(traits: Traits) -> bool:
    return time.time_ns() - max(traits[1], traits[2]) > SETTLED


def read_index(file: Path) -> Index:
    """Only a shortcut: an index that is missing or damaged is begun again."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return {str(path): (list(traits), str(result)) for path, (traits, result) in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def home_of(paths: Sequence[Path]) -> str:
    """The folder that all files lie in: what an index is named after."""
    return os.path.commonpath([path.parent for path in paths]) if paths else ""

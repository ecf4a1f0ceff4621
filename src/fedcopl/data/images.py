"""Stored images, decoded on access, and digests of their content. Source files are never written.

An animation gives its first frame; EXIF orientation is applied; more than 8 bits per channel are scaled by
`data.window`. Transparent, CMYK and palette images become RGB in the model's transform.
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

from .decoding import DecodeOptions, Picture
from .formats import read_picture
from .parallel import in_order

SUFFIXES = frozenset(".bmp .dcm .dicom .gif .heic .heif .hif .ima .jpeg .jpg .pgm .png .ppm .tif .tiff .webp".split())


class StoredImages(Sequence[Image.Image]):
    """Sequence of encoded images that are decoded on access."""

    options = DecodeOptions()

    @abstractmethod
    def content(self, index: int) -> bytes:
        """Return the encoded bytes of an image; may raise OSError."""

    def kind(self, index: int) -> str:
        """Kind of the bytes: a file, a page of a file, or raw pixels. Equal kind and bytes mean equal images."""
        return "file"

    def picture(self, index: int, content: bytes) -> Picture:
        """Decode the bytes; raises BadImage."""
        return read_picture(content, self.options)

    @abstractmethod
    def take(self, indices: Sequence[int]) -> Self:
        """Return a subset."""

    def with_options(self, options: DecodeOptions) -> Self:
        """Return these images with other decode options."""
        copied = copy.copy(self)
        copied.options = options
        return copied

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
    """Images in files, one per file or one per page."""

    def __init__(self, paths: Sequence[Path], pages: Sequence[int | None] | None = None):
        self.paths = paths
        self.pages = pages or [None] * len(paths)  # counted from 0; None: chosen by the decode options

    def __len__(self) -> int:
        return len(self.paths)

    def content(self, index: int) -> bytes:
        return self.paths[index].read_bytes()

    def kind(self, index: int) -> str:
        page = self.pages[index]
        return "file" if page is None else f"page {page}"

    def picture(self, index: int, content: bytes) -> Picture:
        return read_picture(content, self.options, self.pages[index])

    def take(self, indices: Sequence[int]) -> Self:
        some = copy.copy(self)
        some.paths = [self.paths[index] for index in indices]
        some.pages = [self.pages[index] for index in indices]
        return some


class ImageArrays(StoredImages):
    """RGB images of one size in memory, (n, height, width, 3)."""

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
def silence_decoders() -> Iterator[None]:
    """Suppress warnings of decoders: refused images are listed anyway, and pydicom's may quote patient data."""
    with warnings.catch_warnings():
        for package in ("PIL", "pydicom", "tifffile", "fedcopl.data.formats"):
            warnings.filterwarnings("ignore", module=package)
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


_FileStat = list[int]
_Index = dict[str, tuple[_FileStat, str]]
"""Path -> the file's stat when it was read, and the digest of its content."""

UNREADABLE = "unreadable: "  # prefix of the reason that replaces a digest
_SETTLED = 2_000_000_000  # ns: a younger file may change again within the resolution of its times


def digest(kind: str, content: bytes) -> str:
    """Digest of an image's kind and bytes."""
    return blake2b(content, digest_size=20, person=kind.encode()[:16]).hexdigest()


def digests(images: StoredImages, known: _Index) -> tuple[list[str], _Index]:
    """Digest all images; files that are unchanged since `known` are not read.

    Returns:
        The digests, and new entries for the index.
    """
    if not isinstance(images, ImageFiles):
        return [_digest_or_reason(images, index) for index in range(len(images))], {}
    found = [_unchanged(images, index, known) for index in range(len(images))]
    unread = [index for index, result in enumerate(found) if result is None]
    new: _Index = {}
    read = in_order(lambda number: _read(images, unread[number]), len(unread))
    for index, (stat, result) in zip(unread, read, strict=True):
        found[index] = result
        if stat is not None:
            new[_index_key(images, index)] = (stat, result)
    return [result or "" for result in found], new


def _index_key(images: ImageFiles, index: int) -> str:
    """Key of an image in the index: its path, and its page if it is one."""
    kind = images.kind(index)
    return str(images.paths[index]) + ("" if kind == "file" else f" {kind}")


def _unchanged(images: ImageFiles, index: int, known: _Index) -> str | None:
    try:
        stat, result = known[_index_key(images, index)]
        return result if _file_stat(images.paths[index]) == stat else None
    except (KeyError, OSError):
        return None


def _read(images: ImageFiles, index: int) -> tuple[_FileStat | None, str]:
    """Return the file's stat, or None if it may still change, and its digest."""
    path = images.paths[index]
    try:
        stat = _file_stat(path)
        result = _digest_or_reason(images, index)
        is_settled = time.time_ns() - max(stat[1], stat[2]) > _SETTLED and _file_stat(path) == stat
        return stat if is_settled and not result.startswith(UNREADABLE) else None, result
    except OSError as error:
        return None, f"{UNREADABLE}{error.strerror or error}"


def _digest_or_reason(images: StoredImages, index: int) -> str:
    try:
        return digest(images.kind(index), images.content(index))
    except OSError as error:
        return f"{UNREADABLE}{error.strerror or error}"


def _file_stat(path: Path) -> _FileStat:
    """Size, mtime, ctime and inode; a write always moves ctime, which programs cannot set."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def read_index(file: Path) -> _Index:
    """Read the index of digests; a missing or damaged one counts as empty."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return {str(path): (list(stat), str(result)) for path, (stat, result) in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def common_folder(paths: Sequence[Path]) -> str:
    """Return the common parent folder of all files, which names their index."""
    return os.path.commonpath([path.parent for path in paths]) if paths else ""

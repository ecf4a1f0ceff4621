"""Stored images, decoded on access, and digests of their content. Source files are never written.

An animation gives its first frame; EXIF orientation is applied; more than 8 bits per channel are scaled by
`data.window`. Transparent, CMYK and palette images become RGB in the model's transform.
"""

import copy
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
        """Return the kind of the bytes: file, page of a file, or raw pixels. Equal kind and bytes are equal images."""
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


class PillowImages(StoredImages):
    """Small decoded images in memory, which are not cached."""

    def __init__(self, images: Sequence[Image.Image]):
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def content(self, index: int) -> bytes:
        return self._images[index].tobytes()

    def kind(self, index: int) -> str:
        return self._images[index].mode

    def picture(self, index: int, content: bytes) -> Picture:
        return Picture(self._images[index])

    def take(self, indices: Sequence[int]) -> Self:
        return type(self)([self._images[index] for index in indices])


@contextmanager
def silence_decoders() -> Iterator[None]:
    """Suppress warnings of decoders: refused images are listed anyway, and pydicom's may quote patient data."""
    with warnings.catch_warnings():
        for package in ("PIL", "pydicom", "tifffile", "fedcopl.data.formats"):
            warnings.filterwarnings("ignore", module=package)
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


_FileStat = list[int]
DigestIndex = dict[str, tuple[_FileStat, str]]
"""Path -> the file's stat when it was read, and the digest of its content."""

UNREADABLE = "unreadable: "  # prefix of the reason that replaces a digest
_SETTLED = 2_000_000_000  # ns: a younger file may change again within the resolution of its times


def digest(kind: str, content: bytes) -> str:
    """Return the digest of an image's kind and bytes."""
    return blake2b(content, digest_size=20, person=kind.encode()[:16]).hexdigest()


def digests(images: StoredImages, index_before: DigestIndex) -> tuple[list[str], DigestIndex]:
    """Digest all images; files that are unchanged since they were added to `index_before` are not read.

    Returns:
        The digests, or reasons that begin with `UNREADABLE`, and new entries for the index.
    """

    def digest_or_reason(index: int) -> str:
        try:
            return digest(images.kind(index), images.content(index))
        except OSError as error:
            return f"{UNREADABLE}{error.strerror or error}"

    if not isinstance(images, ImageFiles):
        return [digest_or_reason(index) for index in range(len(images))], {}
    paths = images.paths
    keys = [
        str(path) if page is None else f"{path} page {page}" for path, page in zip(paths, images.pages, strict=True)
    ]
    results: list[str | None] = []
    for path, key in zip(paths, keys, strict=True):
        stat, result = index_before.get(key, (None, ""))
        results.append(result if stat is not None and _file_stat(path) == stat else None)

    def read(index: int) -> tuple[_FileStat | None, str]:
        """Return the file's stat, or None if it may still change, and its digest."""
        stat = _file_stat(paths[index])
        result = digest_or_reason(index)
        if stat is None or result.startswith(UNREADABLE):
            return None, result
        is_settled = time.time_ns() - max(stat[1], stat[2]) > _SETTLED and _file_stat(paths[index]) == stat
        return stat if is_settled else None, result

    unread = [index for index, result in enumerate(results) if result is None]
    new: DigestIndex = {}
    for index, (stat, result) in zip(unread, in_order(lambda n: read(unread[n]), len(unread)), strict=True):
        results[index] = result
        if stat is not None:
            new[keys[index]] = (stat, result)
    return [result or "" for result in results], new


def _file_stat(path: Path) -> _FileStat | None:
    """Return size, mtime, ctime and inode, None without a file; a write always moves ctime, which no program sets."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]

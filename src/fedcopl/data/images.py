"""Lists of encoded images that are decoded on access, and digests of their content."""

import copy
import io
import json
import time
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Self, overload

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ..errors import RunFolderError
from ..files import write_text
from .decoding import BadImage, DecodeOptions, Picture
from .formats import pages_in, read_picture
from .parallel import parallel_map


class StoredImages(Sequence[Image.Image]):
    """A sequence of encoded images; access to an element decodes it, or raises BadImage.

    The first frame of an animation is used, EXIF orientation is applied, and more than 8 bits per channel are scaled
    as `options` say. Transparent, CMYK and palette images become RGB later, in the model's transform.
    """

    options = DecodeOptions()

    @abstractmethod
    def content(self, index: int) -> bytes:
        """Return the encoded bytes of an image; may raise OSError."""

    def kind(self, index: int) -> str:
        """Return the kind of the bytes, such as a file or raw pixels: images of equal kind and bytes are equal."""
        return "file"

    def digest(self, index: int) -> str:
        """Return the digest of an image's kind and bytes, or the reason after `UNREADABLE` why it cannot be read."""
        try:
            return digest(self.kind(index), self.content(index))
        except OSError as error:
            return f"{UNREADABLE}{error.strerror or error}"

    def picture(self, index: int, content: bytes) -> Picture:
        """Decode the content of an image; raises BadImage."""
        return read_picture(content, self.options)

    def file(self, index: int) -> "FilePage | None":
        """Return the file of an image; None for images in memory or in a table."""
        return None

    @abstractmethod
    def take(self, indices: Sequence[int]) -> Self:
        """Return the images at these positions."""

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
        try:
            content = self.content(number)
        except OSError as error:
            raise BadImage(f"{UNREADABLE}{error.strerror or error}") from error
        return self.picture(number, content).image


class FilePage(NamedTuple):
    """A page of an image file."""

    path: Path
    page: int | None = None  # counted from 0; None: the page that the decode options choose

    def __str__(self) -> str:
        return str(self.path) if self.page is None else f"{self.path} page {self.page}"


ImageSource = FilePage | Image.Image | NDArray[np.uint8]


class ImageList(StoredImages):
    """A list of files, pages of files, Pillow images and arrays; images in memory are encoded as TIFF."""

    def __init__(self, sources: Sequence[ImageSource]):
        self.sources = sources

    def __len__(self) -> int:
        return len(self.sources)

    def content(self, index: int) -> bytes:
        source = self.sources[index]
        if isinstance(source, FilePage):
            return source.path.read_bytes()
        image = Image.fromarray(source) if isinstance(source, np.ndarray) else ImageOps.exif_transpose(source)
        file = io.BytesIO()
        # Uncompressed TIFF is fast and supports nearly all modes of Pillow.
        (image.convert("RGB") if image.mode in ("HSV", "PA", "RGBX") else image).save(file, "TIFF")
        return file.getvalue()

    def file(self, index: int) -> FilePage | None:
        source = self.sources[index]
        return source if isinstance(source, FilePage) else None

    def kind(self, index: int) -> str:
        page = self._page(index)
        return "file" if page is None else f"page {page}"

    def picture(self, index: int, content: bytes) -> Picture:
        return read_picture(content, self.options, self._page(index))

    def take(self, indices: Sequence[int]) -> Self:
        return self.with_sources([self.sources[index] for index in indices])

    def with_sources(self, sources: Sequence[ImageSource]) -> Self:
        """Return a list of other images with the same decode options."""
        copied = copy.copy(self)
        copied.sources = sources
        return copied

    def _page(self, index: int) -> int | None:
        file = self.file(index)
        return None if file is None else file.page


def pages_of(source: ImageSource, options: DecodeOptions) -> Sequence[ImageSource]:
    """Return the pages of an image file if `options.pages` is "all", otherwise only the given image."""
    if options.pages != "all" or not isinstance(source, FilePage) or source.page is not None:
        return [source]
    count = pages_in(source.path, options)
    return [source] if count == 1 else [FilePage(source.path, page) for page in range(count)]


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
    """Small decoded images in memory, which `PixelCache` does not store."""

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
    """Suppress warnings of decoders: unusable images are reported anyway, and pydicom may warn with patient data."""
    with warnings.catch_warnings():
        for package in ("PIL", "pydicom", "tifffile", "fedcopl.data.formats", "fedcopl.data.dicom"):
            warnings.filterwarnings("ignore", module=package)
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


UNREADABLE = "unreadable: "  # prefix of a reason that is stored instead of a digest
_SETTLING_TIME = 2_000_000_000  # ns; a file that is changed twice within this time may keep equal times


def digest(kind: str, content: bytes) -> str:
    """Return the digest of an image's kind and bytes."""
    return blake2b(content, digest_size=20, person=kind.encode()[:16]).hexdigest()


_FileStat = list[int]


def digests(images: StoredImages, index_file: Path | None = None) -> list[str]:
    """Return the digests of all images, or for an unreadable image the reason after `UNREADABLE`.

    The index file stores the digests of files with their sizes and times, so that unchanged files are not read again.
    If it is damaged or cannot be written, files are read again.
    """
    files = [images.file(number) for number in range(len(images))]
    if not any(files):
        return [images.digest(number) for number in range(len(images))]
    index = {} if index_file is None else _read_index(index_file)
    results: dict[int, str] = {}
    for number, file in enumerate(files):
        stat, result = index.get(str(file), (None, ""))
        if file is not None and stat is not None and _file_stat(file.path) == stat:
            results[number] = result
    unread = [number for number in range(len(images)) if number not in results]

    def stat_and_digest(position: int) -> tuple[_FileStat | None, str]:
        """Return the file's stat (None if it changed so recently that another write could keep it) and the digest."""
        file = files[unread[position]]
        stat = None if file is None else _file_stat(file.path)
        result = images.digest(unread[position])
        if file is None or stat is None or result.startswith(UNREADABLE):
            return None, result
        is_settled = time.time_ns() - max(stat[1], stat[2]) > _SETTLING_TIME and _file_stat(file.path) == stat
        return stat if is_settled else None, result

    new_entries = {}
    for number, (stat, result) in zip(unread, parallel_map(stat_and_digest, len(unread)), strict=True):
        results[number] = result
        if stat is not None:
            new_entries[str(files[number])] = (stat, result)
    if index_file is not None and new_entries:
        with suppress(OSError, RunFolderError), FileLock(index_file.with_suffix(".lock")):
            write_text(index_file, json.dumps(_read_index(index_file) | new_entries))
    return [results[number] for number in range(len(images))]


def _read_index(file: Path) -> dict[str, tuple[_FileStat, str]]:
    """Read the stat and the digest of each file; a missing or damaged index is empty."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): (list(stat), str(result)) for name, (stat, result) in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _file_stat(path: Path) -> _FileStat | None:
    """Return size, mtime, ctime and inode of a file, or None; programs can set mtime, but not ctime."""
    with suppress(OSError):
        stat = path.stat()
        return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    return None

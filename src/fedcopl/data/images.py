"""Images where they lie: opened one at a time, always by the same rules, never written.

The rules: the first frame of an animation; turned as its EXIF entry says; more than 8 bits per colour by the window of
the settings. What is transparent, CMYK or has a palette becomes RGB in the model's transform.
"""

import copy
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .formats import read_picture
from .reading import ImageReading, Picture

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

"""Images where they lie: opened one at a time, always by the same rules, never written.

The rules, for whatever Pillow can read: the first frame of an animation; turned as its EXIF entry says; 16-bit grey
scaled to 8 bits by its full range. What is transparent, CMYK or has a palette becomes RGB in the model's transform.
"""

import io
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

# By name, because Pillow would run Ghostscript for an EPS file, whatever it is called.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = frozenset(".bmp .gif .jpeg .jpg .pgm .png .ppm .tif .tiff .webp".split())
MOST_PIXELS = 89_478_485  # where Pillow begins to warn of a decompression bomb: 256 MB as RGB
COLOURS = frozenset("1 L LA P PA RGB RGBA RGBX CMYK YCbCr HSV".split())  # modes that can become RGB
THINNEST = 200  # times longer than wide: scaled by its short side, such an image becomes enormous


class BadImage(Exception):
    """An image that cannot be used; the message is the reason, for the list of what was left out."""


class StoredImages(Sequence[Image.Image]):
    """Images that are kept as bytes somewhere and opened when asked for."""

    kind = "file"  # of the bytes: those of a file, or bare pixels of some size

    @abstractmethod
    def content(self, index: int) -> bytes:
        """The bytes that make up one image: the same bytes are the same image. May raise OSError."""

    @abstractmethod
    def decode(self, content: bytes) -> Image.Image:
        """The image in these bytes, or BadImage."""

    @abstractmethod
    def take(self, indices: Sequence[int]) -> Self:
        """Some of the images."""

    @overload
    def __getitem__(self, index: int) -> Image.Image: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Image.Image]: ...
    def __getitem__(self, index: int | slice) -> Image.Image | Sequence[Image.Image]:
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        return self.decode(self.content(range(len(self))[index]))


class ImageFiles(StoredImages):
    """One file each."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def content(self, index: int) -> bytes:
        return self.paths[index].read_bytes()

    def decode(self, content: bytes) -> Image.Image:
        return decode(content)

    def take(self, indices: Sequence[int]) -> Self:
        return type(self)([self.paths[index] for index in indices])


class ImageArrays(StoredImages):
    """Small RGB images of one size, (n, height, width, 3), all in memory."""

    def __init__(self, pixels: NDArray[np.uint8]):
        self.pixels = pixels
        self.kind = "x".join(map(str, pixels.shape[1:]))

    def __len__(self) -> int:
        return len(self.pixels)

    def content(self, index: int) -> bytes:
        return bytes(self.pixels[index].tobytes())

    def decode(self, content: bytes) -> Image.Image:
        return Image.fromarray(np.frombuffer(content, np.uint8).reshape(self.pixels.shape[1:]))

    def take(self, indices: Sequence[int]) -> Self:
        return type(self)(self.pixels[np.asarray(indices, np.int64)])


def decode(content: bytes) -> Image.Image:
    """The picture in a file's bytes, upright, of 8 bits per colour; BadImage says why not."""
    if not content:
        raise BadImage("the file is empty")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            _refuse_giants(image.size)
            image.load()
            return _eight_bits(_upright(image))
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage(f"not an image of a known format ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError:
        raise BadImage(f"more than {MOST_PIXELS:,} pixels") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on a damaged file
        raise BadImage(f"damaged: {_one_line(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings of Pillow's about images that are refused anyway, or have a harmless flaw."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield


def _refuse_giants(size: tuple[int, int]) -> None:
    width, height = size
    if width * height > MOST_PIXELS:
        raise BadImage(f"{width} x {height} is more than {MOST_PIXELS:,} pixels")
    if max(size) > THINNEST * min(size):
        raise BadImage(f"{width} x {height} is more than {THINNEST} times longer than wide")


def _upright(image: Image.Image) -> Image.Image:
    """A copy, so the file may be closed, turned as its EXIF entry says; a damaged entry says nothing."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image.copy()


def _eight_bits(image: Image.Image) -> Image.Image:
    """Deep grey by its full range: the brightness of one picture must not depend on its own extremes."""
    if image.mode in COLOURS:
        return image
    if not (image.mode in ("I", "F") or image.mode.startswith("I;16")):
        raise BadImage(f"colours of the kind {image.mode}, which cannot be turned into RGB")
    grey = np.asarray(image)
    if image.mode == "F" or int(grey.min(initial=0)) < 0 or int(grey.max(initial=0)) > 65535:
        raise BadImage("grey of 32 bits, whose scale is not known")
    return Image.fromarray(((grey.astype(np.uint32) + 128) // 257).astype(np.uint8))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

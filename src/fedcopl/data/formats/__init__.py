"""What files of images hold: one reader for each family of formats, and one door to them all.

The content decides, whatever a file is called.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from ..decoding import BadImage, ImageReading, Picture
from . import by_pillow, dicom, tiff
from .tiff import TIFF, refuse_endless

EXTRAS = {"dicom": "pydicom", "heic": "pillow_heif", "tiff": "tifffile"}  # extra of fedcopl -> its package


class QuietThread(threading.local):
    """Keeps decoders from logging while this thread reads: they repeat what we say, or quote a patient's file."""

    reads = False

    def filter(self, record: logging.LogRecord) -> bool:
        return not self.reads


QUIET = QuietThread()
for decoder in ("pydicom", "tifffile", "PIL.TiffImagePlugin"):
    logging.getLogger(decoder).addFilter(QUIET)


@contextmanager
def unlogged() -> Iterator[None]:
    QUIET.reads = True
    try:
        yield
    finally:
        QUIET.reads = False


def read_picture(content: bytes, reading: ImageReading, page: int | None = None) -> Picture:
    """The picture in a file's bytes, or on one of its pages counted from 0; BadImage says why not."""
    if not content:
        raise BadImage("the file is empty")
    with unlogged():
        if dicom.is_it(content):
            return dicom.read(content, reading, page)
        if by_pillow.is_heic(content):
            return by_pillow.read_heic(content)
        if content[:4] in TIFF:
            refuse_endless(content)
        try:
            return by_pillow.read(content, reading, page)
        except by_pillow.BeyondPillow:
            return tiff.read(content, reading, page)


def pages_in(path: Path, reading: ImageReading) -> int:
    """How many pictures a file holds; 1 for what cannot be read, so that it is named when it is opened.

    It is read as a whole only if its first bytes are those of TIFF or DICOM.
    """
    try:
        with path.open("rb") as file, unlogged():
            first = file.read(132)
            if dicom.is_it(first):
                return dicom.pages(first + file.read())
            is_stack = first[:4] in TIFF and not reading.bands  # pages may then be the bands
            return _tiff_pages(first + file.read()) if is_stack else 1
    except Exception:  # a package that is missing, or a damaged file, on which decoders raise nearly anything
        return 1


def _tiff_pages(content: bytes) -> int:
    refuse_endless(content)
    try:
        return by_pillow.pages(content)
    except by_pillow.BeyondPillow:
        return tiff.pages(content)


def could_be_read_now(reason: str) -> bool:
    """Whether an image was left out only for want of a package that is here now."""
    return any(f"fedcopl[{extra}]" in reason and find_spec(package) for extra, package in EXTRAS.items())

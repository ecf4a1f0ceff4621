"""Decoders of image files. The format is detected from the content, not from the file name."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from ..decoding import BadImage, DecodeOptions, Picture
from . import by_pillow, dicom
from .by_pillow import SIGNATURES, refuse_endless

_EXTRAS = {"dicom": "pydicom", "heic": "pillow_heif", "tiff": "tifffile"}  # extra of fedcopl -> its package


class _DecoderLogFilter(threading.local):
    """Suppresses logs of decoders while this thread decodes: they repeat our reasons, or quote patient data."""

    is_decoding = False

    def filter(self, record: logging.LogRecord) -> bool:
        return not self.is_decoding


_LOG_FILTER = _DecoderLogFilter()
for decoder in ("pydicom", "tifffile", "PIL.TiffImagePlugin"):
    logging.getLogger(decoder).addFilter(_LOG_FILTER)


@contextmanager
def _without_logs() -> Iterator[None]:
    _LOG_FILTER.is_decoding = True
    try:
        yield
    finally:
        _LOG_FILTER.is_decoding = False


def read_picture(content: bytes, options: DecodeOptions, page: int | None = None) -> Picture:
    """Decode a file's bytes, or one of its pages counted from 0; raises BadImage."""
    if not content:
        raise BadImage("the file is empty")
    with _without_logs():
        if dicom.is_dicom(content):
            return dicom.read(content, options, page)
        if content[:4] in SIGNATURES:
            refuse_endless(content)
        return by_pillow.read(content, options, page)


def pages_in(path: Path, options: DecodeOptions) -> int:
    """Count the pages of a file; 1 for an unreadable file, which is reported when it is decoded.

    Only TIFF and DICOM files are read as a whole.
    """
    try:
        with path.open("rb") as file, _without_logs():
            first = file.read(132)
            if dicom.is_dicom(first):
                return dicom.pages(first + file.read())
            if first[:4] not in SIGNATURES or options.bands:  # with bands, pages may be the bands
                return 1
            content = first + file.read()
            refuse_endless(content)
            return by_pillow.pages(content)
    except Exception:  # a missing package or a damaged file
        return 1


def is_readable_now(reason: str) -> bool:
    """Return whether an image was excluded for a missing package that is installed now."""
    return any(f"fedcopl[{extra}]" in reason and find_spec(package) for extra, package in _EXTRAS.items())

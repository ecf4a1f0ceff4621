"""HEIC and HEIF, as telephones take photographs: by pillow-heif, an extra."""

import io
from importlib import import_module
from typing import Any

from ..reading import BadImage, Picture, one_line, refuse_giants

BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def is_it(content: bytes) -> bool:
    return content[4:8] == b"ftyp" and content[8:12] in BRANDS


def read(content: bytes) -> Picture:
    """The photograph itself, of 8 bits and upright: pillow-heif turns it as the file says."""
    package = _package()
    try:
        file = package.open_heif(io.BytesIO(content), convert_hdr_to_8bit=True)
        refuse_giants(file.size)
        return Picture(file.to_pillow(), ("HEIC",))
    except BadImage:
        raise
    except Exception as error:  # libheif's errors, and Python's
        raise BadImage(f"damaged: {one_line(error)}") from error


def _package() -> Any:
    try:
        return import_module("pillow_heif")
    except ImportError:
        raise BadImage("HEIC, which needs: pip install 'fedcopl[heic]'") from None

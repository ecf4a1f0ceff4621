"""The chain of image file directories (IFDs) in a TIFF, one for each page: checked before a decoder follows it.

Decoders go on as long as there is a next IFD, and copy the values that its tags point to. A few bytes can hold a chain
that never ends, or tags that all point to one large block.
"""

import struct
from typing import NamedTuple

import numpy as np

from ..reading import MOST_PAGES, BadImage

TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the first bytes; the latter two of BigTIFF
TYPE_SIZES = np.array([0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8, 8, 8, 0], np.float64)  # bytes; 0: unknown
MOST_TAGS = 1_000_000  # of all pages together: a decoder takes about a second for them


class TiffLayout(NamedTuple):
    """How numbers are written in one kind of TIFF; formats are those of `struct`."""

    first: int  # where the offset of the first IFD is
    count: str  # type: ignore[assignment]  # format of the number of tags; hides tuple.count
    offset: str
    tag: np.dtype[np.void]


def refuse_endless(content: bytes) -> None:
    """Check that the pages of a TIFF can be read in bounded time and memory.

    Raises:
        BadImage: if the chain of pages loops, is too long, or if tags hold more than the file does.
    """
    layout = _layout(content)
    pages: dict[int, int] = {}  # offset of an IFD -> number of its page
    tags, offset = 0, _number(layout.offset, content, layout.first)
    while offset and offset not in pages:
        pages[offset] = len(pages) + 1
        count, start = _number(layout.count, content, offset), offset + struct.calcsize(layout.count)
        end = start + count * layout.tag.itemsize
        if end > len(content):
            return  # cut off: the decoder says so, or reads the pages before
        tags += count
        if len(pages) > MOST_PAGES or tags > MOST_TAGS:
            raise BadImage(f"more than {MOST_PAGES:,} pages, or {MOST_TAGS:,} tags in all pages")
        found = np.frombuffer(content, layout.tag, count, start)
        sizes = TYPE_SIZES[np.minimum(found["type"], len(TYPE_SIZES) - 1)] * found["count"]
        if sizes.sum() > len(content):
            raise BadImage(f"damaged: page {len(pages)} has tags of more bytes than the file")
        offset = _number(layout.offset, content, end)
    if offset:
        raise BadImage(f"damaged: after page {len(pages)} comes page {pages[offset]} again, without end")


def _layout(content: bytes) -> TiffLayout:
    order, is_big = "<" if content[:2] == b"II" else ">", content[:4] in TIFF[2:]
    size = "u8" if is_big else "u4"
    tag = np.dtype([("tag", f"{order}u2"), ("type", f"{order}u2"), ("count", order + size), ("value", order + size)])
    return TiffLayout(8, f"{order}Q", f"{order}Q", tag) if is_big else TiffLayout(4, f"{order}H", f"{order}I", tag)


def _number(kind: str, content: bytes, offset: int) -> int:
    """0 beyond the end of the file: then nothing follows."""
    if offset + struct.calcsize(kind) > len(content):
        return 0
    return int(struct.unpack_from(kind, content, offset)[0])

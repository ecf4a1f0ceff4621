"""DICOM, as hospitals keep images: by pydicom, an extra.

Nothing is taken from a file but its pixels and what says how to show them. Reasons never quote an element of it, and
pydicom's own messages, which may, are not repeated: who the patient is stays in the file.
"""

import io
import zlib
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..decoding import (
    MOST_BYTES,
    MOST_PAGES,
    BadImage,
    ImageReading,
    Picture,
    Span,
    Window,
    eight_bits,
    page_remark,
    refuse_giants,
    remark,
)

META = 144  # bytes before the elements of the file's own group, the last four of which are its length
DEFLATED = b"1.2.840.10008.1.2.1.99"
CHUNK = 2**24  # bytes that are unpacked at a time
GREY = ("MONOCHROME1", "MONOCHROME2")
BURNED_IN = "a DICOM that says that writing is burned into it: look whether it names somebody"


def is_it(content: bytes) -> bool:
    return content[128:132] == b"DICM"


def pages(content: bytes) -> int:
    """Its frames."""
    package = _package()
    _refuse_inflated(content)
    return _frames(package.dcmread(io.BytesIO(content), stop_before_pixels=True))


def read(content: bytes, reading: ImageReading, page: int | None) -> Picture:
    package = _package()
    _refuse_inflated(content)
    try:
        header = package.dcmread(io.BytesIO(content))
        frames = _frames(header)
        number = reading.page_of(frames) if page is None else page
        picture = _picture(header, number, reading.window)
        passed_over = page_remark(frames, reading) if page is None else ()
        burned_in = (BURNED_IN,) if header.get("BurnedInAnnotation") == "YES" else ()
        return picture._replace(remarks=picture.remarks + passed_over + burned_in)
    except BadImage:
        raise
    except Exception as error:  # its text may quote the file
        raise BadImage(f"a damaged DICOM ({type(error).__name__})") from None


def _package() -> Any:
    try:
        return import_module("pydicom")
    except ImportError:
        raise BadImage("DICOM, which needs: pip install 'fedcopl[dicom]'") from None


def _refuse_inflated(content: bytes) -> None:
    """BadImage for a deflated file that is more than the memory should hold: pydicom unpacks it as a whole."""
    after_meta = META + int.from_bytes(content[META - 4 : META], "little")
    if DEFLATED in content[META:after_meta]:
        unpack = zlib.decompressobj(-zlib.MAX_WBITS)
        left, there = content[after_meta:], 0
        with suppress(zlib.error):  # damaged: pydicom says so
            while left and there <= MOST_BYTES:
                there += len(unpack.decompress(left, CHUNK))
                left = unpack.unconsumed_tail
        if there > MOST_BYTES:
            raise BadImage(f"a DICOM that unpacks to more than {MOST_BYTES:,} bytes")


def _frames(header: Any) -> int:
    frames = max(int(header.get("NumberOfFrames") or 1), 1)
    if frames > MOST_PAGES:
        raise BadImage(f"a DICOM of {frames:,} frames, more than {MOST_PAGES:,}")
    return frames


def _picture(header: Any, number: int, window: Window) -> Picture:
    if "PixelData" not in header or "Rows" not in header:
        raise BadImage("a DICOM without an image")
    refuse_giants((int(header.Columns), int(header.Rows)))
    kind, stored = str(header.PhotometricInterpretation), _stored(header, number)
    if kind in GREY:
        return _grey(header, number, stored, window)
    if kind == "PALETTE COLOR":
        stored = import_module("pydicom.pixels").apply_color_lut(stored, header)
    if stored.ndim != 3 or stored.shape[-1] != 3:
        raise BadImage("a DICOM of colours that are not known")
    colours = stored if stored.dtype == np.uint8 else eight_bits(stored, Window("type"))[0]
    return Picture(Image.fromarray(colours), ("DICOM in colour",))


def _stored(header: Any, number: int) -> NDArray[Any]:
    """One frame as it is stored; colours of any kind as RGB."""
    syntax = header.file_meta.TransferSyntaxUID
    try:
        frame: NDArray[Any] = import_module("pydicom.pixels").pixel_array(header, index=number)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        how = f", compressed as {syntax.name}" if syntax.is_compressed else ""
        raise BadImage(f"a DICOM whose pixels cannot be decoded{how} ({type(error).__name__})") from None
    return frame


def _grey(header: Any, number: int, stored: NDArray[Any], window: Window) -> Picture:
    """What the scanner measured, within the window that is asked for, or else the file's own."""
    values, padding = _measured(header, number, stored), _padding(header, stored)
    is_deep = int(header.BitsStored) > 8 or values is not stored
    own = _own_window(header, number, values) if window.by == "file" or not is_deep else None
    if own is not None:
        grey, span, said = own, None, "DICOM, each by its own window"
    elif is_deep:
        grey, span = eight_bits(values, window, whole=_whole(header, number), missing=padding)
        said = remark("DICOM", window)
    else:
        grey, span, said = values.astype(np.uint8), None, "DICOM of 8 bits"
    if header.PhotometricInterpretation == "MONOCHROME1":
        grey = 255 - grey
    if padding is not None:
        grey = np.where(padding, np.uint8(0), grey)
    return Picture(Image.fromarray(grey), (said,), span)


def _measured(header: Any, number: int, stored: NDArray[Any]) -> NDArray[Any]:
    """Stored numbers as what was measured: Hounsfield units and the like. The same array where nothing is said."""
    slope, intercept = _rescale(header, number)
    if "ModalityLUTSequence" in header:
        measured: NDArray[Any] = import_module("pydicom.pixels").apply_modality_lut(stored, header)
        return measured
    return stored if (slope, intercept) == (1.0, 0.0) else stored * slope + intercept


def _rescale(header: Any, number: int) -> tuple[float, float]:
    said = _said(header, number, "PixelValueTransformationSequence", "RescaleSlope")
    return (float(said.RescaleSlope), float(said.get("RescaleIntercept") or 0)) if said is not None else (1.0, 0.0)


def _said(header: Any, number: int, group: str, element: str) -> Any:
    """Where an element stands: with the frame, with all frames, or with the image; None: nowhere."""
    for where, index in (("PerFrameFunctionalGroupsSequence", number), ("SharedFunctionalGroupsSequence", 0)):
        groups = header.get(where) or ()
        found = groups[index].get(group) if len(groups) > index else None
        if found and element in found[0]:
            return found[0]
    return header if header.get(element) is not None else None


def _whole(header: Any, number: int) -> Span:
    """All that the stored bits can say."""
    bits, (slope, intercept) = int(header.BitsStored), _rescale(header, number)
    low = -(2 ** (bits - 1)) if int(header.PixelRepresentation) else 0
    return Span(low * slope + intercept, (low + 2**bits - 1) * slope + intercept)


def _padding(header: Any, stored: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Dots around the image that were never measured."""
    value = header.get("PixelPaddingValue")
    if value is None:
        return None
    limit = header.get("PixelPaddingRangeLimit")
    low, high = sorted((int(value), int(value if limit is None else limit)))
    inside: NDArray[np.bool_] = (stored >= low) & (stored <= high)
    return inside if inside.any() and not inside.all() else None


def _own_window(header: Any, number: int, values: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Through the table or the first window that the file has (DICOM PS3.3, C.11.2); None: it has neither."""
    if header.get("VOILUTSequence"):
        shown = import_module("pydicom.pixels").apply_voi(values, header)
        bits = int(header.VOILUTSequence[0].LUTDescriptor[2])
        return eight_bits(shown, Window("numbers", 0, 2**bits - 1))[0]
    said = _said(header, number, "FrameVOILUTSequence", "WindowWidth")
    if said is None or said.get("WindowCenter") is None:
        return None
    centre, width = _first(said.WindowCenter), _first(said.WindowWidth)
    how = str(said.get("VOILUTFunction") or "LINEAR")
    if width <= 0:
        return None
    if how == "SIGMOID":
        return eight_bits(1 / (1 + np.exp(-4 * (values - centre) / width)), Window("type"))[0]
    middle, half = (centre, width / 2) if how == "LINEAR_EXACT" else (centre - 0.5, max(width - 1, 1e-9) / 2)
    return eight_bits(values, Window("numbers", middle - half, middle + half))[0]


def _first(numbers: Any) -> float:
    """A file may name several windows; the first is the usual one."""
    return float(numbers[0] if hasattr(numbers, "__getitem__") and not isinstance(numbers, str) else numbers)

"""DICOM files, by pydicom, an extra.

Only pixels and display elements are read. Reasons never quote an element, nor pydicom's messages, which may contain
patient data.
"""

import io
import zlib
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .decoding import (
    MAX_BYTES,
    MAX_PAGES,
    BadImage,
    DecodeOptions,
    Picture,
    Span,
    Window,
    check_image_size,
    eight_bits,
)

_META = 144  # bytes before the elements of the file meta group; the last four are its length
_DEFLATED = b"1.2.840.10008.1.2.1.99"
_CHUNK = 2**24  # bytes unpacked at a time
_GREY = ("MONOCHROME1", "MONOCHROME2")
_BURNED_IN = "a DICOM with burned-in annotation: check that it shows no patient data"


def is_dicom(content: bytes) -> bool:
    """Return whether the content is a DICOM file."""
    return content[128:132] == b"DICM"


def pages(content: bytes) -> int:
    """Count the frames of a file."""
    package = _package()
    _check_inflated_size(content)
    return _frames(package.dcmread(io.BytesIO(content), stop_before_pixels=True))


def read(content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode a DICOM file; raises BadImage."""
    package = _package()
    _check_inflated_size(content)
    try:
        header = package.dcmread(io.BytesIO(content))
        frames = _frames(header)
        number = options.page_of(frames) if page is None else page
        picture = _picture(header, number, options.window)
        passed_over = options.page_remark(frames) if page is None else ()
        burned_in = (_BURNED_IN,) if header.get("BurnedInAnnotation") == "YES" else ()
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


def _check_inflated_size(content: bytes) -> None:
    """Raise BadImage for a deflated file that is too large when unpacked: pydicom unpacks it as a whole."""
    after_meta = _META + int.from_bytes(content[_META - 4 : _META], "little")
    if _DEFLATED in content[_META:after_meta]:
        unpack = zlib.decompressobj(-zlib.MAX_WBITS)
        left, inflated_size = content[after_meta:], 0
        with suppress(zlib.error):  # damaged: reported by pydicom
            while left and inflated_size <= MAX_BYTES:
                inflated_size += len(unpack.decompress(left, _CHUNK))
                left = unpack.unconsumed_tail
        if inflated_size > MAX_BYTES:
            raise BadImage(f"a DICOM that unpacks to more than {MAX_BYTES:,} bytes")


def _frames(header: Any) -> int:
    frames = max(int(header.get("NumberOfFrames") or 1), 1)
    if frames > MAX_PAGES:
        raise BadImage(f"a DICOM of {frames:,} frames, more than {MAX_PAGES:,}")
    return frames


def _picture(header: Any, number: int, window: Window) -> Picture:
    if "PixelData" not in header or "Rows" not in header:
        raise BadImage("a DICOM without an image")
    check_image_size((int(header.Columns), int(header.Rows)))
    kind, stored = str(header.PhotometricInterpretation), _decode_frame(header, number)
    if kind in _GREY:
        return _grey(header, number, stored, window)
    if kind == "PALETTE COLOR":
        stored = import_module("pydicom.pixels").apply_color_lut(stored, header)
    if stored.ndim != 3 or stored.shape[-1] != 3:
        raise BadImage("a DICOM with an unsupported colour space")
    colours = stored if stored.dtype == np.uint8 else eight_bits(stored, Window("type"))[0]
    return Picture(Image.fromarray(colours), ("DICOM in colour",))


def _decode_frame(header: Any, number: int) -> NDArray[Any]:
    """Return the stored values of one frame; colours as RGB."""
    syntax = header.file_meta.TransferSyntaxUID
    try:
        frame: NDArray[Any] = import_module("pydicom.pixels").pixel_array(header, index=number)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        compression = f", compressed as {syntax.name}" if syntax.is_compressed else ""
        raise BadImage(f"a DICOM whose pixels cannot be decoded{compression} ({type(error).__name__})") from None
    return frame


def _grey(header: Any, number: int, stored: NDArray[Any], window: Window) -> Picture:
    """Scale grey values by the window of the settings, or by the file's own."""
    values, padding = _measured(header, number, stored), _padding(header, stored)
    is_deep = int(header.BitsStored) > 8 or values is not stored
    own = _own_window(header, number, values) if window.by == "file" or not is_deep else None
    if own is not None:
        grey, span, text = own, None, "DICOM, each by its own window"
    elif is_deep:
        grey, span = eight_bits(values, window, full_range=_full_range(header, number), missing=padding)
        text = window.remark("DICOM")
    else:
        grey, span, text = values.astype(np.uint8), None, "DICOM of 8 bits"
    if header.PhotometricInterpretation == "MONOCHROME1":
        grey = 255 - grey
    if padding is not None:
        grey = np.where(padding, np.uint8(0), grey)
    return Picture(Image.fromarray(grey), (text,), span)


def _measured(header: Any, number: int, stored: NDArray[Any]) -> NDArray[Any]:
    """Convert stored to measured values, e.g. Hounsfield units; the same array without a rescaling."""
    slope, intercept = _rescale(header, number)
    if "ModalityLUTSequence" in header:
        measured: NDArray[Any] = import_module("pydicom.pixels").apply_modality_lut(stored, header)
        return measured
    return stored if (slope, intercept) == (1.0, 0.0) else stored * slope + intercept


def _rescale(header: Any, number: int) -> tuple[float, float]:
    group = _find(header, number, "PixelValueTransformationSequence", "RescaleSlope")
    return (float(group.RescaleSlope), float(group.get("RescaleIntercept") or 0)) if group is not None else (1.0, 0.0)


def _find(header: Any, number: int, group: str, element: str) -> Any:
    """Return the group with an element: of the frame, of all frames, or of the image; None if there is none."""
    for where, index in (("PerFrameFunctionalGroupsSequence", number), ("SharedFunctionalGroupsSequence", 0)):
        groups = header.get(where) or ()
        sequence = groups[index].get(group) if len(groups) > index else None
        if sequence and element in sequence[0]:
            return sequence[0]
    return header if header.get(element) is not None else None


def _full_range(header: Any, number: int) -> Span:
    """Return the range of the stored bits in measured values."""
    bits, (slope, intercept) = int(header.BitsStored), _rescale(header, number)
    low = -(2 ** (bits - 1)) if int(header.PixelRepresentation) else 0
    return Span(low * slope + intercept, (low + 2**bits - 1) * slope + intercept)


def _padding(header: Any, stored: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Mask of padding pixels around the image."""
    value = header.get("PixelPaddingValue")
    if value is None:
        return None
    limit = header.get("PixelPaddingRangeLimit")
    low, high = sorted((int(value), int(value if limit is None else limit)))
    inside: NDArray[np.bool_] = (stored >= low) & (stored <= high)
    return inside if inside.any() and not inside.all() else None


def _own_window(header: Any, number: int, values: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Apply the file's own lookup table or first window (DICOM PS3.3, C.11.2); None if it has neither."""
    if header.get("VOILUTSequence"):
        shown = import_module("pydicom.pixels").apply_voi(values, header)
        bits = int(header.VOILUTSequence[0].LUTDescriptor[2])
        return eight_bits(shown, Window("numbers", 0, 2**bits - 1))[0]
    group = _find(header, number, "FrameVOILUTSequence", "WindowWidth")
    if group is None or group.get("WindowCenter") is None:
        return None
    centre, width = _first(group.WindowCenter), _first(group.WindowWidth)
    function = str(group.get("VOILUTFunction") or "LINEAR")
    if width <= 0:
        return None
    if function == "SIGMOID":
        return eight_bits(1 / (1 + np.exp(-4 * (values - centre) / width)), Window("type"))[0]
    middle, half = (centre, width / 2) if function == "LINEAR_EXACT" else (centre - 0.5, max(width - 1, 1e-9) / 2)
    return eight_bits(values, Window("numbers", middle - half, middle + half))[0]


def _first(numbers: Any) -> float:
    """Return the first of several windows."""
    return float(numbers[0] if hasattr(numbers, "__getitem__") and not isinstance(numbers, str) else numbers)

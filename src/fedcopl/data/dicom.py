"""DICOM files, read with pydicom (an extra).

Only pixels and elements about their display are read. Messages never contain elements or errors of pydicom, which may
contain patient data.
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
    IntensityRange,
    Picture,
    Window,
    check_image_size,
    import_extra,
    scale_to_uint8,
)

_META = 144  # offset of the elements of the file meta group; the four bytes before are its length
_DEFLATED = b"1.2.840.10008.1.2.1.99"
_CHUNK = 2**24  # bytes that are decompressed at a time
_GREY = ("MONOCHROME1", "MONOCHROME2")
_BURNED_IN = "a DICOM with burned-in annotation: check that it shows no patient data"


def is_dicom(content: bytes) -> bool:
    """Return whether the content is a DICOM file."""
    return content[128:132] == b"DICM"


def count_frames(content: bytes) -> int:
    """Count the frames of a file."""
    package = import_extra("pydicom", "DICOM", "dicom")
    _check_inflated_size(content)
    return _count_frames(package.dcmread(io.BytesIO(content), stop_before_pixels=True))


def read(content: bytes, options: DecodeOptions, page: int | None) -> Picture:
    """Decode one frame of a DICOM file: `page`, counted from 0, or the one of the options; raises BadImage."""
    package = import_extra("pydicom", "DICOM", "dicom")
    _check_inflated_size(content)
    try:
        header = package.dcmread(io.BytesIO(content))
        frame_count = _count_frames(header)
        frame_index = options.page_of(frame_count) if page is None else page
        picture = _picture(header, frame_index, options.window)
        page_remark = options.page_remark(frame_count) if page is None else ()
        burned_in = (_BURNED_IN,) if header.get("BurnedInAnnotation") == "YES" else ()
        return picture._replace(remarks=picture.remarks + page_remark + burned_in)
    except BadImage:
        raise
    except Exception as error:  # its message may contain elements of the file
        raise BadImage(f"a damaged DICOM ({type(error).__name__})") from None


def _check_inflated_size(content: bytes) -> None:
    """Raise BadImage for a compressed file that is too large: pydicom decompresses the whole file."""
    after_meta = _META + int.from_bytes(content[_META - 4 : _META], "little")
    if _DEFLATED in content[_META:after_meta]:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        rest, inflated_size = content[after_meta:], 0
        with suppress(zlib.error):  # pydicom reports the damage
            while rest and inflated_size <= MAX_BYTES:
                inflated_size += len(inflate.decompress(rest, _CHUNK))
                rest = inflate.unconsumed_tail
        if inflated_size > MAX_BYTES:
            raise BadImage(f"a DICOM that unpacks to more than {MAX_BYTES:,} bytes")


def _count_frames(header: Any) -> int:
    frames = max(int(header.get("NumberOfFrames") or 1), 1)
    if frames > MAX_PAGES:
        raise BadImage(f"a DICOM of {frames:,} frames, more than {MAX_PAGES:,}")
    return frames


def _picture(header: Any, frame_index: int, window: Window) -> Picture:
    """Decode one frame to an image of 8 bits per channel; colours are scaled by the full range of their type."""
    if "PixelData" not in header or "Rows" not in header:
        raise BadImage("a DICOM without an image")
    check_image_size((int(header.Columns), int(header.Rows)))
    kind, stored = str(header.PhotometricInterpretation), _decode_frame(header, frame_index)
    if kind in _GREY:
        return _grey_picture(header, frame_index, stored, window)
    if kind == "PALETTE COLOR":
        stored = import_module("pydicom.pixels").apply_color_lut(stored, header)
    if stored.ndim != 3 or stored.shape[-1] != 3:
        raise BadImage("a DICOM with an unsupported colour space")
    colours = stored if stored.dtype == np.uint8 else scale_to_uint8(stored, Window("type"))[0]
    return Picture(Image.fromarray(colours), ("DICOM in colour",))


def _decode_frame(header: Any, frame_index: int) -> NDArray[Any]:
    """Return the stored values of one frame, (height, width), or of colours as RGB, (height, width, 3)."""
    syntax = header.file_meta.TransferSyntaxUID
    try:
        frame: NDArray[Any] = import_module("pydicom.pixels").pixel_array(header, index=frame_index)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        compression = f", compressed as {syntax.name}" if syntax.is_compressed else ""
        raise BadImage(f"a DICOM whose pixels cannot be decoded{compression} ({type(error).__name__})") from None
    return frame


def _grey_picture(header: Any, frame_index: int, stored: NDArray[Any], window: Window) -> Picture:
    """Convert grey values to 8 bits, by the window of the settings or of the file; padding becomes black."""
    values, padding = _rescaled(header, frame_index, stored), _padding(header, stored)
    is_deep = int(header.BitsStored) > 8 or values is not stored  # rescaled values may have any range
    windowed = _apply_file_window(header, frame_index, values) if window.by == "file" or not is_deep else None
    if windowed is not None:
        grey, span, text = windowed, None, "DICOM, each by its own window"
    elif is_deep:
        grey, span = scale_to_uint8(values, window, full_range=_full_range(header, frame_index), missing=padding)
        text = window.remark("DICOM")
    else:
        grey, span, text = values.astype(np.uint8), None, "DICOM of 8 bits"
    if header.PhotometricInterpretation == "MONOCHROME1":
        grey = 255 - grey
    if padding is not None:
        grey = np.where(padding, np.uint8(0), grey)
    return Picture(Image.fromarray(grey), (text,), span)


def _rescaled(header: Any, frame_index: int, stored: NDArray[Any]) -> NDArray[Any]:
    """Convert stored to physical values such as Hounsfield units; without a rescaling, return `stored` itself."""
    slope, intercept = _slope_intercept(header, frame_index)
    if "ModalityLUTSequence" in header:
        rescaled: NDArray[Any] = import_module("pydicom.pixels").apply_modality_lut(stored, header)
        return rescaled
    return stored if (slope, intercept) == (1.0, 0.0) else stored * slope + intercept


def _slope_intercept(header: Any, frame_index: int) -> tuple[float, float]:
    group = _find_group(header, frame_index, "PixelValueTransformationSequence", "RescaleSlope")
    return (float(group.RescaleSlope), float(group.get("RescaleIntercept") or 0)) if group is not None else (1.0, 0.0)


def _find_group(header: Any, frame_index: int, group: str, element: str) -> Any:
    """Return the first that has the element: the group of this frame, the group of all frames, the header; or None."""
    for level, index in (("PerFrameFunctionalGroupsSequence", frame_index), ("SharedFunctionalGroupsSequence", 0)):
        groups = header.get(level) or ()
        sequence = groups[index].get(group) if len(groups) > index else None
        if sequence and element in sequence[0]:
            return sequence[0]
    return header if header.get(element) is not None else None


def _full_range(header: Any, frame_index: int) -> IntensityRange:
    """Return the range of the stored bits in physical values."""
    bits, (slope, intercept) = int(header.BitsStored), _slope_intercept(header, frame_index)
    low = -(2 ** (bits - 1)) if int(header.PixelRepresentation) else 0
    return IntensityRange(low * slope + intercept, (low + 2**bits - 1) * slope + intercept)


def _padding(header: Any, stored: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Return the mask of the padding pixels around the image; None if no pixel, or every pixel, is padding."""
    value = header.get("PixelPaddingValue")
    if value is None:
        return None
    limit = header.get("PixelPaddingRangeLimit")
    low, high = sorted((int(value), int(value if limit is None else limit)))
    is_padding: NDArray[np.bool_] = (stored >= low) & (stored <= high)
    return is_padding if is_padding.any() and not is_padding.all() else None


def _apply_file_window(header: Any, frame_index: int, values: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Apply the lookup table or first window in the file (DICOM PS3.3, C.11.2); None if it has neither."""
    if header.get("VOILUTSequence"):
        displayed = import_module("pydicom.pixels").apply_voi(values, header)
        bits = int(header.VOILUTSequence[0].LUTDescriptor[2])
        return scale_to_uint8(displayed, Window("numbers", 0, 2**bits - 1))[0]
    group = _find_group(header, frame_index, "FrameVOILUTSequence", "WindowWidth")
    if group is None or group.get("WindowCenter") is None:
        return None
    centre, width = _first_number(group.WindowCenter), _first_number(group.WindowWidth)
    function = str(group.get("VOILUTFunction") or "LINEAR")
    if width <= 0:
        return None
    if function == "SIGMOID":
        return scale_to_uint8(1 / (1 + np.exp(-4 * (values - centre) / width)), Window("type"))[0]
    middle, half = (centre, width / 2) if function == "LINEAR_EXACT" else (centre - 0.5, max(width - 1, 1e-9) / 2)
    return scale_to_uint8(values, Window("numbers", middle - half, middle + half))[0]


def _first_number(numbers: Any) -> float:
    """Return an element's number, or the first of several."""
    return float(numbers[0] if hasattr(numbers, "__getitem__") and not isinstance(numbers, str) else numbers)

"""DICOM files written by pydicom and compared with its functions; HEIC files written by libheif."""

import io
import warnings

import numpy as np
import pillow_heif
import pydicom
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels import apply_modality_lut, apply_voi_lut
from pydicom.sequence import Sequence
from pydicom.uid import (
    CTImageStorage,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
    generate_uid,
)

from data.pictures import TRANSFORM, load, noise, put
from fedcopl.data import dicom
from fedcopl.data.cache import PixelCache
from fedcopl.data.decoding import BadImage, DecodeOptions, Window
from fedcopl.data.formats import read_picture
from fedcopl.data.images import silence_decoders
from fedcopl.data.overview import survey

DRAW = np.random.default_rng(5)
USUAL = DecodeOptions()
PATIENT = "Doe^Jane"
SCAN = DRAW.integers(0, 4096, (16, 12), dtype=np.uint16)  # Hounsfield units + 1024


def scan(pixels=SCAN, *, kind="MONOCHROME2", stored=12, syntax=ExplicitVRLittleEndian, **elements) -> bytes:
    """A DICOM file of a patient; pixels is (height, width), (frames, height, width) or (height, width, 3)."""
    header = Dataset()
    header.file_meta = FileMetaDataset()
    header.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    header.file_meta.MediaStorageSOPClassUID = header.SOPClassUID = CTImageStorage
    header.file_meta.MediaStorageSOPInstanceUID = header.SOPInstanceUID = generate_uid()
    header.PatientName, header.PatientID, header.PatientBirthDate = PATIENT, "4711-Doe", "19700101"
    colours = pixels.shape[-1] == 3
    height, width = pixels.shape[-3:-1] if colours else pixels.shape[-2:]
    header.Rows, header.Columns, header.PhotometricInterpretation = height, width, kind
    header.SamplesPerPixel, header.BitsAllocated = 3 if colours else 1, 8 * pixels.dtype.itemsize
    header.BitsStored = min(stored, header.BitsAllocated)
    header.HighBit, header.PixelRepresentation = header.BitsStored - 1, int(pixels.dtype.kind == "i")
    if colours:
        header.PlanarConfiguration = 0
    elif pixels.ndim == 3:
        header.NumberOfFrames = len(pixels)
    for name, value in elements.items():
        setattr(header, name, value)
    header.PixelData = pixels.tobytes()
    if syntax.is_deflated:
        header.file_meta.TransferSyntaxUID = syntax
    elif syntax != ExplicitVRLittleEndian:
        header.compress(syntax, generate_instance_uid=False)
    file = io.BytesIO()
    header.save_as(file, enforce_file_format=True)
    return file.getvalue()


def dots(content, reading=USUAL, page=None) -> np.ndarray:
    with silence_decoders():
        return np.asarray(read_picture(content, reading, page).image)


def shown_by_pydicom(content) -> np.ndarray:
    """Apply pydicom's functions; its windows are in physical units."""
    header = pydicom.dcmread(io.BytesIO(content))
    shown = apply_voi_lut(apply_modality_lut(header.pixel_array, header), header).astype(float)
    slope, intercept = float(header.get("RescaleSlope", 1)), float(header.get("RescaleIntercept", 0))
    whole = (2**header.BitsStored - 1) * slope
    return np.rint((shown - intercept) / whole * 255)


@pytest.mark.parametrize("function", [None, "LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize(
    "rescale", [{}, {"RescaleSlope": 1, "RescaleIntercept": -1024}, {"RescaleSlope": 0.5, "RescaleIntercept": 3}]
)
def test_the_window_in_a_file_is_applied_as_by_pydicom(function, rescale):
    extra = {} if function is None else {"VOILUTFunction": function}
    content = scan(WindowCenter=[300, 40], WindowWidth=[900, 80], **rescale, **extra)
    assert np.abs(dots(content) - shown_by_pydicom(content)).max() <= 1  # halves may round to either side


def test_a_window_of_the_settings_is_in_physical_units():
    content = scan(RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=0, WindowWidth=10)
    units = SCAN.astype(float) - 1024
    expected = np.rint(np.clip((units + 1000) / 1400, 0, 1) * 255)
    picture = read_picture(content, DecodeOptions(Window("numbers", -1000, 400)))
    assert np.array_equal(np.asarray(picture.image), expected)
    assert picture.remarks == ("DICOM, scaled by the window -1000:400",)
    whole = dots(content, DecodeOptions(Window("type")))  # the full range of 12 bits
    assert np.array_equal(whole, np.rint(SCAN / 4095 * 255))


def test_without_a_window_the_range_excludes_padding():
    padded = SCAN.astype(np.int16) - 1000
    padded[0] = -2000
    content = scan(padded, stored=16, PixelPaddingValue=-2000)
    inner = padded[1:].astype(float)
    expected = np.rint((inner - inner.min()) / (inner.max() - inner.min()) * 255)
    assert np.array_equal(dots(content)[1:], expected)
    assert not dots(content)[0].any()
    negative = dots(scan(padded, kind="MONOCHROME1", stored=16, PixelPaddingValue=-2000))
    assert np.array_equal(negative[1:], 255 - expected)
    assert not negative[0].any()  # around the image it stays black


def test_monochrome1_is_inverted():
    assert np.array_equal(dots(scan(kind="MONOCHROME1")), 255 - dots(scan()))


def test_grey_and_colours_of_eight_bits_are_not_changed():
    grey = DRAW.integers(0, 200, (16, 12), dtype=np.uint8)
    assert np.array_equal(dots(scan(grey, stored=8), DecodeOptions(Window("numbers", 0, 4095))), grey)
    colours = DRAW.integers(0, 256, (16, 12, 3), dtype=np.uint8)
    assert np.array_equal(dots(scan(colours, kind="RGB", stored=8)), colours)


def test_palettes():
    table = np.arange(0, 65536, 257, dtype=np.uint16)
    tables = {
        f"{name}PaletteColorLookupTable{part}": value
        for name, values in (("Red", table), ("Green", table[::-1]), ("Blue", table * 0))
        for part, value in (("Descriptor", [256, 0, 16]), ("Data", values.tobytes()))
    }
    grey = DRAW.integers(0, 256, (16, 12), dtype=np.uint8)
    seen = dots(scan(grey, kind="PALETTE COLOR", stored=8, **tables))
    assert np.array_equal(seen, np.stack([grey, 255 - grey, grey * 0], axis=-1))


def test_frames():
    frames = DRAW.integers(0, 256, (4, 16, 12), dtype=np.uint8)
    content = scan(frames, stored=8)
    assert np.array_equal(dots(content), frames[0])
    assert np.array_equal(dots(content, DecodeOptions(pages="middle")), frames[2])
    assert np.array_equal(dots(content, USUAL, 3), frames[3])


def test_each_frame_has_its_own_window():
    def group(centre, slope):
        one = Dataset()
        one.FrameVOILUTSequence, one.PixelValueTransformationSequence = Sequence([Dataset()]), Sequence([Dataset()])
        one.FrameVOILUTSequence[0].WindowCenter, one.FrameVOILUTSequence[0].WindowWidth = centre, 101
        rescale = one.PixelValueTransformationSequence[0]
        rescale.RescaleSlope, rescale.RescaleIntercept, rescale.RescaleType = slope, 0, "US"
        return one

    content = scan(np.stack([SCAN, SCAN]), PerFrameFunctionalGroupsSequence=Sequence([group(500, 1), group(100, 2)]))
    for page, (centre, slope) in enumerate([(500, 1), (100, 2)]):
        # PS3.3, C.11.2.1.2: (x - (c - 0.5)) / (w - 1) + 0.5
        share = (SCAN.astype(float) * slope - (centre - 0.5)) / 100 + 0.5
        assert np.array_equal(dots(content, USUAL, page), np.rint(np.clip(share, 0, 1) * 255))


@pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless, JPEGLSLossless], ids=lambda uid: uid.name)
def test_lossless_compression_gives_the_same_pixels(syntax):
    content = scan(syntax=syntax) if syntax == RLELossless else recompressed(syntax)
    assert np.array_equal(dots(content), dots(scan()))


def recompressed(syntax) -> bytes:
    """By gdcm: pydicom itself writes only some kinds."""
    import tempfile
    from pathlib import Path

    import gdcm

    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder) / "plain.dcm", Path(folder) / "packed.dcm"
        plain.write_bytes(scan())
        reader = gdcm.ImageReader()
        reader.SetFileName(str(plain))
        assert reader.Read()
        change = gdcm.ImageChangeTransferSyntax()
        kinds = {
            JPEG2000Lossless: gdcm.TransferSyntax.JPEG2000Lossless,
            JPEGLSLossless: gdcm.TransferSyntax.JPEGLSLossless,
        }
        change.SetTransferSyntax(gdcm.TransferSyntax(kinds[syntax]))
        change.SetInput(reader.GetImage())
        assert change.Change()
        writer = gdcm.ImageWriter()
        writer.SetFile(reader.GetFile())
        writer.SetImage(change.GetOutput())
        writer.SetFileName(str(packed))
        assert writer.Write()
        return packed.read_bytes()


def test_no_message_contains_patient_data(tmp_path, capfd, caplog):
    with silence_decoders():
        odd = scan(PatientAge="4711-Doe-years", WindowWidth="0")
    caplog.clear()
    put(tmp_path, "pictures/cat/IM0001", scan(BurnedInAnnotation="YES"))  # scanners write no suffix
    put(tmp_path, "pictures/cat/short.dcm", scan()[:-50])
    put(tmp_path, "pictures/cat/odd.dcm", odd)
    put(tmp_path, "pictures/cat/half.dcm", scan()[:400])
    put(tmp_path, "pictures/cat/DICOMDIR", scan())
    put(tmp_path, "pictures/cat/report.dcm", without_image())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        dataset = load("folder", tmp_path / "pictures")
        found = survey(dataset)
        PixelCache(tmp_path / "cache").pixels(dataset.train, TRANSFORM.resize_and_crop, TRANSFORM.key)
    assert found.dataset.train.names == ["cat/IM0001", "cat/odd.dcm"]
    assert {name for name, _ in found.dataset.skipped} == {"cat/half.dcm", "cat/report.dcm", "cat/short.dcm"}
    assert ("cat/report.dcm", "a DICOM without an image") in found.dataset.skipped
    assert any("burned-in annotation" in note for note in found.notes)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file())
    shown_warnings = [str(one.message) for one in warned]
    output = f"{found.notes} {found.dataset.skipped} {shown_warnings} {capfd.readouterr()} {caplog.text}"
    assert b"Doe" not in kept and "Doe" not in output and "4711" not in output


def without_image() -> bytes:
    header = pydicom.dcmread(io.BytesIO(scan()))
    del header.PixelData
    file = io.BytesIO()
    header.save_as(file)
    return file.getvalue()


@pytest.mark.parametrize("cut", [133, 200, 400, 800])
def test_the_reason_of_a_damaged_file_contains_no_elements(cut):
    with silence_decoders(), pytest.raises(BadImage) as reason:
        read_picture(scan(PatientComments="Doe " * 500)[:cut], USUAL)
    assert "Doe" not in str(reason.value)


@pytest.mark.parametrize("turned", [1, 6])
def test_heic_photographs(turned):
    picture = noise(1, (64, 48))
    exif = picture.getexif()
    exif[0x0112] = turned
    file = io.BytesIO()
    pillow_heif.register_heif_opener()  # so that Pillow can write it; our reader does without
    picture.save(file, "HEIF", quality=-1, chroma=444, matrix_coefficients=0, exif=exif.tobytes())
    seen = read_picture(file.getvalue(), USUAL)
    expected = np.asarray(picture) if turned == 1 else np.rot90(np.asarray(picture), 3)
    assert np.array_equal(np.asarray(seen.image), expected)
    assert seen.remarks == ("HEIC",)
    with pytest.raises(BadImage, match="damaged"):
        read_picture(file.getvalue()[:200], USUAL)


@pytest.mark.parametrize("extra", ["dicom", "heic"])
def test_the_error_of_a_missing_package_names_the_extra(extra, monkeypatch):
    content = scan() if extra == "dicom" else b"\0\0\0\x18ftypheic"

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("fedcopl.data.decoding.import_module", missing)
    with pytest.raises(BadImage, match=rf"needs: pip install 'fedcopl\[{extra}\]'"):
        read_picture(content, USUAL)


def test_more_frames_than_a_file_may_have_are_refused_and_not_listed(tmp_path):
    content = scan(NumberOfFrames=2_000_000_000)
    with pytest.raises(BadImage, match=r"^a DICOM of 2,000,000,000 frames, more than 10,000$"):
        read_picture(content, USUAL)
    put(tmp_path, "cat/a.dcm", content)
    put(tmp_path, "dog/b.dcm", scan())
    found = survey(load("folder", tmp_path, pages="all")).dataset
    assert [name for name, _ in found.skipped] == ["cat/a.dcm"] and len(found.train) == 1


def test_a_deflated_file_that_is_too_large_is_refused(monkeypatch):
    content = scan(syntax=DeflatedExplicitVRLittleEndian)
    assert (dots(content) == dots(scan())).all()
    monkeypatch.setattr(dicom, "MAX_BYTES", 200)  # its pixels take 384 bytes
    with pytest.raises(BadImage, match=r"^a DICOM that unpacks to more than 200 bytes$"):
        read_picture(content, USUAL)
    assert read_picture(scan(), USUAL)  # this file is not compressed

"""Images of more than 8 bits, of many bands or pages: files written by tifffile, imagecodecs (libpng) and imageio."""

import contextlib
import importlib
import io
import json
import struct
from dataclasses import replace

import imagecodecs
import imageio.v3 as imageio
import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from data.pictures import TRANSFORM, encoded, load, make_images, noise, put
from fedcopl.classifier.predict import NamedImage, _split_pages, batches
from fedcopl.classifier.recipe import Recipe, TrainedOn
from fedcopl.config import Data, RunConfig
from fedcopl.data import formats
from fedcopl.data.cache import PixelCache
from fedcopl.data.decoding import BadImage, DecodeOptions, IntensityRange, Window, scale_to_uint8
from fedcopl.data.formats import _check_tiff_pages, is_readable_now, pages_in, read_picture
from fedcopl.data.images import FilePage, silence_decoders
from fedcopl.data.overview import survey
from fedcopl.deployment.site.running_site import SiteOptions
from fedcopl.errors import ConfigError
from fedcopl.review.images import open_gallery
from fedcopl.run.pseudo_labels import write_image_list, write_labels

DRAW = np.random.default_rng(3)
USUAL = DecodeOptions()


def tiff(numbers, **options) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, numbers, **options)
    return file.getvalue()


def dots(content, reading=USUAL, page=None) -> np.ndarray:
    return np.asarray(read_picture(content, reading, page).image)


def by_hand(numbers, low, high) -> np.ndarray:
    """The window as a formula, without tables or chunks."""
    share = np.clip((numbers.astype(float) - low) / (high - low), 0, 1)
    return np.rint(share * 255).astype(np.uint8)


ONE_DOT = [(256, 3, 1, 1), (257, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8)]  # width, height, grey, where it lies


def pages(*chain, entries=ONE_DOT, big=False) -> bytes:
    """A little-endian TIFF of directories without pixels; each names its successor, and None is the end."""
    head, many, place, entry = ("II+\0\x08\0\0\0", "<Q", "<Q", "<HHQQ") if big else ("II*\0", "<H", "<I", "<HHII")
    size = struct.calcsize(many) + len(entries) * struct.calcsize(entry) + struct.calcsize(place)
    first = len(head) + struct.calcsize(place)
    body = struct.pack(many, len(entries)) + b"".join(struct.pack(entry, *one) for one in entries)
    following = (0 if number is None else first + number * size for number in chain)
    return head.encode() + struct.pack(place, first) + b"".join(body + struct.pack(place, next) for next in following)


BANDS = [*ONE_DOT[:2], (258, 3, 1, 64), *ONE_DOT[2:], (277, 3, 1, 5)]  # which only tifffile opens
ENDLESS = {
    "to itself": (pages(0), "page 1 is followed by page 1 again"),
    "of bands": (pages(0, entries=BANDS), "page 1 is followed by page 1 again"),
    "two": (pages(1, 2, 1), "page 3 is followed by page 2 again"),
    "BigTIFF": (pages(1, 0, big=True), "page 2 is followed by page 1 again"),
    "too many": (pages(*range(1, 10_001), None), "more than 10,000 pages"),
    "too many tags": (pages(*range(1, 21), None, entries=ONE_DOT * 12_501), "or 1,000,000 tags"),
    "the same block": (pages(None, entries=[*ONE_DOT, *((n, 1, 90, 8) for n in range(1000, 1009))]), "of more bytes"),
}


@pytest.mark.parametrize(("content", "words"), ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("reading", [USUAL, DecodeOptions(bands=(1,)), DecodeOptions(pages="all")])
def test_an_endless_tiff_is_refused_before_decoding(tmp_path, monkeypatch, content, words, reading):
    for decoder in ("_read_file", "_count_pages", "_read_by_tifffile", "_tifffile_pages"):
        monkeypatch.setattr(formats, decoder, lambda *_: pytest.fail("a decoder follows it"))
    with pytest.raises(BadImage, match=words):
        read_picture(content, reading)
    assert pages_in(put(tmp_path, "x.tif", content), reading) == 1  # so it is opened, and named


def test_a_survey_reports_an_endless_tiff(tmp_path):
    put(tmp_path, "cat/loop.tif", pages(0))
    make_images(tmp_path, "cat/good.png", "dog/good.png")
    assert len((tmp_path / "cat/loop.tif").read_bytes()) == 62
    for settings in ({}, {"bands": "1"}, {"pages": "all"}):
        found = survey(load("folder", tmp_path, **settings)).dataset
        assert found.skipped == [("cat/loop.tif", "damaged: page 1 is followed by page 1 again, an endless loop")]


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
def test_honest_tiffs_of_every_layout_are_read(big, order):
    stack = DRAW.integers(0, 256, (5, 9, 7), dtype=np.uint8)
    content = tiff(stack, photometric="minisblack", bigtiff=big, byteorder=order)
    with silence_decoders():
        assert (dots(content, page=3) == stack[3]).all()
    _check_tiff_pages(content)
    _check_tiff_pages(content[: len(content) // 2])  # truncated, which the decoder reports


def test_too_many_bytes_of_bands_are_refused():
    """9000 x 9000 dots, 60 bands of 16 bits: 9.72 GB by hand, in a file of a few hundred bytes."""
    sizes = [(256, 4, 1, 9000), (257, 4, 1, 9000), (258, 3, 1, 16), (259, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 8)]
    content = pages(None, entries=[*sizes, (277, 3, 1, 60), (278, 4, 1, 9000), (279, 4, 1, 20)])
    with pytest.raises(BadImage, match="60 bands of 9,720,000,000 bytes, more than 2,147,483,648"):
        read_picture(content, DecodeOptions(bands=(1,)))


MODES = {
    "PNG": "1 L LA P RGB RGBA",
    "TIFF": "1 L LA P RGB RGBA CMYK",
    "JPEG": "L RGB CMYK",
    "BMP": "1 L P RGB",
    "GIF": "P",
}


@pytest.mark.parametrize(("form", "mode"), [(form, mode) for form, modes in MODES.items() for mode in modes.split()])
def test_images_of_eight_bits_are_not_scaled(form, mode):
    content = encoded(noise(1).convert(mode), form)
    plain = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    for reading in (USUAL, DecodeOptions(Window("numbers", 0, 4095), (), "middle")):
        picture = read_picture(content, reading)
        assert (picture.image.mode, picture.image.tobytes()) == (plain.mode, plain.tobytes())
        assert picture.remarks == ()


def test_windows_by_hand():
    numbers = np.array([[0, 1000], [2000, 4000]], np.uint16)
    # the range of the file, 0 to 4000: 1000 / 4000 * 255 = 63.75, 2000 / 4000 * 255 = 127.5 to the even 128
    assert scale_to_uint8(numbers, Window("file"))[0].tolist() == [[0, 64], [128, 255]]
    # 0 to 65535: 4000 / 257 = 15.56
    assert scale_to_uint8(numbers, Window("type"))[0].tolist() == [[0, 4], [8, 16]]
    # 1000 to 2000; values outside become black or white
    assert scale_to_uint8(numbers, Window("numbers", 1000, 2000))[0].tolist() == [[0, 0], [255, 255]]
    # the quartiles of four numbers: 750 and 2500; (1000 - 750) / 1750 * 255 = 36.4, (2000 - 750) / 1750 * 255 = 182.1
    assert scale_to_uint8(numbers, Window("percentiles", 25, 75))[0].tolist() == [[0, 36], [182, 255]]


def test_pixels_without_a_value_are_black_and_do_not_count_for_the_range():
    numbers = np.array([[np.nan, 1.0], [np.inf, 3.0]])
    grey, span = scale_to_uint8(numbers, Window())
    assert (grey.tolist(), span) == ([[0, 0], [0, 255]], IntensityRange(1.0, 3.0))
    with pytest.raises(BadImage, match="no valid pixel"):
        scale_to_uint8(np.full((2, 2), np.nan), Window())
    assert not scale_to_uint8(np.full((2, 2), 7, np.int32), Window())[0].any()  # a single value has no range


@given(
    st.sampled_from([np.uint16, np.int16, np.uint32, np.int32, np.float32, np.float64]),
    st.integers(0, 99),
    st.sampled_from([Window(), Window("type"), Window("numbers", -5, 900), Window("percentiles", 2, 98)]),
)
def test_scaling_is_monotonic(kind, seed, window):
    numbers = (np.random.default_rng(seed).standard_normal((300, 3)) * 1000).astype(kind)
    grey, _ = scale_to_uint8(numbers, window)
    order = np.argsort(numbers, axis=None)
    assert (np.diff(grey.ravel()[order].astype(int)) >= 0).all()


GREY = [np.uint16, np.int16, np.uint32, np.int32, np.float32, np.float64, np.float16]


@pytest.mark.parametrize("kind", GREY, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "options", [{}, {"byteorder": ">"}, {"compression": "lzw"}, {"compression": "deflate"}], ids=str
)
def test_a_grey_tiff_of_each_type_is_scaled_by_its_range(kind, options):
    numbers = (DRAW.random((9, 7)) * 3000).astype(kind)
    expected = by_hand(numbers, numbers.min(), numbers.max())
    assert np.abs(dots(tiff(numbers, **options)).astype(int) - expected).max() <= 1  # of float16 the hand rounds too


def test_unsigned_values_above_the_signed_range_do_not_overflow():
    numbers = np.array([[0, 2**31, 2**32 - 1]] * 2, np.uint32)
    assert dots(tiff(numbers))[0].tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    "options", [{}, {"byteorder": ">"}, {"compression": "lzw", "predictor": True}, {"bigtiff": True}], ids=str
)
@pytest.mark.parametrize("planes", ["contig", "separate"])
def test_colours_of_sixteen_bits_keep_all_bits(options, planes):
    numbers = DRAW.integers(0, 4096, (8, 6, 3), dtype=np.uint16)  # 12 of 16 bits, which become black in Pillow
    written = numbers if planes == "contig" else numbers.transpose(2, 0, 1)
    content = tiff(written, photometric="rgb", planarconfig=planes, **options)
    window = DecodeOptions(Window("numbers", 0, 4095))
    assert np.abs(dots(content, window).astype(int) - by_hand(numbers, 0, 4095)).max() == 0


@pytest.mark.parametrize("channels", [3, 4])
def test_sixteen_bit_colour_png_of_libpng(channels):
    numbers = DRAW.integers(0, 4096, (8, 6, channels), dtype=np.uint16)
    if channels == 4:
        numbers[..., 3] = 65535
    seen = dots(imagecodecs.png_encode(numbers), DecodeOptions(Window("numbers", 0, 4095)))
    assert np.array_equal(seen[..., :3], by_hand(numbers[..., :3], 0, 4095))
    assert (seen[..., 3:] == 255).all()


def test_sixteen_bit_grey_png_of_imageio():
    numbers = DRAW.integers(100, 900, (8, 6), dtype=np.uint16)
    content = imageio.imwrite("<bytes>", numbers, extension=".png")
    picture = read_picture(content, USUAL)
    assert np.array_equal(np.asarray(picture.image), by_hand(numbers, numbers.min(), numbers.max()))
    assert picture.remarks == ("grey of 16 bits, each scaled by its own range",)
    assert picture.intensity_range == (numbers.min(), numbers.max())


def test_exif_orientation_is_applied_to_deep_images():
    numbers = DRAW.integers(0, 60000, (8, 6, 3), dtype=np.uint16)
    turned = tiff(numbers, photometric="rgb", extratags=[(274, "H", 1, 6, True)])  # 6: turn by 270 degrees
    assert np.array_equal(dots(turned), np.rot90(dots(tiff(numbers, photometric="rgb")), 3))


def test_white_is_zero_and_no_data():
    numbers = np.array([[0, 50], [100, 9999]], np.uint16)
    assert dots(tiff(numbers[:1], photometric="miniswhite")).tolist() == [[255, 0]]
    content = tiff(numbers, extratags=[(42113, "s", 0, "9999", True)])  # as GDAL marks it
    assert dots(content).tolist() == [[0, 128], [255, 0]]
    many = tiff(
        np.stack([numbers] * 5),
        photometric="minisblack",
        planarconfig="separate",
        extratags=[(42113, "s", 0, "9999", True)],
    )
    assert dots(many, DecodeOptions(bands=(5,))).tolist() == [[0, 128], [255, 0]]


SCENE = DRAW.integers(0, 3000, (13, 8, 6), dtype=np.uint16)  # as Sentinel-2 has bands


@pytest.mark.parametrize("compression", [None, "deflate", "lzw"])
@pytest.mark.parametrize("planes", ["contig", "separate", "pages"])
def test_three_bands_of_many(planes, compression):
    chosen = DecodeOptions(Window("numbers", 0, 3000), (4, 3, 2))
    if planes == "pages":
        content = tiff(SCENE, photometric="minisblack", compression=compression)
    else:
        written = SCENE if planes == "separate" else SCENE.transpose(1, 2, 0)
        content = tiff(written, photometric="minisblack", planarconfig=planes, compression=compression)
    expected = by_hand(SCENE[[3, 2, 1]].transpose(1, 2, 0), 0, 3000)
    picture = read_picture(content, chosen)
    assert np.array_equal(np.asarray(picture.image), expected)
    assert picture.remarks[0] == "bands 4, 3, 2 of 13 in 16 bits, scaled by the window 0:3000"
    with pytest.raises(BadImage, match="has 13 bands, so no band 14"):
        read_picture(content, DecodeOptions(bands=(14,)))


def test_many_bands_without_a_selection_are_refused_with_the_setting(caplog):
    content = tiff(SCENE.transpose(1, 2, 0), photometric="minisblack", planarconfig="contig")
    with pytest.raises(BadImage, match=r"13 bands; choose three, as in data\.bands=4,3,2"):
        read_picture(content, USUAL)
    assert caplog.text == ""  # no logs of Pillow


STACK = DRAW.integers(0, 256, (5, 8, 6), dtype=np.uint8)


def test_pages_are_selected_by_the_options():
    content = tiff(STACK, photometric="minisblack")
    assert np.array_equal(dots(content), STACK[0])
    assert np.array_equal(dots(content, DecodeOptions(pages="middle")), STACK[2])
    assert np.array_equal(dots(content, USUAL, 4), STACK[4])
    assert read_picture(content, USUAL).remarks == ("the first of several pages; data.pages=all uses every page",)
    fractions = tiff(STACK.astype(np.float64), photometric="minisblack")  # beyond Pillow
    assert np.array_equal(dots(fractions, USUAL, 3), by_hand(STACK[3], STACK[3].min(), STACK[3].max()))


def test_a_thumbnail_is_not_a_page(tmp_path):
    file = io.BytesIO()
    with tifffile.TiffWriter(file) as writer:
        writer.write(STACK[0], photometric="minisblack")
        writer.write(STACK[0][::2, ::2], photometric="minisblack", subfiletype=1)
    assert pages_in(put(tmp_path, "x.tif", file.getvalue()), USUAL) == 1
    assert read_picture(file.getvalue(), DecodeOptions(pages="middle")).remarks == ()


def test_each_page_becomes_an_image(tmp_path):
    put(make_images(tmp_path, "train/cat/a.png"), "train/dog/stack.tif", tiff(STACK, photometric="minisblack"))
    dataset = load("folder", tmp_path, pages="all")
    assert dataset.train.names == ["train/cat/a.png", *(f"train/dog/stack.tif#{page}" for page in range(1, 6))]
    assert dataset.train.labels.tolist() == [0, 1, 1, 1, 1, 1]
    assert all(np.array_equal(np.asarray(dataset.train.images[1 + page]), STACK[page]) for page in range(5))
    cache = PixelCache(tmp_path / "cache")
    first = cache.pixels(dataset.train, TRANSFORM.resize_and_crop, TRANSFORM.key)
    assert len(set(first.digests)) == 6  # the five pages of a file have five digests
    assert np.array_equal(first.array, np.stack([TRANSFORM.resize_and_crop(image) for image in dataset.train.images]))


def test_each_window_has_an_entry_in_the_cache(tmp_path):
    put(tmp_path, "cat/deep.tif", tiff(DRAW.integers(0, 4096, (20, 20), dtype=np.uint16)))
    cache = PixelCache(tmp_path / "cache")
    pixels = [
        cache.pixels(load("folder", tmp_path, window=window).train, TRANSFORM.resize_and_crop, TRANSFORM.key).array
        for window in ("file", "type", "0:2000", "file")
    ]
    assert len(cache.entries()) == 3
    assert pixels[0].max() > pixels[1].max()
    assert np.array_equal(pixels[0], pixels[3])


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ({"window": "12"}, "two increasing numbers as in 0:4095"),
        ({"window": "9:1"}, "two increasing numbers"),
        ({"window": "1%:99"}, "percentiles as in 1%:99%"),
        ({"window": "nan:3"}, "two increasing numbers"),
        ({"bands": "1,2"}, "three band numbers from 1"),
        ({"bands": "0,1,2"}, "three band numbers from 1"),
        ({"bands": "red"}, "three band numbers from 1"),
    ],
)
def test_invalid_settings_are_named(tmp_path, settings, meant):
    with pytest.raises(ConfigError, match=meant):
        load("folder", make_images(tmp_path, "cat/0.png"), **settings)


@given(st.floats(-1e6, 1e6), st.floats(0.001, 1e6))
def test_a_window_is_formatted_as_it_is_parsed(low, width):
    window = Window("numbers", float(f"{low:g}"), float(f"{low + width:g}"))
    if window.low < window.high:
        assert DecodeOptions.of(Data(window=str(window))).window == window


def test_a_survey_notes_how_files_were_decoded(tmp_path):
    put(tmp_path, "cat/a.tif", tiff(np.array([[0, 1000]], np.uint16)))
    put(tmp_path, "cat/b.tif", tiff(np.array([[10, 4095]], np.uint16)))
    put(tmp_path, "cat/c.tif", tiff(STACK, photometric="minisblack"))
    put(tmp_path, "cat/d.tif", tiff(SCENE.transpose(1, 2, 0), photometric="minisblack", planarconfig="contig"))
    found = survey(load("folder", tmp_path))
    assert found.notes == (
        "2 images: grey of 16 bits, each scaled by its own range, together 0 to 4095; "
        "data.window=0:4095 scales all alike",
        "1 image: the first of several pages; data.pages=all uses every page",
    )
    assert found.dataset.skipped == [("cat/d.tif", "13 bands; choose three, as in data.bands=4,3,2")]


def test_a_file_is_decoded_again_when_its_missing_package_is_installed(tmp_path, monkeypatch):
    put(make_images(tmp_path, "cat/a.png"), "cat/deep.tif", tiff(SCENE[0].astype(np.float64)))
    cache, train = PixelCache(tmp_path / "cache"), load("folder", tmp_path).train

    def missing(name):
        raise ImportError(name)

    with monkeypatch.context() as without:
        without.setattr("fedcopl.data.decoding.import_module", missing)
        without.setattr("fedcopl.data.cache.is_readable_now", lambda reason: False)
        bad = cache.pixels(train, TRANSFORM.resize_and_crop, TRANSFORM.key).bad
        [reason] = bad.values()
        assert reason.endswith("needs: pip install 'fedcopl[tiff]'")
        assert cache.pixels(train, TRANSFORM.resize_and_crop, TRANSFORM.key).bad == bad
    assert is_readable_now(reason)
    assert cache.pixels(train, TRANSFORM.resize_and_crop, TRANSFORM.key).bad == {}


@given(st.binary(max_size=60), st.integers(0, 400))
def test_a_damaged_deep_tiff_is_refused(garbage, start):
    whole = tiff(SCENE[:5].transpose(1, 2, 0), photometric="minisblack", planarconfig="contig")
    content = whole[:start] + garbage + whole[start + len(garbage) :]
    with contextlib.suppress(BadImage):
        read_picture(content, DecodeOptions(bands=(1, 2, 3)))


@pytest.mark.parametrize("name", ["pydicom", "pillow_heif", "tifffile"])
def test_the_packages_of_the_extras_can_be_imported(name):
    assert importlib.import_module(name)


def test_review_decodes_pages_as_the_run(tmp_path):
    deep = STACK.astype(np.uint16) * 16
    put(tmp_path, "pictures/cat/stack.tif", tiff(deep, photometric="minisblack"))
    put(tmp_path, "pictures/dog/a.png", encoded(noise(1)))
    train = load("folder", tmp_path / "pictures", pages="all", window="0:4095").train
    write_image_list(tmp_path, ["cat", "dog"], train, {"here": np.array([5, 1])})
    write_labels(tmp_path, 0, {"here": np.log([[0.5, 0.5], [0.9, 0.1]])})
    gallery = open_gallery(tmp_path, "here")
    assert gallery.names == ["dog/a.png", "cat/stack.tif#2"]
    assert np.array_equal(np.asarray(gallery.image(1)), by_hand(deep[1], 0, 4095))


def test_a_classifier_stores_its_decode_options():
    chosen = RunConfig.from_mapping({"data": {"window": "0:3000", "bands": "4,3,2", "pages": "middle"}}, "test")
    recipe = Recipe(("cat", "dog"), "a {}", chosen, TrainedOn("ViT-B/32", "1"))
    written = json.loads(recipe.to_json())
    assert written["decode_options"] == {"window": "0:3000", "bands": "4,3,2", "pages": "middle"}
    assert json.loads(replace(recipe, config=RunConfig()).to_json())["decode_options"] == {}


def test_an_exported_classifier_applies_its_decode_options(tmp_path):
    chosen = RunConfig.from_mapping({"data": {"window": "1%:99%", "pages": "all"}}, "test")
    put(tmp_path, "config.json", Recipe(("cat", "dog"), "a {}", chosen, TrainedOn("ViT-B/32", "1")).to_json())
    reading = Recipe.read(tmp_path / "config.json").decode_options
    assert reading == DecodeOptions(Window("percentiles", 1, 99), (), "all")
    stack = put(tmp_path, "stack.tif", tiff(STACK, photometric="minisblack"))
    named = [NamedImage("stack.tif", FilePage(stack)), NamedImage("0", noise(1))]
    pages = list(_split_pages(named, reading))
    assert [page.name for page in pages] == [*(f"stack.tif#{number}" for number in range(1, 6)), "0"]
    [batch] = batches(pages, TRANSFORM.resize_and_crop, reading)
    assert np.array_equal(batch.pixels[2], TRANSFORM.resize_and_crop(Image.fromarray(STACK[2])))


def test_a_site_decodes_with_its_own_settings(tmp_path):
    options = SiteOptions("a", tmp_path, data={"window": "0:100", "pages": "all"})
    assert DecodeOptions.of(options.settings().data) == DecodeOptions(Window("numbers", 0, 100), (), "all")
    with pytest.raises(ConfigError, match="is set by the server; a site sets window, bands, pages"):
        SiteOptions("a", tmp_path, data={"beta": 1}).settings()

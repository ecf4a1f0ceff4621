"""Images as numbers, against `transformers`' CLIP image processor."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from fedcopl.clip.preprocess import _CLIP_MEAN, _CLIP_STD, ImageTransform, read_transform
from fedcopl.errors import ModelError

FILE = Path("preprocessor_config.json")
SIZES = [(224, 224), (640, 480), (333, 517), (225, 224), (227, 224), (1, 1), (1, 37), (50, 1), (7, 9), (1000, 225)]
MODES = ["1", "L", "P", "LA", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "I;16", "I", "F"]


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """A picture with something in every channel, alpha included."""
    numbers = np.random.default_rng(seed)
    if mode in ("I;16", "I", "F"):
        kinds = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
        return Image.fromarray(numbers.integers(0, 400, (height, width)).astype(kinds[mode]))
    coloured = Image.fromarray(numbers.integers(0, 256, (height, width, 4), dtype=np.uint8), "RGBA")
    if mode in ("LA", "RGBA"):
        return coloured.convert(mode)
    return coloured.convert("RGB").convert("P" if mode == "PA" else mode).convert(mode)


def reference(image: Image.Image, side: int = 224, **options: object) -> np.ndarray:
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}, **options
    )
    return processor(image, return_tensors="np")["pixel_values"][0]


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == np.float32
    assert actual.flags.c_contiguous
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_odd_sizes(size):
    image = noise(*size)
    assert_same(ImageTransform(224, 224)(image), reference(image))


@pytest.mark.parametrize("mode", MODES)
def test_odd_modes(mode):
    image = noise(301, 230, mode)
    assert image.mode == mode
    assert_same(ImageTransform(224, 224)(image), reference(image))


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("one_colour", [True, False])
def test_palettes_with_transparency(one_colour):
    image = noise(40, 30).convert("P", palette=Image.Palette.ADAPTIVE)
    image.info["transparency"] = image.getpixel((20, 15)) if one_colour else bytes(range(256))
    opaque = image.copy()
    del opaque.info["transparency"]
    assert_same(ImageTransform(224, 224)(image), reference(image))
    assert not np.array_equal(ImageTransform(224, 224)(image), ImageTransform(224, 224)(opaque))


@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from(["L", "RGB", "RGBA"]), st.integers(1, 40))
def test_any_size(width, height, mode, side):
    image = noise(width, height, mode)
    assert_same(ImageTransform(side, side)(image), reference(image, side))


def test_by_hand():
    # A grey image stays grey whatever is done to its size: (128 / 255 - mean) / std in each channel.
    pixels = ImageTransform(8, 8)(Image.new("L", (13, 29), 128))
    expected = (128 / 255 - np.array(_CLIP_MEAN)) / np.array(_CLIP_STD)
    np.testing.assert_allclose(pixels, np.broadcast_to(expected[:, None, None], (3, 8, 8)), rtol=1e-6)


def test_the_transform_does_not_change_the_image():
    image = noise(20, 10, "RGBA")
    before = image.tobytes()
    ImageTransform(8, 8)(image)
    assert (image.mode, image.size, image.tobytes()) == ("RGBA", (20, 10), before)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"size": 16, "crop_size": 16},
        {"size": {"shortest_edge": 24}, "image_mean": [0.1, 0.2, 0.3], "image_std": [1.0, 0.5, 0.25]},
        {"size": {"height": 16, "width": 16}},
        {"size": {"shortest_edge": 16}, "resample": 2},
    ],
    ids=["silent", "numbers", "colours", "squashed", "bilinear"],
)
def test_settings_give_the_pixels_of_transformers(settings):
    image = noise(33, 50)
    silent = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    expected = CLIPImageProcessorPil(**(silent | settings))(image, return_tensors="np")["pixel_values"][0]
    assert_same(read_transform(settings, 16, FILE)(image), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop_size": 224}, "crops them to 224 pixels; the model needs 16"),
        ({"size": 8, "crop_size": 16}, "resizes images to 8 and crops them to 16"),
        ({"size": {"height": 16, "width": 20}}, "size and crop_size must each give one positive number"),
        ({"size": {}}, "size and crop_size must each give one positive number"),
        ({"size": {"shortest_edge": [16]}}, "size and crop_size must each give one positive number"),
        ({"size": "big"}, "size and crop_size must each give one positive number, not 'big'"),
        ({"do_normalize": False}, "do_normalize is false"),
        ({"image_mean": [0.5]}, "must be three numbers"),
        ({"image_std": ["a", "b", "c"]}, "must be three numbers"),
        ({"resample": 99}, "resample is 99"),
    ],
)
def test_invalid_transform_settings_are_refused(settings, message):
    with pytest.raises(ModelError, match=message) as caught:
        read_transform(settings, 16, FILE)
    assert str(caught.value).startswith("preprocessor_config.json: ")


def test_preprocessing_does_not_import_torch():
    code = "import sys, fedcopl.clip.preprocess; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

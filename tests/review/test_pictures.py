"""Pictures for the browser: small, of images in any mode, and a limited number in memory."""

import io

import numpy as np
import pytest
from PIL import Image

from fedcopl.review.images import ShownPictures, _encoded
from review.fake_gallery import FakeGallery


def opened(picture):
    image = Image.open(io.BytesIO(picture.content))
    assert picture.media_type == f"image/{image.format.lower()}"
    return image


def test_a_large_image_is_reduced():
    assert opened(_encoded(Image.new("RGB", (2000, 1000)), 144)).size == (144, 72)


def test_a_tiny_image_is_enlarged_without_interpolation():
    pixels = np.array([[0, 255], [128, 64]], np.uint8)
    large = opened(_encoded(Image.fromarray(pixels), 144))
    assert large.size == (144, 144)
    assert np.asarray(large)[[0, 0, 143, 143], [0, 143, 0, 143]].tolist() == [0, 255, 128, 64]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_every_mode_can_be_shown(mode):
    assert opened(_encoded(Image.new("RGB", (100, 100), "red").convert(mode), 144)).size == (100, 100)


def test_transparent_pixels_are_white():
    assert opened(_encoded(Image.new("RGBA", (100, 100), (255, 0, 0, 0)), 144)).getpixel((5, 5)) == (255, 255, 255)


def test_a_cached_picture_is_not_encoded_again():
    gallery = FakeGallery(10)
    pictures = ShownPictures(gallery)
    assert pictures.get(3, "small") == pictures.get(3, "small")
    assert gallery.opened == [3]
    pictures.get(3, "large")
    assert gallery.opened == [3, 3]


def test_the_cache_is_limited_and_keeps_the_last_used_pictures():
    gallery = FakeGallery(100)
    pictures = ShownPictures(gallery, cached=5)
    for number in range(20):
        pictures.get(0, "small")
        pictures.get(number, "small")
    gallery.opened.clear()
    pictures.get(0, "small")
    pictures.get(19, "small")
    assert gallery.opened == []
    pictures.get(1, "small")
    assert gallery.opened == [1]


def test_an_unreadable_image_has_a_placeholder():
    pictures = ShownPictures(FakeGallery(3, broken=[1]))
    assert opened(pictures.get(1, "small")).size == (48, 48)
    assert opened(pictures.get(0, "small")).size != (48, 48)

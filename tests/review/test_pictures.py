"""ShownPictures for the browser: small, of every kind of image, and not all kept."""

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


def test_a_large_image_becomes_small():
    assert opened(_encoded(Image.new("RGB", (2000, 1000)), 144)).size == (144, 72)


def test_a_tiny_image_is_enlarged_dot_by_dot():
    dots = np.array([[0, 255], [128, 64]], np.uint8)
    large = opened(_encoded(Image.fromarray(dots), 144))
    assert large.size == (144, 144)
    assert np.asarray(large)[[0, 0, 143, 143], [0, 143, 0, 143]].tolist() == [0, 255, 128, 64]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_every_mode_can_be_shown(mode):
    assert opened(_encoded(Image.new("RGB", (100, 100), "red").convert(mode), 144)).size == (100, 100)


def test_what_is_transparent_is_white():
    assert opened(_encoded(Image.new("RGBA", (100, 100), (255, 0, 0, 0)), 144)).getpixel((5, 5)) == (255, 255, 255)


def test_a_picture_is_made_once_while_it_is_kept():
    gallery = FakeGallery(10)
    pictures = ShownPictures(gallery)
    assert pictures.get(3, "small") == pictures.get(3, "small")
    assert gallery.opened == [3]
    pictures.get(3, "large")
    assert gallery.opened == [3, 3]


def test_memory_is_limited_and_the_last_used_stays():
    gallery = FakeGallery(100)
    one = len(ShownPictures(gallery).get(0, "small").content)
    pictures = ShownPictures(gallery, memory=5 * one + one // 2)
    for number in range(20):
        pictures.get(0, "small")
        pictures.get(number, "small")
    gallery.opened.clear()
    pictures.get(0, "small")
    pictures.get(19, "small")
    assert gallery.opened == []
    pictures.get(1, "small")
    assert gallery.opened == [1]


def test_a_broken_image_has_a_picture_too():
    pictures = ShownPictures(FakeGallery(3, broken=[1]))
    assert opened(pictures.get(1, "small")).size == (48, 48)
    assert opened(pictures.get(0, "small")).size != (48, 48)

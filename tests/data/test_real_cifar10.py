"""The real CIFAR-10, all 60,000 images. Asked for with `-m real`; then the data must be there.

fedcopl data get cifar10 DIR && FEDCOPL_REAL_DATA=DIR pytest -m real
"""

import os

import numpy as np
import pytest

from data.pictures import load
from fedcopl.algorithm.partition import counts_by_client, dirichlet
from fedcopl.clip.preprocess import ImageTransform
from fedcopl.data.cache import PixelCache
from fedcopl.data.dataset import ImageSet
from fedcopl.data.images import ImageArrays
from fedcopl.data.overview import survey

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def cifar10():
    folder = os.environ.get("FEDCOPL_REAL_DATA")
    assert folder, "FEDCOPL_REAL_DATA should name the folder that holds cifar-10-batches-bin"
    return load("cifar10", folder)


def test_every_class_is_equally_frequent(cifar10):
    found = survey(cifar10)
    assert set(found.counts().values()) == {(5000, 1000)}
    assert (found.dataset.skipped, found.notes) == ([], ())


def test_mean_and_deviation_are_the_published_ones(cifar10):
    # mean and deviation of the training images as published in countless scripts: 0.4914, 0.4822, 0.4465
    pixels = cifar10.train.images.pixels
    assert np.allclose(pixels.mean(axis=(0, 1, 2)) / 255, [0.4914, 0.4822, 0.4465], atol=5e-5)
    assert np.allclose(pixels.std(axis=(0, 1, 2), dtype=np.float64) / 255, [0.2470, 0.2435, 0.2616], atol=5e-5)


def test_the_cache_gives_the_pixels_of_direct_decoding(cifar10, tmp_path):
    transform = ImageTransform(224, 224)
    some = ImageSet(ImageArrays(cifar10.test.images.pixels[:500]))
    pixels = PixelCache(tmp_path).pixels(some, transform.resize_and_crop, transform.key).array
    for place in range(0, 500, 7):
        assert np.array_equal(pixels[place], transform.resize_and_crop(some.images[place]))


def test_it_can_be_partitioned(cifar10):
    train, test = cifar10.train.labels, cifar10.test.labels
    parts = dirichlet(train, test, 10, 10, np.random.default_rng(1), beta=0.1)
    counts = counts_by_client(train, parts.train, 10)
    assert counts.sum() == 50_000
    assert counts.sum(axis=1).min() >= 10

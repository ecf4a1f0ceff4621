"""The 1,797 real handwritten digits that come inside scikit-learn (8 x 8 dots, 17 grey levels)."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .dataset import Dataset, ImageSet

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def load_digits() -> Dataset:
    """Every third image is a test image: the set has no split of its own."""
    from sklearn import datasets  # a second to import: only when the digits are asked for

    bunch = datasets.load_digits()
    is_test = np.arange(len(bunch.target)) % 3 == 2
    return Dataset(
        "digits",
        CLASSES,
        "a photo of a {}",
        _image_set(bunch.images[~is_test], bunch.target[~is_test]),
        _image_set(bunch.images[is_test], bunch.target[is_test]),
    )


def _image_set(dots: NDArray[np.float64], labels: NDArray[np.int64]) -> ImageSet:
    grey = (dots * (255 / 16)).round().astype(np.uint8)
    return ImageSet([Image.fromarray(image) for image in grey], labels.astype(np.int64))

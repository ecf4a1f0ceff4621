import subprocess
import sys

import numpy as np
import pytest

from fedcopl.config import Data
from fedcopl.data import catalog
from fedcopl.data.catalog import load_dataset, load_digits
from fedcopl.errors import ConfigError


def test_each_digit_is_in_one_split():
    digits = load_digits()
    assert len(digits.train) + len(digits.test) == 1797
    assert len(digits.test) == 599
    assert set(digits.train.labels) == set(digits.test.labels) == set(range(10))
    assert digits.classes[7] == "seven"


def test_images_keep_their_grey_levels():
    from sklearn.datasets import load_digits as original

    images = original().images
    digits = load_digits()
    first, third = np.asarray(digits.train.images[0]), np.asarray(digits.test.images[0])
    assert first.dtype == np.uint8
    assert first.shape == (8, 8)
    np.testing.assert_allclose(first / 255, images[0] / 16, atol=1 / 255)
    np.testing.assert_allclose(third / 255, images[2] / 16, atol=1 / 255)


def test_an_unknown_data_set_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown data set 'digit' \(known: .*digits.*\); did you mean digits\?"):
        load_dataset(Data(source="digit"))


def test_the_digits_do_not_depend_on_where_scikit_learn_stores_them(monkeypatch):
    here = load_digits()
    monkeypatch.setattr(catalog, "_DIGITS", "elsewhere.gz")
    there = load_digits()
    for one, other in ((here.train, there.train), (here.test, there.test)):
        assert one.labels.tolist() == other.labels.tolist() and one.labels.dtype == other.labels.dtype
        assert all(np.array_equal(a, b) for a, b in zip(one.images, other.images, strict=True))


def test_scikit_learn_is_not_imported():
    code = "import sys; from fedcopl.data.catalog import load_digits; load_digits(); sys.exit('sklearn' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

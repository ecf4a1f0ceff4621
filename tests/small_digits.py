"""The built-in digits, and subsets of them for short complete runs."""

from dataclasses import replace
from functools import cache

from fedcopl.data.catalog import load_digits
from fedcopl.data.dataset import Dataset

ONLY_LABEL_SHIFT = ["priors.logit_bias=false", "priors.prototypes=false"]
"""Estimates only each site's class prior: estimating the logit bias takes longer than a short run."""

all_digits = cache(load_digits)


@cache
def small_digits(train: int = 240, test: int = 120) -> Dataset:
    """Return the first training and test images; the digits are not sorted by class."""
    digits = all_digits()
    return replace(
        digits,
        train=digits.train.without(range(train, len(digits.train))),
        test=digits.test.without(range(test, len(digits.test))),
    )

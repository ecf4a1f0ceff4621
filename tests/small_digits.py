"""The embedded digits, and fewer of them for whole runs that need not be good, only whole."""

from dataclasses import replace
from functools import cache

from fedcopl.data.catalog import load_digits
from fedcopl.data.dataset import Dataset

SITE_ALONE = ["priors.logit_bias=false", "priors.prototypes=false"]
"""Of the priors only the site's own: what sites learn together takes longer than such a run, and is the same in all."""


all_digits = cache(load_digits)
"""Read once: that takes a while, and nobody changes them."""


@cache
def small_digits(train: int = 240, test: int = 120) -> Dataset:
    """The first of them; they come in no order of classes."""
    digits = all_digits()
    return replace(
        digits,
        train=digits.train.without(range(train, len(digits.train))),
        test=digits.test.without(range(test, len(digits.test))),
    )

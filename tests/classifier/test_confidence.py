"""The threshold, worked by hand and as a property."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.classifier.recipe import Confidence, Recipe, TrainedOn
from fedcopl.config import RunConfig
from fedcopl.errors import DataError, ModelError


def confidence_with(*highest):
    """Of two classes: the highest probability of each image."""
    shares = np.array(highest, float)
    return Confidence.of(np.log(np.stack([shares, 1 - shares], axis=1)))


def test_by_hand():
    confidence = confidence_with(0.5, 0.6, 0.7, 0.8, 0.9)
    assert confidence.images == 5
    assert confidence.threshold(0) == pytest.approx(0.5)
    assert confidence.threshold(0.25) == pytest.approx(0.6)  # a quarter of the way through five
    assert confidence.threshold(0.49) == pytest.approx(0.6)  # the share is rounded down
    assert confidence.threshold(0.5) == pytest.approx(0.7)
    assert confidence.threshold(1) == pytest.approx(0.9)


@given(
    st.lists(st.floats(0.5, 0.999), min_size=1, max_size=300),
    st.integers(0, 100).map(lambda percent: percent / 100),
)
def test_at_most_the_share_is_below_the_threshold(highest, share):
    below = np.mean(np.array(highest) < confidence_with(*highest).threshold(share) - 1e-9)
    assert below <= share + 1e-9


def write_and_read(confidence):
    """Write the confidence to a config.json and read it."""
    recipe = Recipe(("cat", "dog"), "a {}", RunConfig(method="zeroshot"), TrainedOn("glyph-clip", "1"))
    plain = {**json.loads(recipe.to_json()), "confidence": confidence}
    return Recipe.parse(json.dumps(plain), "config.json").confidence


def test_a_recipe_survives_json():
    confidence = confidence_with(0.5, 0.75, 0.9)
    assert write_and_read({"percentiles": list(confidence.percentiles), "images": 3}) == confidence
    assert write_and_read(None) is None


@pytest.mark.parametrize(
    "plain",
    [3, {}, {"percentiles": [0.1], "images": 3}, {"percentiles": [2.0] * 101, "images": 3},
     {"percentiles": [0.5] * 50 + [0.4] * 51, "images": 3}, {"percentiles": [0.5] * 101, "images": 0}],
)  # fmt: skip
def test_an_invalid_confidence_is_refused(plain):
    with pytest.raises(ModelError, match="101 increasing"):
        write_and_read(plain)


def test_measuring_confidence_requires_images():
    with pytest.raises(DataError, match="no images"):
        Confidence.of(np.zeros((0, 3)))
    with pytest.raises(DataError, match="between 0 and 1"):
        confidence_with(0.5).threshold(1.5)

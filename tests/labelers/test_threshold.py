"""A fixed confidence threshold."""

import numpy as np
import pytest

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError
from fedcopl.labelers import choose_labeler
from fedcopl.messages import Select

LOG_PROBS = np.log([[0.97, 0.03], [0.6, 0.4], [0.05, 0.95], [0.99, 0.01]])


def labeler_of(**options):
    return choose_labeler(RunConfig.from_mapping({"labeler": "threshold", "labeler_options": options}, "test"))


@pytest.mark.parametrize(
    ("options", "index", "label"),
    [({}, [3, 0, 2], [0, 0, 1]), ({"confidence": 0.5}, [3, 0, 1, 2], [0, 0, 0, 1]), ({"confidence": 1.0}, [], [])],
)
def test_images_that_reach_the_threshold_are_selected(options, index, label):
    labeler = labeler_of(**options)
    quota = labeler.quota(labeler.count(LOG_PROBS), 4, Select(0, 0, None, 1))
    chosen = labeler.select(LOG_PROBS, quota)
    assert (chosen.index.tolist(), chosen.label.tolist()) == (index, label)  # 0.95 itself reaches 0.95


def test_a_client_without_images():
    labeler = labeler_of()
    none = np.zeros((0, 2))
    assert labeler.count(none).tolist() == [0, 0]
    assert len(labeler.select(none, np.zeros(2, np.int64)).index) == 0


def test_a_threshold_is_a_probability():
    with pytest.raises(ConfigError, match=r"labeler_options\.confidence"):
        labeler_of(confidence=1.5)

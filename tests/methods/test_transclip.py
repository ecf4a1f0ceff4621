"""TransCLIP at a site: its memory and predictions; tests/algorithm/test_transduction.py tests the mixture."""

import numpy as np
import pytest

from fedcopl.errors import ConfigError
from fedcopl.methods import choose_method, with_effective_rounds
from fedcopl.methods.site_fit import _FEATURES
from methods.toolbox import CHOSEN, config_of, floats_of, learner_of


def test_nothing_is_trained_or_shared():
    assert floats_of("transclip") == ({}, {})
    method = choose_method(config_of("transclip"))
    assert (method.trains, with_effective_rounds(method.config).rounds, method.personal_without_training) == (
        False,
        1,
        True,
    )


def test_before_a_selection_it_is_zero_shot_clip():
    learner = learner_of("transclip")
    np.testing.assert_allclose(learner.log_probabilities({}), learner.log_probabilities(None), atol=1e-5)


def test_it_predicts_the_sites_images_jointly():
    learner = learner_of("transclip")
    memory = learner.build_memory(CHOSEN)
    assert {name: value.shape for name, value in memory.items()} == {_FEATURES: (60, 128)}
    together, alone = learner.log_probabilities(memory), learner.log_probabilities(None)
    assert (together.argmax(1) != alone.argmax(1)).any()
    assert (together.argmax(1) == alone.argmax(1)).mean() > 0.5  # the text still counts


def test_options_change_the_predictions():
    memory = learner_of("transclip").build_memory(CHOSEN)
    usual, without_neighbours = (
        learner_of("transclip", *pairs).log_probabilities(memory) for pairs in ((), ("options.neighbours=0",))
    )
    assert (usual != without_neighbours).any()


def test_a_labeler_is_refused():
    with pytest.raises(ConfigError, match="transclip does not train"):
        choose_method(config_of("transclip", "labeler=fpl"))

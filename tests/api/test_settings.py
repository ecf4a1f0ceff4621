"""Settings as keyword arguments."""

from pathlib import Path

import numpy as np
import pytest

from fedcopl import RunConfig
from fedcopl.api import _settings_of
from fedcopl.errors import ConfigError


def test_short_and_full_names_of_settings_are_equal():
    assert _settings_of({"lr": 0.5}) == _settings_of({"train__lr": 0.5})
    assert _settings_of({"lr": 0.5}).train.lr == 0.5


def test_kinds_of_values():
    config = _settings_of(
        {"rounds": np.int64(3), "backbone": Path("a b") / 'c"d', "everywhere": False, "options__mu": 0.5}
    )
    assert config.rounds == 3
    assert config.model.backbone == 'a b/c"d'
    assert config.evaluation.everywhere is False
    assert config.options == {"mu": 0.5}


def test_keyword_arguments_override_a_complete_configuration():
    begin = RunConfig.from_mapping({"rounds": 7, "train": {"lr": 0.2}}, "test")
    config = _settings_of({"epochs": 2}, begin)
    assert (config.rounds, config.train.lr, config.train.epochs) == (7, 0.2, 2)


def test_invalid_arguments_are_refused():
    with pytest.raises(ConfigError, match="did you mean rounds"):
        _settings_of({"round": 3})
    with pytest.raises(ConfigError, match="rounds: should be a text, a number"):
        _settings_of({"rounds": [3]})

"""Settings: typed, immutable, with all errors in one message."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedcopl.config import AS_PUBLISHED, RunConfig, load, override, setting_names
from fedcopl.errors import ConfigError


def config_file(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_only_50_of_20000_unknown_settings_are_listed(tmp_path):
    path = config_file(tmp_path, "".join(f"a{number}.b = 1\n" for number in range(20_000)))
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(error.value).count("unknown setting") == 50


def test_all_errors_are_reported_at_once_with_the_nearest_name(tmp_path):
    path = config_file(tmp_path, "rounds = 0\n[train]\nepoch = 3\n[labels]\nbudget = 'half'\n[dat]\nclients = 3\n")
    with pytest.raises(ConfigError) as error:
        load(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert "rounds: should be at least 1, not 0" in message
    assert "train.epoch: unknown setting; did you mean train.epochs?" in message
    assert "labels.budget: should be exact or ceil, not 'half'" in message
    assert "dat: unknown setting" in message


@pytest.mark.parametrize("text", ["rounds = ", "rounds = 1\nrounds = 2", "\0"])
def test_an_invalid_toml_file(tmp_path, text):
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        load(config_file(tmp_path, text))


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="there is no such settings file"):
        load(tmp_path / "nothing.toml")


def test_a_folder_instead_of_a_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


def test_settings_are_immutable():
    with pytest.raises(ValidationError):
        RunConfig().rounds = 3


def test_pairs_override_the_file(tmp_path):
    path = config_file(tmp_path, "rounds = 3\n[data]\nclients = 4\n")
    config = load(path, ["clients=7", "train.lr=0.5", "source=digits", "confidence_filter=false", "name=x-1"])
    assert (config.rounds, config.data.clients, config.train.lr, config.data.source) == (3, 7, 0.5, "digits")
    assert (config.labels.confidence_filter, config.name) == (False, "x-1")


def test_wrong_pairs_are_all_named():
    with pytest.raises(ConfigError) as error:
        override({}, ["round=3", "rounds", "data.client=2"])
    message = str(error.value)
    assert "round: unknown setting; did you mean rounds?" in message
    assert "'rounds' is not key=value" in message
    assert "data.client: unknown setting; did you mean data.clients?" in message


def test_a_value_where_a_section_belongs():
    with pytest.raises(ConfigError, match="data: should be a section"):
        override({"data": 3}, ["data.clients=2"])


def test_an_invalid_value_of_a_union_is_one_error():
    with pytest.raises(ConfigError, match=r"model\.visual_depth"):
        RunConfig.from_mapping({"model": {"visual_depth": "some"}}, "test")


def test_as_published_sets_the_hyperparameters_of_the_paper():
    pairs = [f"{key}={value}" for key, value in AS_PUBLISHED.items()]
    config = RunConfig.from_mapping(override({}, pairs), "test")
    assert (config.rounds, config.labels.refresh_every, config.train.epochs, config.train.batch) == (20, 5, 10, 64)
    assert (config.train.lr, config.train.momentum, config.train.weight_decay) == (0.1, 0.9, 0.05)
    assert (config.labels.confidence_quantile, config.labels.entropy_quantile) == (0.5, 0.5)
    assert (config.model.visual_prompts, config.model.text_prompts, config.train.init_std) == (5, 16, 0.02)
    assert (config.sharing.participation, config.sharing.aggregate) == (1.0, "visual")
    assert (config.train.init, config.train.step, config.train.decay_to) == ("random", "plain", "zero")
    assert (config.train.clip_norm, config.train.holdout) == (0, 0)


@given(st.integers(1, 100), st.floats(0.01, 10), st.booleans(), st.sampled_from(["all", "all-but-last", 3]))
def test_written_settings_are_read_back(rounds, beta, flag, depth):
    config = RunConfig.from_mapping(
        {
            "rounds": rounds,
            "data": {"beta": beta},
            "labels": {"entropy_filter": flag},
            "model": {"visual_depth": depth, "template": 'a "quoted" {}\\ photo'},
        },
        "test",
    )
    assert RunConfig.from_mapping(tomllib.loads(config.to_toml()), "test") == config


def test_every_setting_is_a_scalar():
    # Flower carries only flat scalars.
    config = RunConfig().model_dump()
    for path in setting_names():
        value = config
        for part in path:
            value = value[part]
        assert isinstance(value, str | int | float | bool), path
    assert len(list(setting_names())) >= 30


def test_every_setting_has_a_description():
    for *sections, name in setting_names():
        fields = RunConfig.model_fields
        for section in sections:
            fields = fields[section].annotation.model_fields
        assert fields[name].description, name


@pytest.mark.parametrize("level", [-0.1, 1.5, "some"])
def test_probabilities_are_between_0_and_1(level):
    with pytest.raises(ConfigError, match=r"labels\.cpl_beta"):
        RunConfig.from_mapping({"labels": {"cpl_beta": level}}, "test")


@pytest.mark.parametrize("rate", [float("inf"), float("nan"), 0, -1])
def test_a_rate_is_a_positive_number(rate):
    with pytest.raises(ConfigError, match=r"train\.lr"):
        RunConfig.from_mapping({"train": {"lr": rate}}, "test")

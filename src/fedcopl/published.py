"""Where the defaults differ from the paper."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .config import RunConfig, by_full_name, override, read_settings, with_typed

AS_PUBLISHED: Mapping[str, str | float | bool] = {
    "train.init": "random",
    "train.batch": 64,
    "train.lr": 0.1,
    "train.step": "plain",
    "train.weight_decay": 0.05,
    "train.decay_to": "zero",
    "train.clip_norm": 0.0,
    "train.holdout": 0.0,
    "train.patience": 0,
    "sharing.bounded": False,
    "priors.logit_bias": False,
    "priors.label_shift": False,
    "priors.prototypes": False,
}
"""Where the defaults differ from the paper: a start and steps that hold on any tower, a guard, bounds, and priors.

docs/as-published.md has every setting, with the paper's words and the authors' code; a test holds the two together.
"""


def load_written(path: Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Settings as a run wrote them into its folder: all of them, so that what is missing is of an older version.

    Version 0.1 knew no other way than the published one.
    """
    written = read_settings(path)
    older = {} if "priors" in written else as_published()
    whole = {
        key: {**older.get(key, {}), **value} if isinstance(value, dict) else value for key, value in written.items()
    }
    return with_typed({**older, **whole}, overrides, str(path))


def is_as_published(config: RunConfig) -> bool:
    """Whether nothing is added to the paper; settings that the paper leaves to the experiment may be any."""
    settings = by_full_name(config.model_dump())
    return all(settings[name] == value for name, value in AS_PUBLISHED.items())


def as_published() -> dict[str, Any]:
    """The settings in which the paper differs from the defaults, in their sections."""
    return override({}, [f"{name}={json.dumps(value)}" for name, value in AS_PUBLISHED.items()])

"""Settings that differ from the paper."""

import json
from collections.abc import Mapping
from typing import Any

from .config import RunConfig, by_full_name, override

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
"""The published values of all settings whose default differs: initialisation, SGD steps, holdout, bounds, priors.

docs/as-published.md lists every setting with the paper's words and the authors' code; a test compares the two.
"""


def is_as_published(config: RunConfig) -> bool:
    """Return whether all settings of `AS_PUBLISHED` have their published values."""
    settings = by_full_name(config.model_dump())
    return all(settings[name] == value for name, value in AS_PUBLISHED.items())


def as_published() -> dict[str, Any]:
    """Return the published settings that differ from the defaults, by section."""
    return override({}, [f"{name}={json.dumps(value)}" for name, value in AS_PUBLISHED.items()])

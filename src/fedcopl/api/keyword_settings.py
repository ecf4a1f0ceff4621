"""Settings as keyword arguments: `rounds=5`, `lr=0.1`, or with the section before two underscores, `train__lr=0.1`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import RunConfig, override
from ..errors import ConfigError

Settings = str | int | float | bool | Path


def settings_of(
    given: Mapping[str, Settings], config: RunConfig | None = None, fixed: Mapping[str, Any] | None = None
) -> RunConfig:
    """The settings of a run: a whole set to begin with, single ones on top, and those that follow from the call."""
    begin = {} if config is None else config.model_dump()
    taken = override(begin, [f"{name.replace('__', '.')}={_written(name, value)}" for name, value in given.items()])
    for key, value in (fixed or {}).items():
        taken.setdefault("data", {})[key] = value
    return RunConfig.from_mapping(taken, "settings")


def _written(name: str, value: Any) -> str:
    """As a settings file would have it; JSON's scalars are TOML's."""
    plain = value.item() if hasattr(value, "item") else str(value) if isinstance(value, Path) else value
    if not isinstance(plain, str | int | float | bool):
        raise ConfigError(f"{name}: should be a text, a number or true or false, not {value!r}")
    return json.dumps(plain)

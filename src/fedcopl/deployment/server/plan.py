"""A run as `flwr run` describes it: a handful of flat settings, those of `[tool.flwr.app.config]`."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import RunConfig, override, read_settings
from ...errors import ConfigError
from .grid_clients import Patience


@dataclass(frozen=True)
class ServerPlan:
    """All that a server needs to know before it begins."""

    config: RunConfig
    classes_file: Path | None  # None in a simulation, where the data set knows its classes
    out: Path
    patience: Patience
    resume: bool = False


def read_run_settings(flat: Mapping[str, Any]) -> ServerPlan:
    """`settings` is a file, or pairs as on the command line of `fedcopl run`, or a file and then pairs."""
    words = shlex.split(str(flat.get("settings", "")))
    file = words.pop(0) if words and "=" not in words[0] else None
    settings = override(read_settings(Path(file)) if file else {}, words)
    out = str(flat.get("out", ""))
    if not out:
        raise ConfigError("out: name the folder for the results, as in --run-config 'out=\"runs/flower\"'")
    classes = str(flat.get("classes", ""))
    return ServerPlan(
        RunConfig.from_mapping(settings, file or "settings"),
        Path(classes) if classes else None,
        Path(out),
        Patience(
            float(flat.get("timeout", 600)), int(flat.get("min-sites", 1)), start_with=int(flat.get("start-with", 0))
        ),
        bool(flat.get("resume", False)),
    )

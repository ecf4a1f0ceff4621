"""The ServerApp and ClientApp that `flwr run` starts.

They are for deployments that already run Flower; `fedcopl server` and `fedcopl join` do not need them.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import RunConfig, override, read_settings
from ..deployment.server.grid_transport import Timeouts
from ..deployment.server.rounds import ServerPlan
from ..errors import ConfigError


def read_run_settings(run_config: Mapping[str, Any]) -> ServerPlan:
    """Parse Flower's run-config; its key `settings` has a file, `key=value` pairs as for `fedcopl run`, or both."""
    pairs = shlex.split(str(run_config.get("settings", "")))
    file = pairs.pop(0) if pairs and "=" not in pairs[0] else None
    settings = override(read_settings(Path(file)) if file else {}, pairs)
    out = str(run_config.get("out", ""))
    if not out:
        raise ConfigError("out: name the folder for the results, as in --run-config 'out=\"runs/flower\"'")
    classes = str(run_config.get("classes", ""))
    return ServerPlan(
        RunConfig.from_mapping(settings, file or "settings"),
        Path(classes) if classes else None,
        Path(out),
        Timeouts(
            float(run_config.get("timeout", 600)),
            int(run_config.get("min-sites", 1)),
            start_with=int(run_config.get("start-with", 0)),
        ),
        bool(run_config.get("resume", False)),
        Path(str(run_config["from"])) if run_config.get("from") else None,
    )

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


def read_run_settings(flat: Mapping[str, Any]) -> ServerPlan:
    """Parse a run-config; `settings` is a file, `key=value` pairs as for `fedcopl run`, or a file followed by pairs."""
    pairs = shlex.split(str(flat.get("settings", "")))
    file = pairs.pop(0) if pairs and "=" not in pairs[0] else None
    settings = override(read_settings(Path(file)) if file else {}, pairs)
    out = str(flat.get("out", ""))
    if not out:
        raise ConfigError("out: name the folder for the results, as in --run-config 'out=\"runs/flower\"'")
    classes = str(flat.get("classes", ""))
    return ServerPlan(
        RunConfig.from_mapping(settings, file or "settings"),
        Path(classes) if classes else None,
        Path(out),
        Timeouts(
            float(flat.get("timeout", 600)), int(flat.get("min-sites", 1)), start_with=int(flat.get("start-with", 0))
        ),
        bool(flat.get("resume", False)),
        Path(str(flat["from"])) if flat.get("from") else None,
    )

"""Who answers in a process that Flower started: told by the node's and the run's own flat settings."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..deployment.server.plan import read_run_settings
from ..deployment.site.consent import USUAL, Consent
from ..deployment.site.site import RunningSite, SiteHome
from ..errors import ConfigError
from ..simulation.simulated_sites import PARTITION, SimulatedSite

MODEL = "model."


def answerer_of(node: Mapping[str, Any], run: Mapping[str, Any]) -> SimulatedSite | RunningSite:
    if PARTITION in node:
        plan = read_run_settings(run)
        return SimulatedSite(plan.config.to_toml(), plan.out, int(node[PARTITION]))
    return _site(tuple(sorted(node.items())))


@lru_cache(maxsize=1)
def _site(node: tuple[tuple[str, Any], ...]) -> RunningSite:
    return RunningSite(home_of(dict(node)))


def home_of(node: Mapping[str, Any]) -> SiteHome:
    """From `--node-config 'name="a" images="/data" classes="classes.txt" folder="site" model.threads=1'`.

    Also `corrections`, and the conditions of `fedcopl join`: `share` (names with commas), `least-sites`, `least-noise`.
    """
    missing = [key for key in ("name", "images", "folder") if not node.get(key)]
    if missing:
        raise ConfigError(f"{missing[0]}: is missing from the node-config of this SuperNode")
    model = {key.removeprefix(MODEL): value for key, value in node.items() if key.startswith(MODEL)}
    return SiteHome(
        node["name"],
        Path(node["images"]),
        node.get("classes", ""),
        Path(node["folder"]),
        model,
        node.get("corrections", ""),
        Consent(
            tuple(str(node.get("share", ",".join(USUAL))).split(",")),
            int(node.get("least-sites", 0)),
            float(node.get("least-noise", 0)),
        ),
    )

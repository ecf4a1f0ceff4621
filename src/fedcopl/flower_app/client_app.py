"""Flower's ClientApp, for `flwr run`: the node-config of a SuperNode describes its site."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context

from ..deployment.audit_log import AuditLog
from ..deployment.site.pipeline import RequestHandler, make_client_app
from ..deployment.site.policies import DEFAULT_SHARE, MIN_IMAGES, Consent, Limits
from ..deployment.site.running_site import RunningSite, SiteOptions
from ..errors import ConfigError
from ..simulation.on_flower import PARTITION, SimulatedSite
from . import read_run_settings

_MODEL = "model."


def _site_of(context: Context) -> RequestHandler:
    """Return a simulated site if the node-config has a partition id, else the site that the node-config describes."""
    if PARTITION in context.node_config:
        plan = read_run_settings(context.run_config)
        return SimulatedSite(plan.config.to_toml(), plan.out, int(context.node_config[PARTITION]))
    return _running_site(tuple(sorted(context.node_config.items())))


@lru_cache(maxsize=1)  # every message needs the site, which is loaded once
def _running_site(node: tuple[tuple[str, Any], ...]) -> RunningSite:
    return RunningSite(_options_of(dict(node)))


def _options_of(node: Mapping[str, Any]) -> SiteOptions:
    """Parse `--node-config 'name="a" images="/data" classes="classes.txt" folder="site" model.threads=1'`.

    Further keys are `corrections`, and the conditions of `fedcopl join`: `share` (names separated by commas),
    `min-sites`, `min-noise`, `min-images`, `peers` and `limit` (pairs separated by commas). Runs need no approval:
    there is no terminal.
    """
    missing = [key for key in ("name", "images", "folder") if not node.get(key)]
    if missing:
        raise ConfigError(f"{missing[0]}: is missing from the node-config of this SuperNode; add it to --node-config")
    model = {key.removeprefix(_MODEL): value for key, value in node.items() if key.startswith(_MODEL)}
    return SiteOptions(
        node["name"],
        Path(node["images"]),
        node.get("classes", ""),
        Path(node["folder"]),
        model,
        node.get("corrections", ""),
        Consent(
            tuple(str(node.get("share", ",".join(DEFAULT_SHARE))).split(",")),
            int(node.get("min-sites", 0)),
            float(node.get("min-noise", 0)),
            int(node.get("min-images", MIN_IMAGES)),
        ),
        peers=Path(str(node["peers"])) if node.get("peers") else None,
        limits=Limits.from_pairs(filter(None, str(node.get("limit", "")).split(","))),
    )


def _log_of(context: Context) -> AuditLog | None:
    """Return the audit log of a real site; a simulated one has none."""
    folder = context.node_config.get("folder")
    return AuditLog(Path(str(folder))) if folder and PARTITION not in context.node_config else None


app = make_client_app(_site_of, _log_of)

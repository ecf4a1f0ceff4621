"""Flower's ClientApp, for `flwr run`: the node's own settings say which site answers."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context

from ..deployment.audit_log import AuditLog
from ..deployment.site.consent import MIN_IMAGES, USUAL, Consent
from ..deployment.site.limits import Limits
from ..deployment.site.replies import RequestHandler, make_client_app
from ..deployment.site.running_site import RunningSite, SiteHome
from ..errors import ConfigError
from ..simulation.on_flower import PARTITION, SimulatedSite
from .run_settings import read_run_settings

MODEL = "model."


def site_of(context: Context) -> RequestHandler:
    """A simulated site where Flower numbers its nodes, else the one that the node's own settings describe."""
    if PARTITION in context.node_config:
        plan = read_run_settings(context.run_config)
        return SimulatedSite(plan.config.to_toml(), plan.out, int(context.node_config[PARTITION]))
    return _site(tuple(sorted(context.node_config.items())))


@lru_cache(maxsize=1)
def _site(node: tuple[tuple[str, Any], ...]) -> RunningSite:
    return RunningSite(common_folder(dict(node)))


def common_folder(node: Mapping[str, Any]) -> SiteHome:
    """From `--node-config 'name="a" images="/data" classes="classes.txt" folder="site" model.threads=1'`.

    Also `corrections`, and the conditions of `fedcopl join`: `share` (names with commas), `min-sites`, `min-noise`,
    `min-images`, `peers` and `limit` (pairs with commas). Whoever lets a server send code to run need not be asked
    about runs.
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
            int(node.get("min-sites", 0)),
            float(node.get("min-noise", 0)),
            int(node.get("min-images", MIN_IMAGES)),
        ),
        peers=Path(str(node["peers"])) if node.get("peers") else None,
        limits=Limits.from_pairs(filter(None, str(node.get("limit", "")).split(","))),
    )


def log_of(context: Context) -> AuditLog | None:
    """A real site's record of what goes in and out; what is simulated crosses no wire."""
    folder = context.node_config.get("folder")
    return AuditLog(Path(str(folder))) if folder and PARTITION not in context.node_config else None


app = make_client_app(site_of, log_of)

"""How a server or a site gets on, for those who ask: no image, no label is needed to tell."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from ..config import RunConfig, read_settings
from ..errors import FederationError
from ..privacy.accountant import PrivacyStatement, statement
from ..run.folder import ENDED, ROUNDS, SETTINGS
from ..run.record import LabelCounts, RoundRecord
from ..run.record_reader import parse_json, read_rounds
from .certificates import read_site_keys
from .server.registry import ONLINE, Control
from .working_folder import who_works

SHOWN = 10  # rounds


@dataclass(frozen=True)
class Status:
    """How a server or a site gets on."""

    running: bool
    facts: Mapping[str, str]
    privacy: PrivacyStatement | None = None
    sites: list[list[str]] = field(default_factory=list)  # name, now, since, last trained
    rounds: list[list[str]] = field(default_factory=list)  # round, sites, images, loss, who was left out


def status_of(folder: Path) -> Status:
    about = who_works(folder)
    return _server(folder, about) if about["role"] == "server" else _site(folder, about)


def _server(folder: Path, about: Mapping[str, Any]) -> Status:
    out = Path(about["out"])
    rounds = _rounds(out)
    facts = {
        "server": f"running on {about['address']}" if about["running"] else "not running",
        "results": str(out),
        "rounds done": str(len(rounds)),
    }
    if (out / ENDED).exists() and not about["running"]:
        facts["ended because"] = (out / ENDED).read_text(encoding="utf-8").strip()
    totals = next((record.totals for record in reversed(rounds) if record.totals), None)
    if totals:
        facts["sure images by class"] = ", ".join(map(str, totals))
    labelling = next((record.labelling for record in reversed(rounds) if record.labelling), None)
    if labelling:
        facts |= _about_labels(labelling)
    trained = {site: record.number for record in rounds for site in record.sites or ()}
    privacy, sites = _privacy(out, rounds), _sites(folder, about, trained)
    return Status(about["running"], facts, privacy, sites, [_row(record) for record in rounds[-SHOWN:]])


def _privacy(out: Path, rounds: tuple[RoundRecord, ...]) -> PrivacyStatement | None:
    """What the run has given away so far; None if its settings hide nothing, or nobody has written them yet."""
    if not (out / SETTINGS).exists():
        return None
    config = RunConfig.from_mapping(read_settings(out / SETTINGS), str(out / SETTINGS))
    return statement(config, (release for record in rounds for release in record.releases))


def _about_labels(seen: LabelCounts) -> dict[str, str]:
    """What can be seen of pseudo labels where nobody knows the truth."""
    share = 100 * seen.chosen / max(seen.images, 1)
    facts = {"images chosen": f"{seen.chosen:,} of {seen.images:,} ({share:.0f} %)"}
    if seen.compared:
        same = 100 * seen.unchanged / seen.compared
        facts["labels as before"] = f"{seen.unchanged:,} of {seen.compared:,} ({same:.0f} %)"
    return facts


def _rounds(out: Path) -> tuple[RoundRecord, ...]:
    file = out / ROUNDS
    return read_rounds([parse_json(line) for line in file.read_bytes().splitlines()]) if file.exists() else ()


def _row(record: RoundRecord) -> list[str]:
    loss = "-" if record.loss is None else f"{record.loss:.3f}"
    dropped = "; ".join(f"{site}: {why}" for site, why in record.dropped.items())
    images = str(record.examples or "-")  # none are told where the run is private
    return [str(record.number), str(record.participants), images, loss, dropped]


def _sites(folder: Path, about: Mapping[str, Any], trained: dict[str, int]) -> list[list[str]]:
    """Of everyone who may join: whether it is connected, and the last round it trained in."""
    now = _connected(folder, about) if about["running"] else {}
    names = read_site_keys(folder / "sites") if (folder / "sites").is_dir() else {}
    return [
        [name, *now.get(name, ("not connected", "")), f"round {trained[name]}" if name in trained else "never"]
        for name in sorted(names)
    ]


def _connected(folder: Path, about: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    try:
        control = Control(about["local"], Path(about.get("ca", folder / "ca.pem")))
        nodes = control.nodes()
    except (httpx.HTTPError, OSError, ssl.SSLError) as error:
        raise FederationError(f"the server does not answer at {about['local']}: {error}") from error
    return {node.name: ("connected", str(node.last_activated_at)[:19]) for node in nodes if node.status == ONLINE}


def _site(folder: Path, about: Mapping[str, Any]) -> Status:
    facts = {
        "site": f"{about['name']}, {'running' if about['running'] else 'not running'}",
        "server": about["server"],
        "conditions": about.get("conditions", "unknown"),
    }
    steps = sorted((folder / "runs").glob("*/state/now.json"), key=lambda file: file.stat().st_mtime)
    if steps:
        kept = json.loads(steps[-1].read_text(encoding="utf-8"))
        facts |= {"last run": str(steps[-1].parent.parent), "last round": str(kept["round"] + 1)}
    return Status(about["running"], facts)

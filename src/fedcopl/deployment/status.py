"""How a server or a site gets on, for those who ask: no image, no label is needed to tell."""

import json
import ssl
from pathlib import Path
from typing import Any

import httpx

from ..config import RunConfig, read_settings
from ..errors import FederationError
from ..privacy.accountant import statement
from ..run.folder import ENDED
from .certificates import read_site_keys
from .server.registry import ONLINE, Control
from .working_folder import who_works

SHOWN = 10  # rounds
Told = dict[str, Any]


def status_of(folder: Path) -> Told:
    about = who_works(folder)
    return _server(folder, about) if about["role"] == "server" else _site(folder, about)


def _server(folder: Path, about: Told) -> Told:
    out = Path(about["out"])
    rounds = _rounds(out)
    facts = {
        "server": f"running on {about['address']}" if about["running"] else "not running",
        "results": str(out),
        "rounds done": str(len(rounds)),
    }
    if (out / ENDED).exists() and not about["running"]:
        facts["ended because"] = (out / ENDED).read_text(encoding="utf-8").strip()
    totals = next((record["totals"] for record in reversed(rounds) if record["totals"]), None)
    if totals:
        facts["sure images by class"] = ", ".join(map(str, totals))
    told = next((record["labelling"] for record in reversed(rounds) if record["labelling"]), None)
    if told:
        facts |= _about_labels(told)
    trained = {site: record["round"] + 1 for record in rounds for site in record["sites"]}
    return {
        "facts": facts,
        "running": about["running"],
        "privacy": _privacy(out, rounds),
        "sites": _sites(folder, about, trained),
        "rounds": [_row(record) for record in rounds[-SHOWN:]],
    }


def _privacy(out: Path, rounds: list[Told]) -> Told | None:
    """What the run has given away so far; None if its settings hide nothing, or nobody has written them yet."""
    settings = out / "settings.toml"
    if not settings.exists():
        return None
    return statement(RunConfig.from_mapping(read_settings(settings), str(settings)), rounds)


def _about_labels(told: Told) -> dict[str, str]:
    """What can be seen of pseudo labels where nobody knows the truth."""
    share = 100 * told["chosen"] / max(told["images"], 1)
    facts = {"images chosen": f"{told['chosen']:,} of {told['images']:,} ({share:.0f} %)"}
    if told["compared"]:
        same = 100 * told["unchanged"] / told["compared"]
        facts["labels as before"] = f"{told['unchanged']:,} of {told['compared']:,} ({same:.0f} %)"
    return facts


def _rounds(out: Path) -> list[Told]:
    file = out / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def _row(record: Told) -> list[str]:
    loss = "-" if record["loss"] is None else f"{record['loss']:.3f}"
    dropped = "; ".join(f"{site}: {why}" for site, why in record["dropped"].items())
    images = str(record["examples"] or "-")  # none are told where the run is private
    return [str(record["round"] + 1), str(record["participants"]), images, loss, dropped]


def _sites(folder: Path, about: Told, trained: dict[str, int]) -> list[list[str]]:
    """Of everyone who may join: whether it is connected, and the last round it trained in."""
    now = _connected(folder, about) if about["running"] else {}
    names = read_site_keys(folder / "sites") if (folder / "sites").is_dir() else {}
    return [
        [name, *now.get(name, ("not connected", "")), f"round {trained[name]}" if name in trained else "never"]
        for name in sorted(names)
    ]


def _connected(folder: Path, about: Told) -> dict[str, tuple[str, str]]:
    try:
        control = Control(about["local"], Path(about.get("ca", folder / "ca.pem")))
        nodes = control.nodes()
    except (httpx.HTTPError, OSError, ssl.SSLError) as error:
        raise FederationError(f"the server does not answer at {about['local']}: {error}") from error
    return {node.name: ("connected", str(node.last_activated_at)[:19]) for node in nodes if node.status == ONLINE}


def _site(folder: Path, about: Told) -> Told:
    facts = {
        "site": f"{about['name']}, {'running' if about['running'] else 'not running'}",
        "server": about["server"],
        "conditions": about.get("conditions", "unknown"),
    }
    places = sorted((folder / "runs").glob("*/state/now.json"), key=lambda file: file.stat().st_mtime)
    if places:
        kept = json.loads(places[-1].read_text(encoding="utf-8"))
        facts |= {"last run": str(places[-1].parent.parent), "last round": str(kept["round"] + 1)}
    return {"facts": facts, "running": about["running"]}

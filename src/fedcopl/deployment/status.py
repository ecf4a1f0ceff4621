"""How a server or a site gets on, for those who ask: no image and no label is needed for it."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from ..config import RunConfig, read_settings
from ..errors import FederationError
from ..privacy.accountant import PrivacyStatement, statement
from ..run.folder import ENDED, ROUNDS, SETTINGS
from ..run.record import LabelCounts, RoundRecord
from ..run.record_reader import parse_json, read_rounds
from .certificates import read_site_keys
from .processes import SECRET, FolderProcess, process_of
from .provisioning.endings import Ending, endings_of, key_ends, this_day
from .site.site_state import NOW, SiteState

SHOWN = 10  # rounds


@dataclass(frozen=True)
class Status:
    """How a server or a site gets on."""

    running: bool
    facts: Mapping[str, str]
    privacy: PrivacyStatement | None = None
    sites: list[list[str]] = field(default_factory=list)  # name, now, since, last trained, its key
    rounds: list[list[str]] = field(default_factory=list)  # round, sites, images, loss, who was left out


def status_of(folder: Path) -> Status:
    process = process_of(folder)
    return _server(process) if process.role == "server" else _site(process)


def _server(process: FolderProcess) -> Status:
    out = process.results
    rounds = rounds_so_far(out)
    facts = {
        "server": f"running on {process.about['address']}" if process.running else "not running",
        "results": str(out),
        "rounds done": str(len(rounds)),
    }
    if (out / ENDED).exists() and not process.running:
        facts["ended because"] = (out / ENDED).read_text(encoding="utf-8").strip()
    totals = next((record.totals for record in reversed(rounds) if record.totals), None)
    if totals:
        facts["sure images by class"] = ", ".join(map(str, totals))
    labelling = next((record.labelling for record in reversed(rounds) if record.labelling), None)
    if labelling:
        facts |= _about_labels(labelling)
    facts |= _ends(process.folder)
    trained = {site: record.number for record in rounds for site in record.sites or ()}
    privacy, sites = privacy_so_far(out, rounds), _sites(process, trained)
    return Status(process.running, facts, privacy, sites, [_row(record) for record in rounds[-SHOWN:]])


def privacy_so_far(out: Path, rounds: tuple[RoundRecord, ...]) -> PrivacyStatement | None:
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


def rounds_so_far(out: Path) -> tuple[RoundRecord, ...]:
    """The rounds of a run that are done."""
    file = out / ROUNDS
    return read_rounds([parse_json(line) for line in file.read_bytes().splitlines()]) if file.exists() else ()


def _row(record: RoundRecord) -> list[str]:
    loss = "-" if record.loss is None else f"{record.loss:.3f}"
    dropped = "; ".join(f"{site}: {why}" for site, why in (*record.dropped.items(), *record.site_notes()))
    images = str(record.examples or "-")  # unknown where the run is private
    return [str(record.number), str(record.participants), images, loss, dropped]


def _sites(process: FolderProcess, trained: Mapping[str, int]) -> list[list[str]]:
    """Of everyone who may join: whether it is connected, and the last round it trained in."""
    now, folder = connected_sites(process) if process.running else {}, process.folder / "sites"
    names, ends = (read_site_keys(folder), key_ends(folder)) if folder.is_dir() else ({}, {})

    def row(name: str) -> list[str]:
        last = f"round {trained[name]}" if name in trained else "never"
        key = Ending("", ends[name], "").in_words(this_day()) if name in ends else "no end"
        return [name, *now.get(name, ("not connected", "")), last, key]

    return [row(name) for name in sorted(names)]


def _ends(folder: Path) -> dict[str, str]:
    """When certificates and a site's own key end; those of all sites stand beside their names."""
    of_sites = {f"key of {name}" for name in key_ends(folder / "sites")}
    return {end.what: end.in_words(this_day()) for end in endings_of(folder) if end.what not in of_sites}


def connected_sites(process: FolderProcess) -> dict[str, tuple[str, str]]:
    """Who is connected to a running server, and since when."""
    # Only here: a site imports this file too, and all that comes with a SuperLink would be 40 MB in each of them.
    from .flower_internals.connections import Control

    address, ca = process.about["local"], process.about["ca"]
    try:
        secret = (process.folder / "flower" / SECRET).read_bytes()
        sites = Control(address, Path(ca), secret).sites()
    except (httpx.HTTPError, OSError, ssl.SSLError) as error:
        raise FederationError(f"the server does not answer at {address}: {error}") from error
    return {site.name: ("connected", site.since[:19]) for site in sites if site.online}


def _site(process: FolderProcess) -> Status:
    about = process.about
    facts = {
        "site": f"{about['name']}, {'running' if process.running else 'not running'}",
        "server": about["server"],
        "conditions": about["conditions"],
        **_ends(process.folder),
    }
    steps = sorted((process.folder / "runs").glob(f"*/state/{NOW}"), key=lambda file: file.stat().st_mtime)
    if steps:
        state = steps[-1].parent
        facts |= {"last run": str(state.parent), "last round": str(SiteState(state).step().round + 1)}
    return Status(process.running, facts)

"""`fedcopl status`: the state of a server or a site, read from its folder without images or labels."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from ..config import RunConfig, read_settings
from ..errors import FederationError
from ..files import parse_json
from ..privacy.accountant import PrivacyStatement, statement
from ..run.folder import ENDED, ROUNDS, SETTINGS
from ..run.record import LabelCounts, RoundRecord
from ..run.record_reader import read_rounds
from .processes import SECRET, FolderProcess, process_of
from .provisioning.expiry import Expiry, expiries, key_ends, today_utc
from .site.site_state import NOW, SiteState
from .site_keys import read_site_keys

_SHOWN = 10  # rounds


@dataclass(frozen=True)
class Status:
    """The state of a server or a site."""

    running: bool
    facts: Mapping[str, str]
    privacy: PrivacyStatement | None = None
    sites: list[list[str]] = field(default_factory=list)  # name, now, since, last trained, its key
    rounds: list[list[str]] = field(default_factory=list)  # round, sites, images, loss, sites left out


def status_of(folder: Path) -> Status:
    process = process_of(folder)
    return _server(process) if process.role == "server" else _site(process)


def _server(process: FolderProcess) -> Status:
    out = process.results
    rounds = rounds_so_far(out)
    facts = {
        "server": f"running on {process.about['address']}" if process.running else "not running",
        "results": str(out),
        "finished rounds": str(len(rounds)),
    }
    if (out / ENDED).exists() and not process.running:
        facts["reason for its end"] = (out / ENDED).read_text(encoding="utf-8").strip()
    totals = next((record.totals for record in reversed(rounds) if record.totals), None)
    if totals:
        facts["confident images by class"] = ", ".join(map(str, totals))
    labelling = next((record.labelling for record in reversed(rounds) if record.labelling), None)
    if labelling:
        facts |= _label_facts(labelling)
    facts |= _ends(process.folder)
    trained = {site: record.number for record in rounds for site in record.sites or ()}
    privacy, sites = privacy_so_far(out, rounds), _sites(process, trained)
    return Status(process.running, facts, privacy, sites, [_row(record) for record in rounds[-_SHOWN:]])


def privacy_so_far(out: Path, rounds: tuple[RoundRecord, ...]) -> PrivacyStatement | None:
    """Return the privacy spent so far; None if the run has no noise, or has not started."""
    if not (out / SETTINGS).exists():
        return None
    config = RunConfig.from_mapping(read_settings(out / SETTINGS), str(out / SETTINGS))
    return statement(config, (release for record in rounds for release in record.releases))


def _label_facts(counts: LabelCounts) -> dict[str, str]:
    """Describe the pseudo labels without true labels."""
    share = 100 * counts.chosen / max(counts.images, 1)
    facts = {"images selected": f"{counts.chosen:,} of {counts.images:,} ({share:.0f} %)"}
    if counts.compared:
        same = 100 * counts.unchanged / counts.compared
        facts["labels unchanged"] = f"{counts.unchanged:,} of {counts.compared:,} ({same:.0f} %)"
    return facts


def rounds_so_far(out: Path) -> tuple[RoundRecord, ...]:
    """Read the finished rounds of a run."""
    file = out / ROUNDS
    return read_rounds([parse_json(line) for line in file.read_bytes().splitlines()]) if file.exists() else ()


def _row(record: RoundRecord) -> list[str]:
    loss = "-" if record.loss is None else f"{record.loss:.3f}"
    dropped = "; ".join(f"{site}: {why}" for site, why in (*record.dropped.items(), *record.site_notes()))
    images = str(record.examples or "-")  # unknown where the run is private
    return [str(record.number), str(record.participants), images, loss, dropped]


def _sites(process: FolderProcess, trained: Mapping[str, int]) -> list[list[str]]:
    """Return a row for each site that may join: its connection, and the last round it trained in."""
    now, folder = connected_sites(process) if process.running else {}, process.folder / "sites"
    names, ends = (read_site_keys(folder), key_ends(folder)) if folder.is_dir() else ({}, {})

    def row(name: str) -> list[str]:
        last = f"round {trained[name]}" if name in trained else "never"
        key = Expiry("", ends[name], "").text(today_utc()) if name in ends else "does not expire"
        return [name, *now.get(name, ("not connected", "")), last, key]

    return [row(name) for name in sorted(names)]


def _ends(folder: Path) -> dict[str, str]:
    """Return the expiry of certificates and a site's own key; those of a server's sites are in their rows."""
    of_sites = {f"key of {name}" for name in key_ends(folder / "sites")}
    return {end.what: end.text(today_utc()) for end in expiries(folder) if end.what not in of_sites}


def connected_sites(process: FolderProcess) -> dict[str, tuple[str, str]]:
    """Return name -> ("connected", since) of the sites connected to a running server."""
    # Imported here: a site imports this module too, and the client of a SuperLink would cost it 40 MB.
    from .flower_internals.connections import Control

    address, ca = process.about["local"], process.about["ca"]
    try:
        secret = (process.folder / "flower" / SECRET).read_bytes()
        sites = Control(address, Path(ca), secret).sites()
    except (httpx.HTTPError, OSError, ssl.SSLError) as error:
        raise FederationError(f"the server does not respond at {address}: {error}") from error
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

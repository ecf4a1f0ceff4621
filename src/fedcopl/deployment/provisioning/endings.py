"""When keys and certificates end: in time to do something about it.

A certificate carries its end. A site's key has one only where a study says so: in `ends.json` beside the public keys,
by which the server goes, and in the site's own `package.json`, for the people there.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from ...errors import FederationError
from ...plurals import counted
from ..certificates import SiteKey, certificate_end, key_digest, read_site_keys
from .package_file import AUTHORITY, CERTIFICATE, NOTES, PackageNotes

ENDS = "ends.json"
SOON = 30  # days


@dataclass(frozen=True)
class Ending:
    """The last day of something, and who can make it longer."""

    what: str
    day: date
    do: str

    def days_left(self, today: date) -> int:
        return (self.day - today).days

    def is_near(self, today: date) -> bool:
        return self.days_left(today) <= SOON

    def in_words(self, today: date) -> str:
        """
        >>> Ending("key", date(2027, 1, 31), "").in_words(date(2027, 1, 1))
        'until 2027-01-31, 30 days'
        >>> Ending("key", date(2027, 1, 31), "").in_words(date(2027, 2, 1))
        'ended on 2027-01-31'
        """
        left = self.days_left(today)
        return f"ended on {self.day}" if left < 0 else f"until {self.day}, {counted(left, 'day')}"


def this_day() -> date:
    """The same day everywhere: keys end at midnight UTC."""
    return datetime.now(UTC).date()


def endings_of(folder: Path) -> Iterator[Ending]:
    """Of everything in the folder of a server or a site that ends."""
    notes = folder_notes(folder)
    is_site = notes.kind == "site" if notes else not (folder / CERTIFICATE).exists()
    request = "ask the operator for a new package"
    do = request if is_site else "fedcopl provision STUDY --renew authority, and new packages to all sites"
    if (folder / AUTHORITY).exists():
        yield Ending("authority", certificate_end(folder / AUTHORITY).date(), do)
    if (folder / CERTIFICATE).exists():
        renewed = "fedcopl provision STUDY --renew server" if notes else "nothing: a start of the server renews it"
        yield Ending("server's certificate", certificate_end(folder / CERTIFICATE).date(), renewed)
    if notes and notes.key_ends:
        yield Ending("key of this site", _day(notes.key_ends, folder / NOTES), request)
    for name, day in key_ends(folder / "sites").items():
        yield Ending(f"key of {name}", day, f"fedcopl provision STUDY --renew {name}")


def key_ends(sites: Path) -> dict[str, date]:
    """The last day of every site's key that has one, by the site's name."""
    if not (sites / ENDS).exists():
        return {}
    ends = _ends(sites / ENDS)
    return {key.name: ends[key_digest(key)] for key in read_site_keys(sites).values() if key_digest(key) in ends}


def admitted_keys(sites: Path, today: date) -> dict[str, SiteKey]:
    """Who may join on this day: every key of the folder whose end has not come."""
    ends = key_ends(sites)
    return {name: key for name, key in read_site_keys(sites).items() if ends.get(name, today) >= today}


def folder_notes(folder: Path) -> PackageNotes | None:
    """What the package of this folder said; None where it had none."""
    file = folder / NOTES
    if not file.exists():
        return None
    try:
        return PackageNotes.model_validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise FederationError(f"{file}: is damaged; take the package in again: fedcopl join PACKAGE ...") from error


def _ends(file: Path) -> Mapping[str, date]:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        return {str(key): date.fromisoformat(day) for key, day in kept.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise FederationError(f"{file}: cannot be read: {error}") from error


def _day(text: str, file: Path) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise FederationError(f"{file}: {text!r} is no day") from error

"""Expiry of keys and certificates.

A certificate contains its last day. A site's key has one only if it was provisioned for a study: in `ends.json` in the
folder of public keys, for the server, and in the site's own `package.json`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from ...errors import FederationError
from ...plurals import counted
from ..certificates import certificate_end
from ..site_keys import SiteKey, key_digest, read_site_keys
from .packages import AUTHORITY, CERTIFICATE, folder_notes

_ENDS = "ends.json"
_SOON = 30  # days


@dataclass(frozen=True)
class Expiry:
    """The last day of a key or certificate, and how to renew it."""

    what: str
    day: date
    renewal: str

    def days_left(self, today: date) -> int:
        return (self.day - today).days

    def is_near(self, today: date) -> bool:
        return self.days_left(today) <= _SOON

    def text(self, today: date) -> str:
        """Describe the expiry as seen from a day.

        >>> Expiry("key", date(2027, 1, 31), "").text(date(2027, 1, 1))
        'valid until 2027-01-31, 30 days'
        >>> Expiry("key", date(2027, 1, 31), "").text(date(2027, 2, 1))
        'expired after 2027-01-31'
        """
        left = self.days_left(today)
        return f"expired after {self.day}" if left < 0 else f"valid until {self.day}, {counted(left, 'day')}"


def today_utc() -> date:
    """Return the date in UTC: keys expire at midnight UTC."""
    return datetime.now(UTC).date()


def expiries(folder: Path) -> Iterator[Expiry]:
    """Yield the expiry of every key and certificate in the folder of a server or a site."""
    notes = folder_notes(folder)
    is_site = notes.kind == "site" if notes else not (folder / CERTIFICATE).exists()
    ask = "ask the operator for a new package"
    renewal = ask if is_site else "fedcopl provision STUDY --renew authority, and new packages to all sites"
    if (folder / AUTHORITY).exists():
        yield Expiry("authority", certificate_end(folder / AUTHORITY).date(), renewal)
    if (folder / CERTIFICATE).exists():
        renewed = (
            "fedcopl provision STUDY --renew server" if notes else "none needed: a restart of the server renews it"
        )
        yield Expiry("server's certificate", certificate_end(folder / CERTIFICATE).date(), renewed)
    if notes and notes.key_ends:
        yield Expiry("key of this site", notes.key_ends, ask)
    for name, day in key_ends(folder / "sites").items():
        yield Expiry(f"key of {name}", day, f"fedcopl provision STUDY --renew {name}")


def key_ends(sites: Path) -> dict[str, date]:
    """Return name -> last day of every site's key that has one."""
    file = sites / _ENDS
    if not file.exists():
        return {}
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        ends = {str(key): date.fromisoformat(day) for key, day in kept.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise FederationError(f"{file}: cannot be read: {error}") from error
    return {key.name: ends[key_digest(key)] for key in read_site_keys(sites).values() if key_digest(key) in ends}


def admitted_keys(sites: Path, today: date) -> dict[str, SiteKey]:
    """Return the sites that may join on this day: every key of the folder that has not expired."""
    ends = key_ends(sites)
    return {name: key for name, key in read_site_keys(sites).items() if ends.get(name, today) >= today}

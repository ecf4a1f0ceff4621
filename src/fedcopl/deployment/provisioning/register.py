"""The register of a study: which keys were given out, until when, and which are good for nothing any more."""

from datetime import date, timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field

from ...config import Section
from ...errors import FederationError
from ...files import write_private
from ..certificates import SiteKey, key_digest

REGISTER = "register.json"


class IssuedKey(Section):
    """The key of a site that may join; without a digest the site has not handed its own in yet."""

    number: int = 1  # 2 is the one that replaced the first
    digest: str = ""
    ends: date


class RevokedKey(Section):
    """A key that lets nobody in, whoever brings it."""

    site: str
    digest: str
    day: date
    why: Literal["revoked", "renewed"]


class Register(Section):
    """All keys of a study, never changed in place."""

    keys: dict[str, IssuedKey] = Field(default={}, validate_default=False)
    revoked: tuple[RevokedKey, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> "Register":
        file = folder / REGISTER
        if not file.exists():
            return cls()
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValueError) as error:
            raise FederationError(f"{file}: is damaged; put back the last copy of it: {error}") from error

    def write(self, folder: Path) -> None:
        write_private(folder / REGISTER, (self.model_dump_json(indent=1) + "\n").encode())

    def issue(self, site: str, digest: str, today: date, days: int) -> "Register":
        """A key for a site: its first, or the next after one that was taken back."""
        number = 1 + sum(old.site == site for old in self.revoked)
        issued = IssuedKey(number=number, digest=digest, ends=today + timedelta(days=days))
        return self.model_copy(update={"keys": {**self.keys, site: issued}})

    def take_back(self, site: str, today: date, why: Literal["revoked", "renewed"]) -> "Register":
        """The site's key lets nobody in any more; the site has none until the next is issued."""
        if site not in self.keys:
            known = ", ".join(sorted(self.keys)) or "none yet"
            raise FederationError(f"{site}: has no key to take back; sites with one: {known}")
        gone, left = self.keys[site], {name: key for name, key in self.keys.items() if name != site}
        revoked = RevokedKey(site=site, digest=gone.digest, day=today, why=why)
        return Register(keys=left, revoked=(*self.revoked, revoked))

    def refuse_revoked(self, key: SiteKey) -> None:
        for old in self.revoked:
            if old.digest == key_digest(key):
                raise FederationError(
                    f"{key.name}: this key was {old.why} on {old.day}; the site has to make a new one"
                )

    def is_locked_out(self, site: str) -> bool:
        """Whether the operator took the site's key back and gave it no other."""
        return site not in self.keys and any(old.site == site for old in self.revoked)

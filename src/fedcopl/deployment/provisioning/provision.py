"""`fedcopl provision`: the operator's folder of a study, its register of keys, and the packages made from it.

| in the folder | |
|---|---|
| authority/ | the study's certificate authority and the server's certificate; `ca.key` stays here |
| register.json | the keys that were issued, their last days, and the revoked keys |
| sites/ | the public keys of the sites that may join |
| packages/ | one file for each site and one for the server, to be sent to them |
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import Field

from ...config import Section
from ...errors import ConfigError, FederationError
from ...files import make_private_folder, publish_bytes, write_private
from ...run.folder import file_name
from ..certificates import HERE, folder_certificates, issue_certificates, renew_authority
from ..site_keys import SiteKey, key_digest, new_site_key, public_half, read_site_key
from ..wire.terms import config_from
from . import packages as names
from .packages import Package, PackageNotes, read_package, write_package
from .study_plan import PreparedStudy

REGISTER = "register.json"
SERVER, AUTHORITY = "server", "authority"  # values of --renew other than a site


class IssuedKey(Section):
    """The key of a site that may join; without a digest the site has not sent its own key yet."""

    number: int = 1  # 1, and one more with each renewal
    digest: str = ""
    ends: date


class RevokedKey(Section):
    """A key that is no longer accepted."""

    site: str
    digest: str
    day: date
    why: Literal["revoked", "renewed"]


class Register(Section):
    """All keys of a study; immutable."""

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
            raise FederationError(f"{file}: is damaged; restore the last copy of it: {error}") from error

    def write(self, folder: Path) -> None:
        write_private(folder / REGISTER, (self.model_dump_json(indent=1) + "\n").encode())

    def issue(self, site: str, digest: str, today: date, days: int) -> "Register":
        """Issue a key for a site: its first, or the next after a revoked one."""
        number = 1 + sum(old.site == site for old in self.revoked)
        issued = IssuedKey(number=number, digest=digest, ends=today + timedelta(days=days))
        return self.model_copy(update={"keys": {**self.keys, site: issued}})

    def revoke(self, site: str, today: date, why: Literal["revoked", "renewed"]) -> "Register":
        """Revoke the site's key; the site has none until the next is issued."""
        if site not in self.keys:
            known = ", ".join(sorted(self.keys)) or "none yet"
            raise FederationError(f"{site}: has no key to revoke; sites with one: {known}")
        gone, left = self.keys[site], {name: key for name, key in self.keys.items() if name != site}
        revoked = RevokedKey(site=site, digest=gone.digest, day=today, why=why)
        return Register(keys=left, revoked=(*self.revoked, revoked))

    def refuse_revoked(self, key: SiteKey) -> None:
        for old in self.revoked:
            if old.digest == key_digest(key):
                raise FederationError(
                    f"{key.name}: this key was {old.why} on {old.day}; the site has to make a new key"
                )

    def is_locked_out(self, site: str) -> bool:
        """Return whether the site's key was revoked and no other issued."""
        return site not in self.keys and any(old.site == site for old in self.revoked)


@dataclass(frozen=True)
class StudyFolder:
    """Paths in an operator's folder."""

    path: Path

    @property
    def authority(self) -> Path:
        return self.path / "authority"

    def public(self, site: str) -> Path:
        return self.path / "sites" / f"{file_name(site)}.pub"

    def package(self, name: str) -> Path:
        return self.path / "packages" / f"{file_name(name)}{names.SUFFIX}"


@dataclass(frozen=True)
class Handover:
    """A package that was made, for one site or the server."""

    path: Path
    name: str
    digest: str
    has_key: bool


def provision(study: PreparedStudy, folder: StudyFolder, today: date) -> list[Handover]:
    """Make all packages. Issued keys stay valid; new sites get a key, revoked sites do not."""
    make_private_folder(folder.path)
    issue_certificates(folder.authority, {*study.plan.address, "localhost", HERE, "::1"})
    register, fresh = Register.read(folder.path), {}
    for site in study.plan.sites:
        if site not in register.keys and not register.is_locked_out(site):
            register, fresh[site] = _issue(study, folder, register, site, today)
    _remove_unknown_keys(folder, register)
    register.write(folder.path)  # first: a key that is not in it is not accepted
    made = [
        _site_package(study, folder, site, key, fresh.get(site) or _packed_before(folder, site, key))
        for site, key in register.keys.items()
        if site in study.plan.sites
    ]
    return [*made, _server_package(study, folder, register)]


def revoke(study: PreparedStudy, folder: StudyFolder, site: str, today: date) -> list[Handover]:
    """Revoke a site's key. It takes effect when the server installs its new package."""
    Register.read(folder.path).revoke(site, today, "revoked").write(folder.path)
    folder.package(site).unlink(missing_ok=True)
    return provision(study, folder, today)


def renew(study: PreparedStudy, folder: StudyFolder, what: str, today: date) -> list[Handover]:
    """Renew the key of a site, also of a revoked one, or the certificate of the server or of the authority."""
    if what == AUTHORITY:
        renew_authority(folder.authority)
    elif what == SERVER:
        folder_certificates(folder.authority).certificate.unlink(missing_ok=True)
    elif what in study.plan.sites:
        register = Register.read(folder.path)
        if what in register.keys:
            register = register.revoke(what, today, "renewed")
        register, key = _issue(study, folder, register, what, today)
        register.write(folder.path)
        _site_package(study, folder, what, register.keys[what], key)
    else:
        raise ConfigError(f"--renew: {what!r} is neither a site of the study nor '{SERVER}' or '{AUTHORITY}'")
    return provision(study, folder, today)


def _issue(
    study: PreparedStudy, folder: StudyFolder, register: Register, site: str, today: date
) -> tuple[Register, bytes]:
    """Issue a new key if the operator makes it; otherwise the site may send its own."""
    key = new_site_key() if study.plan.sites[site] == "packed" else b""
    digest = ""
    if key:
        publish_bytes(folder.public(site), public_half(key, site))
        digest = key_digest(read_site_key(folder.public(site)))
    return register.issue(site, digest, today, study.plan.key_days), key


def admit_key(study: PreparedStudy, folder: StudyFolder, file: Path, today: date) -> list[Handover]:
    """Admit the public key that a site made itself."""
    key, register = read_site_key(file), Register.read(folder.path)
    if study.plan.sites.get(key.name) != "own":
        raise FederationError(f"{file}: is the key of {key.name!r}, which is not a site of this study with its own key")
    register.refuse_revoked(key)
    issued = register.keys.get(key.name)
    if issued is not None and issued.digest not in ("", key_digest(key)):
        raise FederationError(f"{key.name}: already has another key; first: --renew {key.name}, or --revoke {key.name}")
    if register.is_locked_out(key.name):
        raise FederationError(f"{key.name}: was revoked; first: --renew {key.name}")
    publish_bytes(folder.public(key.name), file.read_bytes())
    register.issue(key.name, key_digest(key), today, study.plan.key_days).write(folder.path)
    return provision(study, folder, today)


def _remove_unknown_keys(folder: StudyFolder, register: Register) -> None:
    """Delete public keys that are not in the register."""
    good = {issued.digest for issued in register.keys.values()}
    for file in (folder.path / "sites").glob("*.pub"):
        if key_digest(read_site_key(file)) not in good:
            file.unlink()


def _packed_before(folder: StudyFolder, site: str, issued: IssuedKey) -> bytes:
    """Return the key in the site's last package, if that still exists; it may be deleted once it was sent."""
    if not folder.package(site).exists():
        return b""
    before = read_package(folder.package(site), "site")
    return before.files.get(names.SITE_KEY, b"") if before.notes.key_number == issued.number else b""


def _site_package(study: PreparedStudy, folder: StudyFolder, site: str, issued: IssuedKey, key: bytes) -> Handover:
    settings = config_from(study.settings, study.plan.name).to_toml()  # to approve: without the operator's paths
    files = {names.SETTINGS: settings.encode(), **({names.SITE_KEY: key} if key else {})}
    about = {"key": study.plan.sites[site], "key_number": issued.number, "key_ends": issued.ends}
    return _write(study, folder, {"kind": "site", "name": site, **about}, files)


def _server_package(study: PreparedStudy, folder: StudyFolder, register: Register) -> Handover:
    made = folder_certificates(folder.authority)
    known = {site: issued for site, issued in register.keys.items() if issued.digest and site in study.plan.sites}
    ends = {issued.digest: issued.ends.isoformat() for issued in known.values()}
    files = {
        names.SETTINGS: study.config.to_toml().encode(),
        names.CERTIFICATE: made.certificate.read_bytes(),
        names.SERVER_KEY: made.key.read_bytes(),
        names.ENDS: (json.dumps(ends, indent=1, sort_keys=True) + "\n").encode(),
        **{f"{names.SITES}{file_name(site)}.pub": folder.public(site).read_bytes() for site in known},
    }
    return _write(study, folder, {"kind": "server", "name": SERVER}, files)


def _write(
    study: PreparedStudy, folder: StudyFolder, about: Mapping[str, object], files: Mapping[str, bytes]
) -> Handover:
    """Write a package with these files and those that all packages of the study have."""
    common = {"study": study.plan.name, "address": study.plan.server, "version": version("fedcopl")}
    common |= {"model": study.model, "classes": study.classes}
    notes = PackageNotes.model_validate({**common, "settings": study.settings, **about})
    ca = folder_certificates(folder.authority).ca.read_bytes()
    package = Package.of(notes, {names.AUTHORITY: ca, names.CLASSES: study.classes_text.encode(), **files})
    path = folder.package(notes.name)
    write_package(path, package)
    return Handover(path, notes.name, package.digest, names.SITE_KEY in files)

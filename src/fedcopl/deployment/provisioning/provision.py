"""`fedcopl provision`: the operator's folder of a study, and the packages that are made of it.

| in the folder | |
|---|---|
| authority/ | the study's certificate authority and the server's certificate; `ca.key` stays here |
| register.json | which keys were given out, until when, and which were taken back |
| sites/ | the public keys of those who may join |
| packages/ | one file for each site and one for the server, to be handed over |
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from ...errors import ConfigError, FederationError
from ...files import make_private_folder, publish_bytes
from ...run.folder import file_name
from ..certificates import (
    HERE,
    folder_certificates,
    issue_certificates,
    key_digest,
    new_site_key,
    public_half,
    read_site_key,
    renew_authority,
)
from ..wire.terms import config_from
from . import package_file as names
from .package_file import Package, PackageNotes, read_package, write_package
from .register import IssuedKey, Register
from .study_plan import PreparedStudy

SERVER, EVERYBODY = "server", "authority"  # what can be renewed beside a site's key


@dataclass(frozen=True)
class StudyFolder:
    """Where things are in an operator's folder."""

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
    """A package that was made: for whom, and what is to be done with it."""

    path: Path
    name: str
    digest: str
    has_key: bool


def provision(study: PreparedStudy, folder: StudyFolder, today: date) -> list[Handover]:
    """Packages for everybody. Keys that were given out stay; who is new gets one, who was revoked does not."""
    make_private_folder(folder.path)
    issue_certificates(folder.authority, {*study.plan.address, "localhost", HERE, "::1"})
    register, fresh = Register.read(folder.path), {}
    for site in study.plan.sites:
        if site not in register.keys and not register.is_locked_out(site):
            register, fresh[site] = _issue(study, folder, register, site, today)
    _forget_strangers(folder, register)
    register.write(folder.path)  # first: a key that is not in it lets nobody in
    made = [
        _site_package(study, folder, site, key, fresh.get(site) or _packed_before(folder, site, key))
        for site, key in register.keys.items()
        if site in study.plan.sites
    ]
    return [*made, _server_package(study, folder, register)]


def revoke(study: PreparedStudy, folder: StudyFolder, site: str, today: date) -> list[Handover]:
    """Take a site's key back. It is locked out as soon as the server has its new package."""
    Register.read(folder.path).take_back(site, today, "revoked").write(folder.path)
    folder.package(site).unlink(missing_ok=True)
    return provision(study, folder, today)


def renew(study: PreparedStudy, folder: StudyFolder, what: str, today: date) -> list[Handover]:
    """Another key for a site, also for one that was revoked; or the server's certificate, or the authority's, anew."""
    if what == EVERYBODY:
        renew_authority(folder.authority)
    elif what == SERVER:
        folder_certificates(folder.authority).certificate.unlink(missing_ok=True)
    elif what in study.plan.sites:
        _renew_key(study, folder, what, today)
    else:
        raise ConfigError(f"--renew: {what!r} is neither a site of the study nor '{SERVER}' or '{EVERYBODY}'")
    return provision(study, folder, today)


def _renew_key(study: PreparedStudy, folder: StudyFolder, site: str, today: date) -> None:
    register = Register.read(folder.path)
    if site in register.keys:
        register = register.take_back(site, today, "renewed")
    register, key = _issue(study, folder, register, site, today)
    register.write(folder.path)
    _site_package(study, folder, site, register.keys[site], key)


def _issue(
    study: PreparedStudy, folder: StudyFolder, register: Register, site: str, today: date
) -> tuple[Register, bytes]:
    """A new key where the operator makes it; else only the right to hand one in."""
    key = new_site_key() if study.plan.sites[site] == "packed" else b""
    digest = ""
    if key:
        publish_bytes(folder.public(site), public_half(key, site))
        digest = key_digest(read_site_key(folder.public(site)))
    return register.issue(site, digest, today, study.plan.key_days), key


def admit_key(study: PreparedStudy, folder: StudyFolder, file: Path, today: date) -> list[Handover]:
    """Take in the public key that a site made itself."""
    key, register = read_site_key(file), Register.read(folder.path)
    if study.plan.sites.get(key.name) != "own":
        raise FederationError(f"{file}: is of {key.name!r}, which is no site of this study that makes its own key")
    register.refuse_revoked(key)
    issued = register.keys.get(key.name)
    if issued is not None and issued.digest not in ("", key_digest(key)):
        raise FederationError(f"{key.name}: has another key already; first: --renew {key.name}, or --revoke {key.name}")
    if register.is_locked_out(key.name):
        raise FederationError(f"{key.name}: was revoked; first: --renew {key.name}")
    publish_bytes(folder.public(key.name), file.read_bytes())
    register.issue(key.name, key_digest(key), today, study.plan.key_days).write(folder.path)
    return provision(study, folder, today)


def _forget_strangers(folder: StudyFolder, register: Register) -> None:
    """Public keys that the register does not know, or knows no more, are not for the server."""
    good = {issued.digest for issued in register.keys.values()}
    for file in (folder.path / "sites").glob("*.pub"):
        if key_digest(read_site_key(file)) not in good:
            file.unlink()


def _packed_before(folder: StudyFolder, site: str, issued: IssuedKey) -> bytes:
    """The key in the site's last package, if that is still here: once it is handed over it need not be."""
    if not folder.package(site).exists():
        return b""
    before = read_package(folder.package(site), "site")
    return before.files.get(names.SITE_KEY, b"") if before.notes.key_number == issued.number else b""


def _notes(study: PreparedStudy, kind: Literal["site", "server"], name: str, **key: str | int) -> PackageNotes:
    common = {"study": study.plan.name, "address": study.plan.server, "version": version("fedcopl")}
    about = {"model": study.model, "classes": study.classes, "settings": study.settings}
    return PackageNotes.model_validate({"kind": kind, "name": name, **common, **about, **key})


def _site_package(study: PreparedStudy, folder: StudyFolder, site: str, issued: IssuedKey, key: bytes) -> Handover:
    about = {"key": study.plan.sites[site], "key_number": issued.number, "key_ends": issued.ends.isoformat()}
    settings = config_from(study.settings, study.plan.name).to_toml()  # to agree to: without the operator's own paths
    files = _for_everybody(study, folder) | {names.SETTINGS: settings.encode()}
    files |= {names.SITE_KEY: key} if key else {}
    return _write(folder, Package.of(_notes(study, "site", site, **about), files))


def _server_package(study: PreparedStudy, folder: StudyFolder, register: Register) -> Handover:
    made = folder_certificates(folder.authority)
    known = {site: issued for site, issued in register.keys.items() if issued.digest and site in study.plan.sites}
    files = _for_everybody(study, folder) | {
        names.SETTINGS: study.config.to_toml().encode(),
        names.CERTIFICATE: made.certificate.read_bytes(),
        names.SERVER_KEY: made.key.read_bytes(),
        names.ENDS: _ends(known.values()),
        **{f"{names.SITES}{file_name(site)}.pub": folder.public(site).read_bytes() for site in known},
    }
    return _write(folder, Package.of(_notes(study, "server", SERVER), files))


def _for_everybody(study: PreparedStudy, folder: StudyFolder) -> dict[str, bytes]:
    ca = folder_certificates(folder.authority).ca.read_bytes()
    return {names.AUTHORITY: ca, names.CLASSES: study.classes_text.encode()}


def _ends(keys: Iterable[IssuedKey]) -> bytes:
    ends: Mapping[str, str] = {issued.digest: issued.ends.isoformat() for issued in keys}
    return (json.dumps(ends, indent=1, sort_keys=True) + "\n").encode()


def _write(folder: StudyFolder, package: Package) -> Handover:
    path = folder.package(package.notes.name)
    write_package(path, package)
    return Handover(path, package.notes.name, package.digest, names.SITE_KEY in package.files)

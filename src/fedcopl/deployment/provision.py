"""`fedcopl provision`: a study's plan, `study.toml`, the operator's folder, its register of keys, and the packages.

| in the folder | |
|---|---|
| authority/ | the study's certificate authority and the server's certificate; `ca.key` stays here |
| register.json | the issued keys with their last days, and the revoked keys |
| sites/ | the public keys of the sites that may join |
| packages/ | one file to send to each site, and one for the server |
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ..config import RunConfig, Section, load, read_settings
from ..config_errors import describe_errors
from ..data.dataset import read_classes
from ..errors import ConfigError, FederationError, did_you_mean
from ..files import make_private_folder, publish_bytes, write_private
from ..methods import with_effective_rounds
from ..run.build import backbone_name, build_clip
from ..run.folder import file_name
from .addresses import check_site_name, with_port
from .keys import (
    check_addresses,
    folder_certificates,
    issue_certificates,
    new_site_key,
    public_key_line,
    read_site_key,
    renew_authority,
)
from .packages import SUFFIX, Package, PackageMetadata, read_package
from .terms import classes_digest, config_from, flat_settings

_REGISTER = "register.json"
_SERVER, _AUTHORITY = "server", "authority"  # values of --renew other than a site

EXAMPLE = """\
# A study of several sites: fedcopl provision study.toml makes one package for each.
name = "study"
address = ["server.example"]  # how sites reach the server: they connect to the first
port = 9092
classes = "classes.txt"       # one name per line; relative to this file
settings = "settings.toml"    # of the runs, for every site to approve; default settings if omitted
key_days = 365                # validity of a site's key

[sites]
hospital = "packed"           # its key is made here and is in its package: keep that secret
clinic = "own"                # it makes its own key and returns the public key, site.pub
"""


class _StudyPlan(Section):
    """The settings of `study.toml`."""

    name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[\w.-]+$")]
    address: Annotated[list[str], Field(min_length=1)]
    port: Annotated[int, Field(ge=1, le=65535)] = 9092
    classes: str = "classes.txt"
    settings: str = ""
    key_days: Annotated[int, Field(ge=1, le=3650)] = 365
    sites: Annotated[dict[str, Literal["packed", "own"]], Field(min_length=1)]


@dataclass(frozen=True)
class _PreparedStudy:
    """The content that all packages of a study have in common."""

    plan: _StudyPlan
    config: RunConfig
    classes: tuple[str, ...]
    model: str  # name and digest


def _read_plan(file: Path) -> _StudyPlan:
    """Read a plan; `ConfigError` names all errors in one line."""
    if not file.exists():
        raise ConfigError(f"{file}: there is no such study plan; fedcopl provision {file} --example writes one")
    try:
        plan = _StudyPlan.model_validate(read_settings(file))
    except ValidationError as error:
        reasons = describe_errors(
            map(dict, error.errors()),
            lambda name: f"a study has no such setting{did_you_mean(name, _StudyPlan.model_fields)}",
        )
        raise ConfigError(f"{file}: {'; '.join(f'{name}: {reason}' for name, reason in reasons.items())}") from error
    check_addresses(plan.address, f"{file}: address")
    for name in plan.sites:
        check_site_name(name, f"{file}: sites")
        if name == "server":
            raise ConfigError(f"{file}: sites: no site can be called 'server'; rename it")
    return plan


def prepare_study(file: Path) -> _PreparedStudy:
    """Read a study plan, the classes and settings that it names relative to its folder, and the model."""
    plan, folder = _read_plan(file), file.parent
    config = with_effective_rounds(load(folder / plan.settings) if plan.settings else RunConfig())
    classes = tuple(read_classes(folder / plan.classes).names)
    return _PreparedStudy(plan, config, classes, backbone_name(config.model.backbone, build_clip(config.model)))


class _IssuedKey(Section):
    """The key of a site that may join."""

    number: int = 1  # increases with each renewal
    digest: str = ""  # empty until the site sends its own key
    expires: date  # last day


class _RevokedKey(Section):
    """A key that is no longer accepted."""

    site: str
    digest: str
    day: date
    reason: Literal["revoked", "renewed"]


class _Register(Section):
    """All keys of a study."""

    keys: dict[str, _IssuedKey] = Field(default={}, validate_default=False)
    revoked: tuple[_RevokedKey, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> "_Register":
        file = folder / _REGISTER
        if not file.exists():
            return cls()
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValueError) as error:
            raise FederationError(f"{file}: is damaged; restore it from a backup: {error}") from error

    def write(self, folder: Path) -> None:
        write_private(folder / _REGISTER, (self.model_dump_json(indent=1) + "\n").encode())

    def issue(self, site: str, digest: str, today: date, days: int) -> "_Register":
        """Issue a key for a site: its first, or the next after a revoked one."""
        number = 1 + sum(old.site == site for old in self.revoked)
        issued = _IssuedKey(number=number, digest=digest, expires=today + timedelta(days=days))
        return self.model_copy(update={"keys": {**self.keys, site: issued}})

    def revoke(self, site: str, today: date, reason: Literal["revoked", "renewed"]) -> "_Register":
        """Revoke the site's key; the site has none until the next is issued."""
        if site not in self.keys:
            sites = ", ".join(sorted(self.keys)) or "none yet"
            raise FederationError(f"{site}: has no key to revoke; sites with a key: {sites}")
        keys = {name: key for name, key in self.keys.items() if name != site}
        revoked = _RevokedKey(site=site, digest=self.keys[site].digest, day=today, reason=reason)
        return _Register(keys=keys, revoked=(*self.revoked, revoked))

    def is_revoked(self, site: str) -> bool:
        """Return whether the site's key was revoked and no new key issued."""
        return site not in self.keys and any(old.site == site for old in self.revoked)


@dataclass(frozen=True)
class StudyFolder:
    """An operator's folder; each change of its keys makes all packages again."""

    path: Path
    study: _PreparedStudy
    today: date

    @property
    def _authority(self) -> Path:
        return self.path / "authority"

    def _public_key_file(self, site: str) -> Path:
        return self.path / "sites" / f"{file_name(site)}.pub"

    def package(self, name: str) -> Path:
        """Return the path of the package of a site or of the server."""
        return self.path / "packages" / f"{file_name(name)}{SUFFIX}"

    def provision(self) -> list[Package]:
        """Make all packages. Issued keys stay valid; new sites get a key, revoked sites get none."""
        make_private_folder(self.path)
        issue_certificates(self._authority, set(self.study.plan.address))
        register, new_keys = _Register.read(self.path), {}
        for site in self.study.plan.sites:
            if site not in register.keys and not register.is_revoked(site):
                register, new_keys[site] = self._issue(register, site)
        issued_digests = {issued.digest for issued in register.keys.values()}
        for file in (self.path / "sites").glob("*.pub"):
            if read_site_key(file).digest not in issued_digests:
                file.unlink()
        register.write(self.path)  # before the packages: a key that is not in it is not accepted
        packages = [
            self._site_package(site, key, new_keys.get(site) or self._key_in_last_package(site, key))
            for site, key in register.keys.items()
            if site in self.study.plan.sites
        ]
        return [*packages, self._server_package(register)]

    def revoke(self, site: str) -> list[Package]:
        """Revoke a site's key. It takes effect when the server installs its new package."""
        _Register.read(self.path).revoke(site, self.today, "revoked").write(self.path)
        self.package(site).unlink(missing_ok=True)
        return self.provision()

    def renew(self, name: str) -> list[Package]:
        """Renew the key of a site, also of a revoked one, or the certificate of the server or of the authority."""
        if name == _AUTHORITY:
            renew_authority(self._authority)
        elif name == _SERVER:
            folder_certificates(self._authority).certificate.unlink(missing_ok=True)
        elif name in self.study.plan.sites:
            register = _Register.read(self.path)
            if name in register.keys:
                register = register.revoke(name, self.today, "renewed")
            register, key = self._issue(register, name)
            register.write(self.path)
            self._site_package(name, register.keys[name], key)
        else:
            raise ConfigError(f"--renew: {name!r} is neither a site of the study nor '{_SERVER}' or '{_AUTHORITY}'")
        return self.provision()

    def admit(self, file: Path) -> list[Package]:
        """Admit the public key that a site made itself."""
        key, register = read_site_key(file), _Register.read(self.path)
        name, digest = key.name, key.digest
        if self.study.plan.sites.get(name) != "own":
            raise FederationError(f"{file}: is the key of {name!r}, but the study's plan has no site {name} = 'own'")
        for old in register.revoked:
            if old.digest == digest:
                raise FederationError(f"{name}: this key was {old.reason} on {old.day}; the site has to make a new key")
        issued = register.keys.get(name)
        if issued is not None and issued.digest not in ("", digest):
            raise FederationError(f"{name}: already has another key; first: --renew {name}, or --revoke {name}")
        if register.is_revoked(name):
            raise FederationError(f"{name}: was revoked; first: --renew {name}")
        publish_bytes(self._public_key_file(name), file.read_bytes())
        register.issue(name, digest, self.today, self.study.plan.key_days).write(self.path)
        return self.provision()

    def _issue(self, register: _Register, site: str) -> tuple[_Register, bytes]:
        """Register a new key for a site and return both; the key is empty if the site makes its own, admitted later."""
        key, digest = b"", ""
        if self.study.plan.sites[site] == "packed":
            key = new_site_key()
            publish_bytes(self._public_key_file(site), public_key_line(key, site))
            digest = read_site_key(self._public_key_file(site)).digest
        return register.issue(site, digest, self.today, self.study.plan.key_days), key

    def _key_in_last_package(self, site: str, issued: _IssuedKey) -> bytes:
        """Return the private key in a site's last package; empty if it has none, or if the key was renewed since."""
        if not self.package(site).exists():
            return b""
        package = read_package(self.package(site), "site")
        return package.files.get("site.key", b"") if package.metadata.key_number == issued.number else b""

    def _site_package(self, site: str, issued: _IssuedKey, key: bytes) -> Package:
        plan, config = self.study.plan, self.study.config
        settings = config_from(flat_settings(config), plan.name).to_toml()  # to approve: without the operator's paths
        files = {"settings.toml": settings.encode(), **({"site.key": key} if key else {})}
        key_facts = {"key": plan.sites[site], "key_number": issued.number, "key_expires": issued.expires}
        return self._write({"kind": "site", "name": site, **key_facts}, files)

    def _server_package(self, register: _Register) -> Package:
        certificates = folder_certificates(self._authority)
        keys = {site: key for site, key in register.keys.items() if key.digest and site in self.study.plan.sites}
        last_days = {key.digest: key.expires.isoformat() for key in keys.values()}
        files = {
            "settings.toml": self.study.config.to_toml().encode(),
            "server.pem": certificates.certificate.read_bytes(),
            "server.key": certificates.key.read_bytes(),
            "sites/expiry.json": (json.dumps(last_days, indent=1, sort_keys=True) + "\n").encode(),
            **{f"sites/{file_name(site)}.pub": self._public_key_file(site).read_bytes() for site in keys},
        }
        return self._write({"kind": "server", "name": _SERVER}, files)

    def _write(self, own: Mapping[str, object], files: Mapping[str, bytes]) -> Package:
        """Write a package with its own metadata and files, and those that all packages of the study have."""
        study, ca = self.study, folder_certificates(self._authority).ca.read_bytes()
        common = {
            "study": study.plan.name,
            "address": with_port(study.plan.address[0], study.plan.port),
            "version": version("fedcopl"),
            "model": study.model,
            "classes": classes_digest(study.classes),
            "settings": flat_settings(study.config),
        }
        metadata = PackageMetadata.model_validate({**common, **own})
        class_list = "\n".join(study.classes) + "\n"
        package = Package.of(metadata, {"ca.pem": ca, "classes.txt": class_list.encode(), **files})
        write_private(self.package(metadata.name), package.to_bytes())
        return package

"""Packages: one file with everything that a site, or the server, needs to take part in a study.

A package is a ZIP archive of a closed list of small files. It is read as untrusted: other names and large files are
refused. A package that contains a key is as secret as the key. It is installed into the folder of a site or a server,
for the first time or as an update; the states, the secret and the runs in that folder are kept.

Keys and certificates expire. A certificate contains its last day. The key of a site expires only if it was provisioned
for a study: its last day is in `expiry.json` in the server's folder of public keys, and in the site's `package.json`.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ..config import Section
from ..errors import FederationError
from ..files import make_private_folder, publish_bytes, write_private
from ..plurals import counted
from .keys import SiteKey, certificate_end, read_site_keys

SUFFIX = ".fedcopl"
_METADATA = "package.json"
_COMMON = {_METADATA, "ca.pem", "classes.txt", "settings.toml"}
_NEEDED = {"site": _COMMON, "server": _COMMON | {"server.pem", "server.key", "sites/expiry.json"}}
_PRIVATE = {"site.key", "server.key"}
_COMMANDS = {"site": "fedcopl join", "server": "fedcopl server"}  # that install a package
_MAX_FILE, _MAX_KEY = 4_000_000, 10_000  # bytes of a file, and of one site's public key
_MAX_FILES, _MAX_BYTES = 10_000, 20_000_000  # of a package, compressed or not
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # constant: equal contents give equal files
_SOON = 30  # days before the expiry of a key or certificate, from which on it is reported


class PackageMetadata(Section):
    """The content of `package.json`."""

    format: Literal[1] = 1
    kind: Literal["site", "server"]
    study: str
    name: str  # of the site, or "server"
    address: Annotated[str, Field(pattern=r"^.+:\d{1,5}$")]  # where sites reach the server, with its port
    version: str  # of the fedcopl that made it
    model: str  # name and digest
    classes: str  # number and digest
    settings: dict[str, str | int | float | bool]  # of the runs, those that differ from the defaults
    key: Literal["packed", "own"] = "packed"  # made by the operator, or by the site
    key_number: int = 1  # increases with each renewal
    key_expires: date | None = None  # last day of the site's key

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True)
class Package:
    """The files of a package by name, and its metadata."""

    metadata: PackageMetadata
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, metadata: PackageMetadata, files: Mapping[str, bytes]) -> "Package":
        return cls(metadata, {_METADATA: (metadata.model_dump_json(indent=1) + "\n").encode(), **files})

    def to_bytes(self) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(self.files):
                archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), self.files[name], zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    @property
    def digest(self) -> str:
        """Digest to compare over a second channel."""
        text = sha256(self.to_bytes()).hexdigest()[:24]
        return " ".join(text[start : start + 4] for start in range(0, 24, 4))

    @property
    def is_secret(self) -> bool:
        """Whether the package contains a private key."""
        return not _PRIVATE.isdisjoint(self.files)


def read_package(path: Path, kind: Literal["site", "server"]) -> Package:
    """Read a package of this kind; `FederationError` for anything else."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES:,} bytes")
        with zipfile.ZipFile(path) as archive:
            files = _read_files(archive)
        metadata = PackageMetadata.model_validate_json(files[_METADATA])
    except FileNotFoundError as error:
        raise FederationError(f"{path}: there is no such package") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise FederationError(
            f"{path}: is not a package of `fedcopl provision`, or an incomplete one: ask for it again"
        ) from error
    except (OSError, KeyError, ValueError, NotImplementedError, RuntimeError) as error:
        reason = "its package.json is invalid" if isinstance(error, ValidationError) else error
        raise FederationError(f"{path}: is not a package of `fedcopl provision`: {reason}") from error
    if metadata.kind != kind:
        raise FederationError(
            f"{path}: is the package of a {metadata.kind}, not of a {kind}; install it with {_COMMANDS[metadata.kind]}"
        )
    missing = _NEEDED[kind] - files.keys()
    if missing:
        raise FederationError(f"{path}: is incomplete: {sorted(missing)[0]} is missing")
    return Package(metadata, files)


def _read_files(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """Read all files, after their names and sizes are checked."""
    infos = archive.infolist()
    if len(infos) > _MAX_FILES or len({info.filename for info in infos}) < len(infos):
        raise ValueError(f"it has more than {_MAX_FILES:,} files, or a duplicate file")
    for info in infos:
        limit = _MAX_KEY if info.filename.endswith(".pub") else _MAX_FILE
        # With other methods than deflate, Python unpacks a complete block at once, of any size.
        if not _is_allowed(info.filename) or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename!r} does not belong in a package")
        if info.file_size > limit:
            raise ValueError(f"{info.filename!r} would unpack to {info.file_size:,} bytes, more than {limit:,}")
    total = sum(info.file_size for info in infos)
    if total > _MAX_BYTES:
        raise ValueError(f"it would unpack to {total:,} bytes, more than {_MAX_BYTES:,}")
    return {info.filename: archive.read(info) for info in infos}


def _is_allowed(name: str) -> bool:
    key_file = name.removeprefix("sites/")
    if name.startswith("sites/") and key_file.endswith(".pub"):
        return "/" not in key_file and "\\" not in key_file and not key_file.startswith(".")
    return name in _NEEDED["site"] | _NEEDED["server"] | {"site.key"}


def install(file: Path, folder: Path, kind: Literal["site", "server"]) -> Package:
    """Install a package into the folder of a site or a server, and return it.

    At a site with a new key number, the old key is deleted. At a server, exactly the sites in the package may join.
    """
    package, before = read_package(file, kind), installed_metadata(folder)
    metadata, key, sites = package.metadata, folder / "site.key", folder / "sites"
    if before and (before.kind, before.study, before.name) != (metadata.kind, metadata.study, metadata.name):
        raise FederationError(
            f"{folder}: is the folder of {before.name} in the study {before.study}, and the package is for "
            f"{metadata.name} in {metadata.study}; name another folder with --folder"
        )
    if kind == "site" and metadata.key == "packed" and "site.key" not in package.files and not key.exists():
        raise FederationError(
            f"{file}: has no key of {metadata.name}, and neither has {folder}: ask the operator to renew it "
            f"(fedcopl provision STUDY --renew {metadata.name})"
        )
    if kind == "server" and (folder / "ca.key").exists():
        raise FederationError(f"{folder}: has a certificate authority of its own; name another folder with --folder")
    make_private_folder(folder)
    if kind == "server":
        sites.mkdir(exist_ok=True)
    elif before and before.key_number != metadata.key_number:
        key.unlink(missing_ok=True)
    # Keys first and the metadata last, so that a folder with metadata is complete.
    for name in sorted(package.files, key=lambda name: (name == _METADATA, name not in _PRIVATE, name)):
        write = write_private if name in _PRIVATE else publish_bytes
        write(folder / name, package.files[name])
    for old in sites.glob("*.pub") if kind == "server" else ():
        if f"sites/{old.name}" not in package.files:
            old.unlink()
    return package


def installed_metadata(folder: Path) -> PackageMetadata | None:
    """Return the metadata of the provisioning package installed in a site's or server's folder; None without one."""
    file = folder / _METADATA
    if not file.exists():
        return None
    try:
        return PackageMetadata.model_validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise FederationError(f"{file}: is damaged; delete it and install the last package again") from error


@dataclass(frozen=True)
class _Expiry:
    """The last day of a key or certificate, and how to renew it."""

    subject: str
    day: date
    renewal: str
    site: str = ""  # at a server: the site of the key

    @property
    def days_left(self) -> int:
        return (self.day - today_utc()).days

    @property
    def is_near(self) -> bool:
        return self.days_left <= _SOON

    def __str__(self) -> str:
        left = self.days_left
        return f"expired after {self.day}" if left < 0 else f"valid until {self.day}, {counted(left, 'day')}"


def today_utc() -> date:
    """Return the date in UTC: keys expire at midnight UTC."""
    return datetime.now(UTC).date()


def expiries(folder: Path) -> Iterator[_Expiry]:
    """Yield the expiry of every key and certificate in the folder of a server or a site."""
    metadata = installed_metadata(folder)
    is_site = metadata.kind == "site" if metadata else not (folder / "server.pem").exists()
    ask = "ask the operator for a new package"
    authority_renewal = ask if is_site else "fedcopl provision STUDY --renew authority, and new packages to all sites"
    if (folder / "ca.pem").exists():
        yield _Expiry("authority", certificate_end(folder / "ca.pem").date(), authority_renewal)
    if (folder / "server.pem").exists():
        renewal = "fedcopl provision STUDY --renew server" if metadata else "restart the server: that renews it"
        yield _Expiry("server's certificate", certificate_end(folder / "server.pem").date(), renewal)
    if metadata and metadata.key_expires:
        yield _Expiry("key of this site", metadata.key_expires, ask)
    for name, day in _key_expiries(folder / "sites").items():
        yield _Expiry(f"key of {name}", day, f"fedcopl provision STUDY --renew {name}", name)


def _key_expiries(sites: Path) -> dict[str, date]:
    """Return site name -> last day, for the keys that expire."""
    file = sites / "expiry.json"
    if not file.exists():
        return {}
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        days = {str(digest): date.fromisoformat(day) for digest, day in stored.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise FederationError(f"{file}: cannot be read: {error}") from error
    return {key.name: days[key.digest] for key in read_site_keys(sites).values() if key.digest in days}


def admitted_keys(sites: Path, today: date) -> dict[str, SiteKey]:
    """Return site name -> key for the sites that may join on this day: the keys in the folder that have not expired."""
    last_day = _key_expiries(sites)
    return {name: key for name, key in read_site_keys(sites).items() if last_day.get(name, today) >= today}

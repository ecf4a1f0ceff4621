"""Packages: one file with everything that a site, or the server, needs to take part in a study.

A package is a ZIP archive of a closed list of small files. It is read as untrusted: no other names, no large files. A
package that contains a key is as secret as the key. It is installed into the folder of a site or a server, for the
first time or as an update; the states, the secret and the runs in that folder are kept.
"""

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ...config import Section
from ...errors import FederationError
from ...files import make_private_folder, publish_bytes, write_private

SUFFIX = ".fedcopl"
_NOTES, AUTHORITY, CLASSES, SETTINGS = "package.json", "ca.pem", "classes.txt", "settings.toml"
SITE_KEY, CERTIFICATE, SERVER_KEY = "site.key", "server.pem", "server.key"
SITES, _PUBLIC, ENDS = "sites/", ".pub", "sites/ends.json"
_NEEDED = {
    "site": {_NOTES, AUTHORITY, CLASSES, SETTINGS},
    "server": {_NOTES, AUTHORITY, CLASSES, SETTINGS, CERTIFICATE, SERVER_KEY, ENDS},
}
_COMMANDS = {"site": "fedcopl join", "server": "fedcopl server"}  # that install them
_MAX_FILE, _MAX_KEY = 4_000_000, 10_000  # bytes of a file, and of one site's public key
_MAX_FILES, _MAX_BYTES = 10_000, 20_000_000  # of a package, compressed or not
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # constant: the same content gives the same file
_PRIVATE = {SITE_KEY, SERVER_KEY}


class PackageNotes(Section):
    """The content of `package.json`."""

    format: Literal[1] = 1
    kind: Literal["site", "server"]
    study: str
    name: str  # of the site; of the server: server
    address: Annotated[str, Field(pattern=r"^.+:\d{1,5}$")]  # where sites reach the server, with its port
    version: str  # of the fedcopl that made it
    model: str  # name and digest
    classes: str  # how many, and their digest
    settings: dict[str, str | int | float | bool]  # of the runs, as far as they differ from the defaults
    key: Literal["packed", "own"] = "packed"  # made by the operator, or by the site
    key_number: int = 1  # increases with each renewal
    key_ends: date | None = None  # the last day of the site's key

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True)
class Package:
    """The files of a package by name, and its notes."""

    notes: PackageNotes
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, notes: PackageNotes, files: Mapping[str, bytes]) -> "Package":
        return cls(notes, {_NOTES: (notes.model_dump_json(indent=1) + "\n").encode(), **files})

    def to_bytes(self) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(self.files):
                archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), self.files[name], zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    @property
    def digest(self) -> str:
        """Digest to compare over a second channel."""
        whole = sha256(self.to_bytes()).hexdigest()[:24]
        return " ".join(whole[start : start + 4] for start in range(0, 24, 4))


def read_package(path: Path, kind: Literal["site", "server"]) -> Package:
    """Read a package of this kind; `FederationError` for anything else."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES:,} bytes")
        with zipfile.ZipFile(path) as archive:
            files = _files(archive.infolist(), archive)
        notes = PackageNotes.model_validate_json(files[_NOTES])
    except FileNotFoundError as error:
        raise FederationError(f"{path}: there is no such package") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise FederationError(
            f"{path}: is not a package of `fedcopl provision`, or an incomplete one: ask for it again"
        ) from error
    except (OSError, KeyError, ValueError, NotImplementedError, RuntimeError) as error:
        reason = "its package.json is invalid" if isinstance(error, ValidationError) else error
        raise FederationError(f"{path}: is not a package of `fedcopl provision`: {reason}") from error
    if notes.kind != kind:
        raise FederationError(
            f"{path}: is the package of a {notes.kind}, not of a {kind}; install it with {_COMMANDS[notes.kind]}"
        )
    missing = _NEEDED[kind] - files.keys()
    if missing:
        raise FederationError(f"{path}: is incomplete: {sorted(missing)[0]} is missing")
    return Package(notes, files)


def _files(infos: Sequence[zipfile.ZipInfo], archive: zipfile.ZipFile) -> dict[str, bytes]:
    """Return all files, after their names and sizes are checked."""
    if len(infos) > _MAX_FILES or len({info.filename for info in infos}) < len(infos):
        raise ValueError(f"it has more than {_MAX_FILES:,} files, or a duplicate file")
    for info in infos:
        limit = _MAX_KEY if info.filename.endswith(_PUBLIC) else _MAX_FILE
        # With other methods than deflate, Python unpacks a whole block first, however large.
        if not _is_known(info.filename) or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename!r} does not belong in a package")
        if info.file_size > limit:
            raise ValueError(f"{info.filename!r} would unpack to {info.file_size:,} bytes, more than {limit:,}")
    total = sum(info.file_size for info in infos)
    if total > _MAX_BYTES:
        raise ValueError(f"it would unpack to {total:,} bytes, more than {_MAX_BYTES:,}")
    return {info.filename: archive.read(info) for info in infos}


def _is_known(name: str) -> bool:
    public = name.removeprefix(SITES)
    if name.startswith(SITES) and public.endswith(_PUBLIC):
        return "/" not in public and "\\" not in public and not public.startswith(".")
    return name in _NEEDED["site"] | _NEEDED["server"] | {SITE_KEY}


def install_site_package(file: Path, folder: Path) -> Package:
    """Install the package of a site. If it has a new key number, the old key is deleted."""
    package = read_package(file, "site")
    before = _previous_notes(package, folder)
    key, notes = folder / SITE_KEY, package.notes
    if notes.key == "packed" and SITE_KEY not in package.files and not key.exists():
        raise FederationError(
            f"{file}: has no key of {notes.name}, and neither has {folder}: ask the operator to renew it "
            f"(fedcopl provision STUDY --renew {notes.name})"
        )
    make_private_folder(folder)
    if before and before.key_number != notes.key_number:
        key.unlink(missing_ok=True)
    _write_files(package, folder)
    return package


def install_server_package(file: Path, folder: Path) -> Package:
    """Install the package of the server: exactly the sites in it may join."""
    package = read_package(file, "server")
    _previous_notes(package, folder)
    if (folder / "ca.key").exists():
        raise FederationError(f"{folder}: has a certificate authority of its own; name another with --folder")
    make_private_folder(folder)
    (folder / SITES).mkdir(exist_ok=True)
    _write_files(package, folder)
    for old in (folder / SITES).glob(f"*{_PUBLIC}"):
        if f"{SITES}{old.name}" not in package.files:
            old.unlink()
    return package


def _previous_notes(package: Package, folder: Path) -> PackageNotes | None:
    """Return the notes of the folder's last package; an error if that was for another site or study."""
    before, notes = folder_notes(folder), package.notes
    if before and (before.kind, before.study, before.name) != (notes.kind, notes.study, notes.name):
        raise FederationError(
            f"{folder}: is the folder of {before.name} in the study {before.study}, and the package is for "
            f"{notes.name} in {notes.study}; name another with --folder"
        )
    return before


def _write_files(package: Package, folder: Path) -> None:
    """Write keys first and the notes last, so that a folder with notes is complete."""
    order = sorted(package.files, key=lambda name: (name == _NOTES, name not in _PRIVATE, name))
    for name in order:
        write = write_private if name in _PRIVATE else publish_bytes
        write(folder / name, package.files[name])


def folder_notes(folder: Path) -> PackageNotes | None:
    """Return the notes of the package installed in this folder; None if there is none."""
    file = folder / _NOTES
    if not file.exists():
        return None
    try:
        return PackageNotes.model_validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise FederationError(f"{file}: is damaged; install the package again: fedcopl join PACKAGE ...") from error

"""A package: one file with all that a site, or the server, has to know of a study before it can take part.

A ZIP archive of a closed list of small files. It is read as something that came by mail: no other names, no large
files, nothing that is not what it should be. A package with a key in it is as secret as the key.
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ...config import Section
from ...errors import FederationError
from ...files import write_private

SUFFIX = ".fedcopl"
NOTES, AUTHORITY, CLASSES, SETTINGS = "package.json", "ca.pem", "classes.txt", "settings.toml"
SITE_KEY, CERTIFICATE, SERVER_KEY = "site.key", "server.pem", "server.key"
SITES, PUBLIC, ENDS = "sites/", ".pub", "sites/ends.json"
NEEDED = {
    "site": {NOTES, AUTHORITY, CLASSES, SETTINGS},
    "server": {NOTES, AUTHORITY, CLASSES, SETTINGS, CERTIFICATE, SERVER_KEY, ENDS},
}
COMMANDS = {"site": "fedcopl join", "server": "fedcopl server"}  # by which they are taken in
LARGEST, LARGEST_KEY = 4_000_000, 10_000  # bytes of a file, and of one site's public key
MOST_FILES, MOST_BYTES = 10_000, 20_000_000  # of a package, packed or not
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same content is the same file


class PackageNotes(Section):
    """What a package says of itself, `package.json`."""

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
    key_number: int = 1  # the next one is another key
    key_ends: str = ""  # the last day of the site's key

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True)
class Package:
    """Files by name, and what they are for."""

    notes: PackageNotes
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, notes: PackageNotes, files: Mapping[str, bytes]) -> "Package":
        return cls(notes, {NOTES: (notes.model_dump_json(indent=1) + "\n").encode(), **files})

    def to_bytes(self) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(self.files):
                archive.writestr(zipfile.ZipInfo(name, LONG_AGO), self.files[name], zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    @property
    def digest(self) -> str:
        """To be compared over another channel than the package came by."""
        whole = sha256(self.to_bytes()).hexdigest()[:24]
        return " ".join(whole[start : start + 4] for start in range(0, 24, 4))


def is_package(path: Path) -> bool:
    """Whether this is meant to be a package."""
    return path.suffix == SUFFIX


def write_package(path: Path, package: Package) -> None:
    write_private(path, package.to_bytes())


def read_package(path: Path, kind: Literal["site", "server"]) -> Package:
    """A package of this kind; anything else is an error that names the file."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES:,} bytes")
        with zipfile.ZipFile(path) as archive:
            files = _files(archive.infolist(), archive)
        notes = PackageNotes.model_validate_json(files[NOTES])
    except FileNotFoundError as error:
        raise FederationError(f"{path}: there is no such package") from error
    except zipfile.BadZipFile as error:
        raise FederationError(
            f"{path}: is not a package of `fedcopl provision`, or only a part of one has arrived: let it be sent again"
        ) from error
    except (OSError, KeyError, ValueError, NotImplementedError, RuntimeError) as error:
        why = "its package.json is not right" if isinstance(error, ValidationError) else error
        raise FederationError(f"{path}: is not a package of `fedcopl provision`: {why}") from error
    if notes.kind != kind:
        raise FederationError(
            f"{path}: is the package of a {notes.kind}, and a {kind} is asked for ({COMMANDS[notes.kind]} takes it)"
        )
    missing = NEEDED[kind] - files.keys()
    if missing:
        raise FederationError(f"{path}: is not whole: {sorted(missing)[0]} is missing")
    return Package(notes, files)


def _files(infos: Sequence[zipfile.ZipInfo], archive: zipfile.ZipFile) -> dict[str, bytes]:
    """All files; looked at before one is unpacked, which takes no more memory than each says it needs."""
    if len(infos) > MOST_FILES or len({info.filename for info in infos}) < len(infos):
        raise ValueError(f"it has more than {MOST_FILES:,} files, or one twice")
    for info in infos:
        most = LARGEST_KEY if info.filename.endswith(PUBLIC) else LARGEST
        # Of other kinds than deflate Python unpacks a whole block first, however large.
        if not _is_known(info.filename) or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename!r} does not belong in it")
        if info.file_size > most:
            raise ValueError(f"{info.filename!r} would unpack to {info.file_size:,} bytes, more than {most:,}")
    total = sum(info.file_size for info in infos)
    if total > MOST_BYTES:
        raise ValueError(f"it would unpack to {total:,} bytes, more than {MOST_BYTES:,}")
    return {info.filename: archive.read(info) for info in infos}


def _is_known(name: str) -> bool:
    public = name.removeprefix(SITES)
    if name.startswith(SITES) and public.endswith(PUBLIC):
        return "/" not in public and "\\" not in public and not public.startswith(".")
    return name in NEEDED["site"] | NEEDED["server"] | {SITE_KEY}

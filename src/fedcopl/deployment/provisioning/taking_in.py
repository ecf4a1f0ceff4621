"""Taking a package into the folder of a site or a server, for the first time or in place of an older one.

What the site or the server has made itself stays: its states, its secret, its runs.
"""

from pathlib import Path

from ...errors import FederationError
from ...files import make_private_folder, publish_bytes, write_private
from . import package_file as names
from .endings import folder_notes
from .package_file import Package, read_package

PRIVATE = {names.SITE_KEY, names.SERVER_KEY}


def take_in_site(file: Path, folder: Path) -> Package:
    """The package of a site. Another number of its key means that the old one is good for nothing any more."""
    package = read_package(file, "site")
    before = _the_same(package, folder)
    key, notes = folder / names.SITE_KEY, package.notes
    if notes.key == "packed" and names.SITE_KEY not in package.files and not key.exists():
        raise FederationError(
            f"{file}: has no key of {notes.name} in it, and {folder} has none: ask the operator to renew it "
            f"(fedcopl provision STUDY --renew {notes.name})"
        )
    make_private_folder(folder)
    if before and before.key_number != notes.key_number:
        key.unlink(missing_ok=True)
    _write_files(package, folder)
    return package


def take_in_server(file: Path, folder: Path) -> Package:
    """The package of the server: who may join is exactly who is in it."""
    package = read_package(file, "server")
    _the_same(package, folder)
    if (folder / "ca.key").exists():
        raise FederationError(f"{folder}: has a certificate authority of its own; name another with --folder")
    make_private_folder(folder)
    (folder / names.SITES).mkdir(exist_ok=True)
    _write_files(package, folder)
    for old in (folder / names.SITES).glob(f"*{names.PUBLIC}"):
        if f"{names.SITES}{old.name}" not in package.files:
            old.unlink()
    return package


def _the_same(package: Package, folder: Path) -> names.PackageNotes | None:
    """Refuse a folder of somebody else; what its last package said."""
    before, notes = folder_notes(folder), package.notes
    if before and (before.kind, before.study, before.name) != (notes.kind, notes.study, notes.name):
        raise FederationError(
            f"{folder}: is the folder of {before.name} in the study {before.study}, and the package is for "
            f"{notes.name} in {notes.study}; name another with --folder"
        )
    return before


def _write_files(package: Package, folder: Path) -> None:
    """Keys first, the notes last: whoever finds notes finds the rest."""
    order = sorted(package.files, key=lambda name: (name == names.NOTES, name not in PRIVATE, name))
    for name in order:
        write = write_private if name in PRIVATE else publish_bytes
        write(folder / name, package.files[name])

"""What `fedcopl join` and `fedcopl server` take from a package, instead of options."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

if TYPE_CHECKING:
    from ..deployment.provisioning.packages import Package, PackageNotes


class PackageFacts(NamedTuple):
    """What a package says that would be options otherwise."""

    server: str
    ca: Path
    classes: Path
    name: str


def package_facts(given: list[str], folder: Path) -> PackageFacts | None:
    """Of the package that is named first, which is taken in and out of the list; else of the one taken in before."""
    from ..deployment.provisioning.packages import folder_notes, install_site_package

    if given and "=" not in given[0]:
        _tell(package := install_site_package(Path(given.pop(0)), folder))
        notes: PackageNotes | None = package.notes
    else:
        notes = folder_notes(folder)
    _warn(folder)
    if notes is None or notes.kind != "site":
        return None
    return PackageFacts(notes.address, folder / "ca.pem", folder / "classes.txt", notes.name)


def no_package_in(folder: Path) -> str:
    """What is missing where a site should know its server from a package, and what can be done about it."""
    why = "no package was taken in there" if folder.is_dir() else "there is no such folder"
    return f"{folder}: {why}; name the site's own with --folder, or its package, or --server, --ca and --classes"


def server_package(given: list[str], folder: Path) -> "PackageNotes | None":
    """The same for a server."""
    from ..deployment.provisioning.packages import folder_notes, install_server_package, is_package

    if given and "=" not in given[0] and is_package(Path(given[0])):
        _tell(install_server_package(Path(given.pop(0)), folder))
    _warn(folder)
    return folder_notes(folder)


def _tell(package: "Package") -> None:
    notes = package.notes
    typer.echo(
        f"package                {notes.study}: {notes.name}, {notes.address}; digest {package.digest}", err=True
    )


def _warn(folder: Path) -> None:
    """Of what ends soon, at each start."""
    from ..deployment.provisioning.expiry import expiries, today_utc

    for ending in expiries(folder) if folder.is_dir() else ():
        if ending.is_near(today_utc()):
            typer.echo(f"note: {ending.what}: {ending.text(today_utc())}; {ending.renewal}", err=True)

"""`fedcopl provision`, `admit` and `service`: packages and service files of sites and server."""

import shlex
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from ..errors import ConfigError, FederationError
from ..files import check_output_folder
from .show import print_next

if TYPE_CHECKING:
    from ..deployment.packages import PackageMetadata

SERVER_FOLDER = Path("federation")
MetricsPort = Annotated[int, Option(min=0, max=65535, help="Local port that serves /health and /metrics (0: none).")]


def provision(
    study: Annotated[Path, Argument(metavar="STUDY.toml", help="Plan of the study; --example writes an example.")],
    out: Annotated[Path, Option("--out", "-o", help="Folder of the study's keys and packages; keep it.")] = Path(
        "provisioned"
    ),
    revoke: Annotated[str, Option(metavar="SITE", help="Revoke the key of a site: it can no longer join.")] = "",
    renew: Annotated[
        str,
        Option(
            metavar="SITE|server|authority",
            help="Renew the key of a site, or the certificate of the server or of the authority.",
        ),
    ] = "",
    admit: Annotated[
        Path | None, Option(metavar="SITE.pub", help="Admit the public key that a site made itself.")
    ] = None,
    example: Annotated[bool, Option("--example", help="Write a commented STUDY.toml and exit.")] = False,
) -> None:
    """Make a package for each site of a study and for the server: each is a single file to send."""
    if sum(map(bool, (revoke, renew, admit, example))) > 1:
        raise ConfigError("--revoke, --renew, --admit, --example: use only one of them")
    from ..deployment import provision as provisioning
    from ..deployment.packages import today_utc
    from ..files import publish_text

    if example:
        if study.exists():
            raise ConfigError(f"{study}: already exists; choose another name")
        publish_text(study, provisioning.EXAMPLE)
        print(study)
        print_next(f"edit this file, then: {shlex.join(['fedcopl', 'provision', str(study)])}")
        return
    check_output_folder(out)
    folder = provisioning.StudyFolder(out, provisioning.prepare_study(study), today_utc())
    if revoke:
        packages = folder.revoke(revoke)
    elif renew:
        packages = folder.renew(renew)
    elif admit:
        packages = folder.admit(admit)
    else:
        packages = folder.provision()
    for package in packages:
        secret = ", contains a key: keep it secret" if package.is_secret else ""
        name = package.metadata.name
        typer.echo(f"{name:<16}{folder.package(name)}   {package.digest}{secret}")
    typer.echo("\nSend each file to its recipient only, and compare the digests over another channel.")
    print_next(
        "on the server: fedcopl server server.fedcopl  # fedcopl admit server.fedcopl if it is running",
        "at each site: fedcopl join SITE.fedcopl --images FOLDER",
    )


def admit(
    package: Annotated[Path, Argument(metavar="PACKAGE", help="The server's new package.")],
    folder: Annotated[Path, Option(help="Folder of the server.")] = SERVER_FOLDER,
) -> None:
    """Install a new package on a server, also while it runs: from then on exactly the sites in the package may join."""
    from ..deployment.keys import read_site_keys
    from ..deployment.packages import install

    before = set(read_site_keys(folder / "sites"))
    installed = install(package, folder, "server")
    now = set(read_site_keys(folder / "sites"))
    typer.echo(f"{installed.metadata.study}: sites that may join: {', '.join(sorted(now)) or 'none'}")
    if before - now:
        typer.echo(f"revoked: {', '.join(sorted(before - now))}")
    typer.echo("New settings and a new certificate are used from the next start of the server.")
    print_next(("fedcopl", "server", "--folder", folder), ("fedcopl", "status", "--folder", folder))


def install_package(arguments: list[str], folder: Path, kind: Literal["site", "server"]) -> "PackageMetadata | None":
    """Install the package in the first argument, if any, and warn of keys and certificates that expire soon.

    Args:
        arguments: The command's arguments; a package is removed from the list.
        folder: The folder of the site or server.
        kind: The kind of the folder.

    Returns:
        The metadata of the package that is installed in the folder; None if there is none.
    """
    from ..deployment import packages

    # The first argument of a server may also be a settings file.
    if arguments and "=" not in arguments[0] and (kind == "site" or arguments[0].endswith(packages.SUFFIX)):
        package = packages.install(Path(arguments.pop(0)), folder, kind)
        new = package.metadata
        typer.echo(f"{'package':<23}{new.study}: {new.name}, {new.address}; digest {package.digest}", err=True)
    for expiry in packages.expiries(folder) if folder.is_dir() else ():
        if expiry.is_near:
            typer.echo(f"note: {expiry.subject}: {expiry}; {expiry.renewal}", err=True)
    metadata = packages.installed_metadata(folder)
    if metadata is not None and metadata.kind != kind:
        raise FederationError(f"{folder}: belongs to a {metadata.kind}, not to a {kind}; name another with --folder")
    return metadata


def service(
    role: Annotated[Literal["site", "server"], Argument(help="Role of the service.")],
    arguments: Annotated[
        list[str] | None, Argument(metavar="[key=value ...]", help="Additional settings and options.")
    ] = None,
    home: Annotated[Path, Option(help="Folder of the service, the only folder with write access.")] = Path(
        "/var/lib/fedcopl"
    ),
    images: Annotated[Path | None, Option(help="Images of a site, with read access.")] = None,
    user: Annotated[str, Option(help="User account that runs the service.")] = "fedcopl",
    out: Annotated[Path, Option("--out", "-o", help="Folder for the two files.")] = Path(),
) -> None:
    """Write a systemd unit and a Containerfile for a site or a server; nothing is installed or started."""
    from ..deployment.processes import Service
    from ..files import publish_text

    definition = Service(role, home.absolute(), images.absolute() if images else None, user, tuple(arguments or ()))
    unit, container = out / f"fedcopl-{role}.service", out / f"Containerfile.{role}"
    publish_text(unit, definition.systemd_unit())
    publish_text(container, definition.containerfile(version("fedcopl")))
    folder = definition.home / ("federation" if role == "server" else "site")
    install = "fedcopl admit PACKAGE"
    if role == "site":
        install = f"fedcopl join PACKAGE --images {definition.images} --check"
    typer.echo(f"{unit}\n{container}\n")
    typer.echo("Once, as root; the second line installs the operator's package:")
    typer.echo(f"  useradd --system --home-dir {definition.home} {user}; install -d -m 700 -o {user} {definition.home}")
    typer.echo(f"  cd {definition.home} && runuser -u {user} -- {install} --folder {folder}")
    typer.echo(f"  install -m 644 {unit.name} /etc/systemd/system/ && systemctl enable --now {unit.stem}")
    print_next(f"fedcopl status --folder {folder}", f"journalctl -u {unit.stem}", f"systemctl stop {unit.stem}")

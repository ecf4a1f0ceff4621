"""`fedcopl service`: files with which a machine runs a site or a server by itself."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import typer


def service(
    role: Annotated[Literal["site", "server"], typer.Argument(help="What is to run: a site, or the server.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value ...]", help="Settings of its own.", show_default=False),
    ] = None,
    home: Annotated[Path, typer.Option(help="The one folder it may write in.")] = Path("/var/lib/fedcopl"),
    images: Annotated[
        Path | None, typer.Option(help="A site's images, which it only reads.", show_default=False)
    ] = None,
    user: Annotated[str, typer.Option(help="Who runs it; an account of its own.")] = "fedcopl",
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the files.")] = Path(),
) -> None:
    """Write a systemd unit and a Containerfile for a site or a server; nothing is installed or started."""
    from ..deployment.service_files import Service
    from ..files import publish_text

    wanted = Service(role, home.absolute(), images.absolute() if images else None, user, tuple(words or ()))
    unit, container = out / f"fedcopl-{role}.service", out / f"Containerfile.{role}"
    publish_text(unit, wanted.unit())
    publish_text(container, wanted.containerfile(version("fedcopl")))
    folder = wanted.home / ("federation" if role == "server" else "site")
    first = "fedcopl admit PACKAGE" if role == "server" else f"fedcopl join PACKAGE --images {wanted.images} --check"
    typer.echo(f"{unit}\n{container}\n")
    typer.echo("Once, as root; the second line takes the operator's package in:")
    typer.echo(f"  useradd --system --home-dir {wanted.home} {user}; install -d -m 700 -o {user} {wanted.home}")
    typer.echo(f"  cd {wanted.home} && runuser -u {user} -- {first} --folder {folder}")
    typer.echo(f"  install -m 644 {unit.name} /etc/systemd/system/ && systemctl enable --now {unit.stem}")
    typer.echo(f"Then: systemctl stop|restart {unit.stem}, journalctl -u {unit.stem}, fedcopl status --folder {folder}")

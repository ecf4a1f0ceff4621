"""`fedcopl provision` and `fedcopl admit`: packages for the sites and the server of a study."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from ..files import check_output_folder

if TYPE_CHECKING:
    from ..deployment.provisioning.provision import Handover, PreparedStudy, StudyFolder

PROVISIONED = Path("provisioned")


def provision(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study; see docs/living-study.md.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The operator's folder of the study; keep it.")
    ] = PROVISIONED,
    revoke: Annotated[
        str, typer.Option(metavar="SITE", help="Take a site's key back: it cannot join any more.", show_default=False)
    ] = "",
    renew: Annotated[
        str,
        typer.Option(
            metavar="SITE|server|authority", help="Another key for a site, or a certificate anew.", show_default=False
        ),
    ] = "",
    admit: Annotated[
        Path | None,
        typer.Option(metavar="SITE.pub", help="Take in the key that a site made itself.", show_default=False),
    ] = None,
    example: Annotated[bool, typer.Option("--example", help="Write a commented STUDY.toml and leave.")] = False,
) -> None:
    """Make one package for each site of a study and one for the server, each a single file to hand over."""
    if sum(map(bool, (revoke, renew, admit, example))) > 1:
        raise ConfigError("--revoke, --renew, --admit, --example: one at a time")
    if example:
        _write_example(study)
        return
    check_output_folder(out)
    from ..deployment.provisioning.provision import StudyFolder, prepare_study

    made = _do(prepare_study(study), StudyFolder(out), revoke, renew, admit)
    _tell(made)


def _write_example(file: Path) -> None:
    from ..deployment.provisioning.provision import EXAMPLE
    from ..files import publish_text

    if file.exists():
        raise ConfigError(f"{file}: is there already")
    publish_text(file, EXAMPLE)
    print(file)


def _do(
    study: "PreparedStudy", folder: "StudyFolder", revoked: str, renewed: str, admitted: Path | None
) -> list["Handover"]:
    from ..deployment.provisioning.expiry import today_utc
    from ..deployment.provisioning.provision import admit_key, provision, renew, revoke

    today = today_utc()
    if revoked:
        return revoke(study, folder, revoked, today)
    if renewed:
        return renew(study, folder, renewed, today)
    return admit_key(study, folder, admitted, today) if admitted else provision(study, folder, today)


def _tell(made: list["Handover"]) -> None:
    for one in made:
        secret = ", holds a key: keep it secret on its way" if one.has_key or one.name == "server" else ""
        typer.echo(f"{one.name:<16}{one.path}   {one.digest}{secret}")
    typer.echo("\nEach is for its owner alone; let him compare the digest over another channel. Then:")
    typer.echo("  fedcopl server server.fedcopl                 on the server; fedcopl admit for one that runs")
    typer.echo("  fedcopl join SITE.fedcopl --images FOLDER     at a site")


def admit(
    package: Annotated[Path, typer.Argument(metavar="PACKAGE", help="The server's new package.")],
    folder: Annotated[Path, typer.Option(help="The folder of the server.")] = Path("federation"),
) -> None:
    """Take a package into a server's folder, also while it runs: who is new may join, who is gone may not."""
    from ..deployment.provisioning.packages import install_server_package
    from ..deployment.site_keys import read_site_keys

    before = set(read_site_keys(folder / "sites"))
    taken = install_server_package(package, folder)
    now = set(read_site_keys(folder / "sites"))
    typer.echo(f"{taken.notes.study}: {', '.join(sorted(now)) or 'nobody'} may join")
    if before - now:
        typer.echo(f"not any more: {', '.join(sorted(before - now))}")
    typer.echo("settings and a certificate that changed are for the server's next start")

"""`fedcopl join`: one site of a real federation."""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import override
from ..errors import ConfigError, Interrupted
from ..progress import watch
from ..run.watcher import Watcher
from .run import flower

if TYPE_CHECKING:
    from ..deployment.site.running_site import RunningSite, SiteHome

LONGEST_NAME = 60


def join(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[model.key=value ...]",
            help="What is this site's own business: model.backbone, device, threads, memory, activation.",
            show_default=False,
        ),
    ] = None,
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server listens.")] = "",
    images: Annotated[Path | None, typer.Option(help="Folder of images, or a table that lists them.")] = None,
    classes: Annotated[Path | None, typer.Option(help="Class names, one a line: the server's file.")] = None,
    ca: Annotated[Path, typer.Option(help="The server's certificate: its file ca.pem.")] = Path("ca.pem"),
    name: Annotated[str, typer.Option(help="What this site is called; without it the machine's name.")] = "",
    folder: Annotated[Path, typer.Option(help="This site's keys, states and models.")] = Path("site"),
    corrections: Annotated[
        Path | None, typer.Option(help="An expert's answers of `fedcopl review`, to be trained on.")
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(help="Prompts that may leave, one each; 'visual' alone without it.", show_default=False),
    ] = None,
    least_sites: Annotated[
        int, typer.Option(min=0, help="Answer only in secure sums, of at least so many sites; 0: also openly.")
    ] = 0,
    least_noise: Annotated[float, typer.Option(min=0, help="Answer only with at least this privacy.noise.")] = 0.0,
    check: Annotated[
        bool, typer.Option("--check", "--dry-run", help="Check everything, make the key, and connect to nobody.")
    ] = False,
) -> None:
    """Take part in a federation with the images of this machine."""
    if images is None or classes is None:
        raise ConfigError("--images and --classes: name the images of this site and the server's list of classes")
    if not server and not check:
        raise ConfigError("--server: say where the server listens, as in --server server.example:9092")
    called, own = _site_name(name), _own_settings(list(settings or []))
    with flower():
        from ..deployment.site.consent import USUAL, Consent
        from ..deployment.site.running_site import SiteHome
    consent = Consent(tuple(share or USUAL), least_sites, least_noise)
    home = SiteHome(called, images, str(classes), folder, own, str(corrections or ""), consent)
    with watch(0) as watcher:
        site = _ready(home, watcher)
        _tell(site, server)
        if not check:
            _serve(site, server, ca, watcher)


def _site_name(given: str) -> str:
    name = given or socket.gethostname()
    if not name.isprintable() or name != name.strip() or not 0 < len(name) <= LONGEST_NAME:
        raise ConfigError(f"--name: {name!r} must be 1 to {LONGEST_NAME} printable characters")
    return name


def _own_settings(pairs: list[str]) -> dict[str, Any]:
    settings = override({}, pairs)
    foreign = sorted(set(settings) - {"model"})
    if foreign:
        raise ConfigError(f"{foreign[0]}: is the server's to say; a site sets only what concerns its own model")
    return dict(settings.get("model", {}))


def _ready(home: "SiteHome", watcher: Watcher) -> "RunningSite":
    from ..deployment.certificates import site_key
    from ..deployment.site.running_site import RunningSite

    site = RunningSite(home, watcher)
    site_key(home.folder, home.name)
    return site


def _tell(site: "RunningSite", server: str) -> None:
    """What was found, and what will and what will never leave this machine."""
    from ..deployment.site.consent import NEVER, what_leaves

    dataset = site.prepared.dataset
    for title, value in (
        ("site", site.name),
        ("images", f"{len(dataset.train):,}, {len(dataset.skipped)} left out"),
        ("test images", f"{len(dataset.test):,} with labels" if site.has_exam else "none: accuracy stays unknown"),
        ("said by an expert", f"{len(site.corrections.index)} images" if len(site.corrections.index) else "nothing"),
        ("classes", site.classes),
        ("model", site.model),
        ("key for the server", str(site.home.folder / "site.pub")),
    ):
        typer.echo(f"{title:<22}{value}")
    typer.echo(f"\nWhat leaves this machine, for {server or 'the server'} alone:")
    for line in what_leaves():
        typer.echo(f"  - {line}")
    typer.echo(f"What never leaves it: {NEVER}.")
    typer.echo(f"Conditions of this site: {site.home.consent}.\n")


def _serve(site: "RunningSite", server: str, ca: Path, watcher: Watcher) -> None:
    from ..deployment.site.server_probe import ServerAddress, check_server
    from ..deployment.site.site_process import run_site

    there = ServerAddress(server, ca)
    check_server(there)
    try:
        run_site(site, there, watcher)
    except KeyboardInterrupt as error:
        raise Interrupted(f"left; {site.home.folder} keeps what is needed to come back") from error

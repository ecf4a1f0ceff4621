"""`fedcopl join`: one site of a real federation."""

import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..config import override
from ..deployment.wire.addresses import check_site_name
from ..errors import ConfigError, Interrupted
from ..plurals import counted
from ..progress import watch_site
from ..run.progress_reporter import ProgressReporter
from .agree import ask_at_terminal
from .command import PluginFiles
from .join_options import (
    AcceptOption,
    CertificateOption,
    CheckOption,
    ClassesOption,
    CorrectionsOption,
    FolderOption,
    ImagesOption,
    JoinArgument,
    LeastImages,
    LeastNoise,
    LeastSites,
    LimitOption,
    MetricsPort,
    NameOption,
    NoSecureSums,
    PeersOption,
    ServerOption,
    SharedNames,
)
from .packages import no_package_in, package_facts
from .signals import stopping_on_sigterm

if TYPE_CHECKING:
    from ..deployment.site.policies import Agreement
    from ..deployment.site.running_site import RunningSite, SiteHome


def join(
    settings: JoinArgument = None,
    server: ServerOption = "",
    images: ImagesOption = None,
    classes: ClassesOption = None,
    ca: CertificateOption = Path("ca.pem"),
    name: NameOption = "",
    folder: FolderOption = Path("site"),
    corrections: CorrectionsOption = None,
    share: SharedNames = None,
    min_sites: LeastSites = 0,
    min_noise: LeastNoise = 0.0,
    min_images: LeastImages = 5,
    no_secure_aggregation: NoSecureSums = False,
    peers: PeersOption = None,
    accept: AcceptOption = "ask",
    limit: LimitOption = None,
    metrics_port: MetricsPort = 0,
    plugin: PluginFiles = None,
    check: CheckOption = False,
) -> None:
    """Take part in a federation with the images of this machine.

    A package says who the server is, what this site is called and which classes there are, also at later starts.
    """
    given = list(settings or [])
    server, ca, classes, name = package_facts(given, folder) or (server, ca, classes, name)
    if images is None:
        raise ConfigError("--images: name the images of this site, a folder or a table that lists them")
    if classes is None:
        raise ConfigError(no_package_in(folder))
    if not server and not check:
        raise ConfigError("--server: say where the server listens, as in --server server.example:9092")
    called, own = _site_name(name), _own_settings(given)
    from ..deployment.site.policies import DEFAULT_SHARE, Consent, Limits, choose_agreement
    from ..deployment.site.running_site import SiteHome

    consent = Consent(tuple(share or DEFAULT_SHARE), min_sites, min_noise, min_images, not no_secure_aggregation)
    files, model, limits = own.get("data", {}), own.get("model", {}), Limits.from_pairs(limit or ())
    home = SiteHome(called, images, str(classes), folder, model, str(corrections or ""), consent, files, limits, peers)
    with watch_site() as watcher:
        agreement = choose_agreement(accept, folder, ask_at_terminal(folder), watcher.noticed)
        site = _ready(home, watcher, agreement)
        _tell(site, server)
        if not check:
            _serve(site, server, ca, watcher, metrics_port)


def _site_name(given: str) -> str:
    name = given or socket.gethostname()
    check_site_name(name, "--name")
    return name


def _own_settings(pairs: list[str]) -> dict[str, Any]:
    settings = override({}, pairs)
    foreign = sorted(set(settings) - {"model", "data"})
    if foreign:
        raise ConfigError(f"{foreign[0]}: is the server's to say; a site sets what concerns its own model and files")
    return settings


def _ready(home: "SiteHome", watcher: ProgressReporter, agreement: "Agreement") -> "RunningSite":
    from ..deployment.site.running_site import RunningSite
    from ..deployment.site_keys import site_key

    site = RunningSite(home, watcher, agreement)
    site_key(home.folder, home.name)
    return site


def _tell(site: "RunningSite", server: str) -> None:
    """What was found, and what will and what will never leave this machine."""
    from ..deployment.site.policies import NEVER_SENT, sent_fields, sent_summary

    dataset = site.prepared.dataset
    for title, value in (
        ("site", site.name),
        ("images", f"{len(dataset.train):,}, {_left_out(site)}"),
        ("test images", f"{len(dataset.test):,} with labels" if site.has_test_set else "none: accuracy stays unknown"),
        (
            "said by an expert",
            counted(len(site.corrections.index), "image") if len(site.corrections.index) else "nothing",
        ),
        ("classes", site.classes),
        ("model", site.model),
        ("key for the server", str(site.home.folder / "site.pub")),
    ):
        typer.echo(f"{title:<22}{value}")
    typer.echo(f"\nWhat leaves this machine, for {server or 'the server'} alone:")
    for line in sent_summary(site.home.consent):
        typer.echo(f"  - {line}")
    typer.echo("Field by field:")
    for line in sent_fields(site.home.consent):
        typer.echo(f"  - {line}")
    typer.echo(f"What never leaves it: {NEVER_SENT}.")
    typer.echo(f"Conditions of this site: {site.home.consent}.\n")


def _left_out(site: "RunningSite") -> str:
    """How many files, and the command that lists them."""
    home, many = site.home, len(site.prepared.dataset.skipped)
    settings = {**({"classes_file": home.classes_file} if home.classes_file else {}), **home.files}
    pairs = [f"data.{name}={value}" for name, value in settings.items()]
    listing = shlex.join(["fedcopl", "data", "check", str(home.images), *pairs, "--all"])
    return f"{many:,} skipped" + (f": {listing} lists them" if many else "")


def _serve(site: "RunningSite", server: str, ca: Path, watcher: ProgressReporter, metrics_port: int) -> None:
    from ..deployment.site.site_process import ServerAddress, check_server, run_site

    there = ServerAddress(server, ca)
    check_server(there)
    try:
        with stopping_on_sigterm():
            run_site(site, there, watcher, metrics_port)
    except KeyboardInterrupt as error:
        raise Interrupted(f"left; {site.home.folder} keeps what is needed to come back") from error

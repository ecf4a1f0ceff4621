"""`fedcopl join`: a site of a federation across machines."""

import select
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from ..config import override
from ..deployment.addresses import check_site_name
from ..errors import ConfigError, Interrupted
from ..plurals import counted
from ..progress import site_reporting
from ..run.progress_reporter import ProgressReporter
from .command import PluginFiles
from .provision import MetricsPort, install_package
from .show import print_next

if TYPE_CHECKING:
    from ..deployment.site.policies import ApprovalPrompt
    from ..deployment.site.running_site import RunningSite
    from ..deployment.site.site_process import ServerAddress

_STOP_CHECK = 0.5  # seconds between two checks for `fedcopl stop`


def join(
    settings: Annotated[
        list[str] | None,
        Argument(
            metavar="[PACKAGE] [key=value ...]",
            help="The operator's package for this site, and settings of this site: model.backbone, device, threads, "
            "memory, activation; and how its files are read: data.window, bands, pages.",
        ),
    ] = None,
    server: Annotated[str, Option(metavar="HOST:PORT", help="Address of the server.")] = "",
    images: Annotated[Path | None, Option(help="Folder of images, or a table that lists them.")] = None,
    classes: Annotated[
        Path | None, Option(help="File of class names, one per line: the same file as the server's.")
    ] = None,
    ca: Annotated[Path, Option(help="Certificate of the server's authority, ca.pem.")] = Path("ca.pem"),
    name: Annotated[str, Option(help="Name of this site (default: the host name).")] = "",
    folder: Annotated[Path, Option(help="Folder for the keys, states and models of this site.")] = Path("site"),
    corrections: Annotated[
        Path | None, Option(help="Labels of an expert for training, from `fedcopl review --export`.")
    ] = None,
    share: Annotated[
        list[str] | None,
        Option(
            help="Arrays that may leave this site; may be repeated: prompts by name, 'features' (class feature sums, "
            "only under secure aggregation over at least 3 sites, or --min-sites) (default: visual)."
        ),
    ] = None,
    min_sites: Annotated[
        int, Option(min=0, help="Require secure aggregation over at least N sites (0: not required).")
    ] = 0,
    min_noise: Annotated[float, Option(min=0, help="Require at least this privacy.noise_multiplier.")] = 0.0,
    min_images: Annotated[
        int, Option(min=0, help="Minimum number of images behind any update, prior statistic or class feature sum.")
    ] = 5,
    no_secure_aggregation: Annotated[
        bool, Option("--no-secure-aggregation", help="Refuse runs with secure aggregation.")
    ] = False,
    peers: Annotated[
        Path | None,
        Option(
            help="Folder with the site.pub of every site that may take part in secure aggregation (default: the sites "
            "of the first aggregation)."
        ),
    ] = None,
    accept: Annotated[
        str,
        Option(
            metavar="ask|always|FILE",
            help="Accept runs after confirmation at this terminal (ask), always, or with the settings in FILE.",
        ),
    ] = "ask",
    limit: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=NUMBER",
            help="A limit of this site: rounds, epochs, batch, prompts, template, runs, restarts, seconds, disk, "
            "epsilon; may be repeated.",
        ),
    ] = None,
    metrics_port: MetricsPort = 0,
    plugin: PluginFiles = None,
    check: Annotated[
        bool, Option("--check", "--dry-run", help="Check everything and make the key, but do not connect.")
    ] = False,
) -> None:
    """Take part in a federation with the images of this machine.

    A package contains the server's address and certificate, the name of this site and the classes. The first start
    installs it in the site's folder; later starts leave it out.
    """
    if images is None:
        raise ConfigError("--images: is missing; give the folder of this site's images, or a table that lists them")
    arguments = list(settings or [])
    package = install_package(arguments, folder, "site")
    if package is not None:
        server, name, ca, classes = package.address, package.name, folder / "ca.pem", folder / "classes.txt"
    if classes is None:
        reason = "no package is installed in this folder" if folder.is_dir() else "there is no such folder"
        raise ConfigError(
            f"{folder}: {reason}; give the package of this site, or --server, --ca and --classes, or another --folder"
        )
    if not server and not check:
        raise ConfigError("--server: is missing; give the server's address, as in --server server.example:9092")
    name = name or socket.gethostname()
    check_site_name(name, "--name")
    overrides = override({}, arguments)
    not_own = sorted(set(overrides) - {"model", "data"})
    if not_own:
        raise ConfigError(f"{not_own[0]}: is set by the server; a site can set model.* and data.* only")
    from ..deployment.keys import site_key
    from ..deployment.site.policies import DEFAULT_SHARE, Consent, Limits, choose_approval
    from ..deployment.site.running_site import RunningSite, SiteOptions
    from ..deployment.site.site_process import ServerAddress, check_server

    consent = Consent(tuple(share or DEFAULT_SHARE), min_sites, min_noise, min_images, not no_secure_aggregation)
    limits, labels = Limits.from_pairs(limit or ()), str(corrections or "")
    model, data = overrides.get("model", {}), overrides.get("data", {})
    options = SiteOptions(name, images, str(classes), folder, model, labels, consent, data, limits, peers)
    address = ServerAddress(server, ca)
    if not check:
        check_server(address)  # before the images are read
    with site_reporting() as progress:
        approval = choose_approval(accept, folder, _approval_at_terminal(folder), progress.note)
        site = RunningSite(options, progress, approval)
        site_key(folder, name)
        _print_site(site, server)
        if check:
            is_registered = package is not None and package.key == "packed"
            send_key = "" if is_registered else f"send {folder / 'site.pub'} to the operator of the server, then "
            print_next(f"{send_key}run the same command without --check")
        else:
            _run(site, address, progress, metrics_port)


def _print_site(site: "RunningSite", server: str) -> None:
    """Print the site's data and model, the values that leave this machine, and those that never do."""
    from ..deployment.site.policies import NEVER_SENT, sent_fields, sent_summary

    options, dataset, skipped = site.options, site.prepared.dataset, ""
    if dataset.skipped:
        settings = {**({"classes_file": options.classes_file} if options.classes_file else {}), **options.data}
        pairs = [f"data.{key}={value}" for key, value in settings.items()]
        skipped = f": {shlex.join(['fedcopl', 'data', 'check', str(options.images), *pairs, '--all'])} lists them"
    corrected = len(site.corrections.index)
    facts = {
        "site": site.name,
        "images": f"{len(dataset.train):,}, {len(dataset.skipped):,} skipped{skipped}",
        "test images": f"{len(dataset.test):,} with labels" if site.has_test_set else "none: accuracy is not measured",
        "labelled by an expert": counted(corrected, "image") if corrected else "none",
        "classes": site.classes,
        "model": site.model,
        "key for the server": str(options.folder / "site.pub"),
    }
    for title, value in facts.items():
        typer.echo(f"{title:<22}{value}")
    typer.echo(f"\nWhat leaves this machine, sent to {server or 'the server'} only:")
    for line in sent_summary(options.consent):
        typer.echo(f"  - {line}")
    typer.echo("Field by field:")
    for line in sent_fields(options.consent):
        typer.echo(f"  - {line}")
    typer.echo(f"What never leaves it: {NEVER_SENT}.")
    typer.echo(f"Conditions of this site: {options.consent}.\n")


def _run(site: "RunningSite", address: "ServerAddress", progress: ProgressReporter, metrics_port: int) -> None:
    from ..deployment.processes import stopping_on_sigterm
    from ..deployment.site.site_process import run_site

    try:
        with stopping_on_sigterm():
            run_site(site, address, progress, metrics_port)
    except KeyboardInterrupt as error:
        raise Interrupted(f"stopped; the same command joins again with the state in {site.options.folder}") from error


def _approval_at_terminal(folder: Path) -> "ApprovalPrompt":
    """Return a function that asks at the terminal whether to accept a run; it returns None without a terminal."""
    from ..deployment.processes import should_stop

    def approve(run: str, description: list[str]) -> bool | None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return None
        typer.echo(f"\nThe server starts the run {run}:", err=True)
        for line in description:
            typer.echo(f"  - {line}", err=True)
        typer.echo("Take part? Nothing has been sent yet. [y/N] ", err=True, nl=False)
        while not select.select([sys.stdin], [], [], _STOP_CHECK)[0]:
            if should_stop(folder):  # `fedcopl stop` while waiting for input
                raise KeyboardInterrupt
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    return approve

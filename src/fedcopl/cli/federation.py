"""`fedcopl server`, `status` and `stop`: the operator's side of a real federation."""

import json
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import RunConfig, load, read_settings, with_typed
from ..errors import ConfigError, FedCoPLError, FederationError, Interrupted, NoClientReplied
from ..progress import watch
from ..report.run_page import write_report
from ..run.record import Outcome, to_plain
from .command import PluginFiles
from .join_options import MetricsPort
from .packages import server_package
from .run import RUNS, Earlier
from .show import print_outcome, print_status
from .signals import stopping_on_sigterm

if TYPE_CHECKING:
    from ..deployment.certificates import Certificates
    from ..deployment.provisioning.packages import PackageNotes
    from ..deployment.server.plan import PreparedServer, ServerPlan
    from ..deployment.server.server_process import ServerHome

FEDERATION = Path("federation")
DEFAULT_PORT = 9092
SETTINGS_HELP = (
    "The server's package or a settings file, and single settings on top of it. Without a file: the defaults."
)


SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PACKAGE|CONFIG.toml] [key=value ...]", help=SETTINGS_HELP, show_default=False),
]
Classes = Annotated[
    Path | None, typer.Option(help="Class names, one a line; every site needs the same file.", show_default=False)
]
OutFolder = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder for the results; without it runs/<time>-<name>.", show_default=False),
]
Addresses = Annotated[
    list[str] | None,
    typer.Option(help="Name or number by which sites reach this machine; goes into the certificate."),
]
OwnCertificates = Annotated[
    tuple[Path, Path, Path] | None,
    typer.Option(metavar="CA CERT KEY", help="Your own files instead of those made in the folder."),
]
MinSites = Annotated[int, typer.Option(min=1, help="With fewer sites nothing begins and nothing goes on.")]
StartWith = Annotated[
    int, typer.Option(min=0, help="Sites to wait for at the start, if more than that.", show_default=False)
]


def server(
    settings: SettingsArgument = None,
    classes: Classes = None,
    folder: Annotated[Path, typer.Option(help="Keys, certificates and logs of the server.")] = FEDERATION,
    out: OutFolder = None,
    host: Annotated[str, typer.Option(help="Network address to listen on.")] = "0.0.0.0",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port to listen on; 9092, or the package's.", show_default=False),
    ] = None,
    address: Addresses = None,
    certificates: OwnCertificates = None,
    min_sites: MinSites = 2,
    start_with: StartWith = 0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds a site has for an answer.")] = 600.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    go_on: Annotated[
        bool, typer.Option("--go-on", help="--resume if the last run is not finished, else a new one: for a service.")
    ] = False,
    earlier: Earlier = None,
    metrics_port: MetricsPort = 0,
    plugin: PluginFiles = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Wait for the sites whose keys lie in FOLDER/sites, and train with them.

    A package of `fedcopl provision` in the stead of the settings has them, the keys, the classes and the certificate.
    """
    given = list(settings or [])
    package = server_package(given, folder)
    resume = resume or (go_on and _unfinished(folder) is not None)
    out = _resumed(folder, out) if resume else out
    if not resume:
        _tell_of_unfinished(folder)
    config = without_prototypes(_read(given, out if resume else None, folder / "settings.toml" if package else None))
    out = out or RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{config.name}"
    classes = _classes(classes or (folder / "classes.txt" if package else None), out)
    port = port or (package.port if package else DEFAULT_PORT)
    from ..deployment.server.grid_transport import Timeouts
    from ..deployment.server.plan import PreparedServer, ServerPlan
    from ..deployment.server.server_process import ServerHome

    plan = ServerPlan(config, classes, out, Timeouts(timeout, min_sites, start_with=start_with), resume, earlier)
    prepared = PreparedServer.prepare(plan)
    made = _certificates(folder, address or [], certificates, host, package)
    home = ServerHome(folder, folder / "sites", made, host, port, metrics_port)
    outcome = _host(home, prepared)
    print(json.dumps(to_plain(outcome))) if as_json else print_outcome(outcome, out)


def _resumed(folder: Path, out: Path | None) -> Path:
    from ..deployment.processes import process_of

    return out or Path(process_of(folder).about["out"])


def _tell_of_unfinished(folder: Path) -> None:
    """Whoever forgets --resume should not find out at the end."""
    last = _unfinished(folder)
    if last:
        typer.echo(f"note: {last} is not finished; --resume goes on with it. This is a new run.", err=True)


def _unfinished(folder: Path) -> Path | None:
    """The last run of this server, if it has begun and not ended."""
    with suppress(FedCoPLError):
        last = _resumed(folder, None)
        return last if (last / "checkpoint.safetensors").exists() and not (last / "results.json").exists() else None
    return None


def _read(given: list[str], resumed: Path | None, packed: Path | None) -> RunConfig:
    """Settings from the file named, else of the run that is resumed, else of the package, else the defaults."""
    file = Path(given.pop(0)) if given and "=" not in given[0] else None
    if file is None and resumed is not None and (resumed / "settings.toml").exists():
        return load(resumed / "settings.toml", given)
    file = file or packed
    return with_typed(read_settings(file) if file else {}, given, str(file or "settings"))


def without_prototypes(config: RunConfig) -> RunConfig:
    """Switch prototypes off without secure aggregation: no site sends class feature sums then."""
    needs_sums = config.adapts and config.priors.logit_bias and config.priors.prototypes
    if not needs_sums or config.privacy.secure_aggregation or config.privacy.noise_multiplier:
        return config
    typer.echo(
        "note: priors.prototypes is off: sites send class feature sums only with --share features and under "
        "privacy.secure_aggregation=true privacy.min_sites=3",
        err=True,
    )
    return config.model_copy(update={"priors": config.priors.model_copy(update={"prototypes": False})})


def _classes(classes: Path | None, out: Path) -> Path:
    kept = out / "classes.txt"
    if classes is None and not kept.exists():
        raise ConfigError("--classes: name the file with the class names, one a line; the sites need the same one")
    return classes or kept


def _certificates(
    folder: Path,
    addresses: list[str],
    own: tuple[Path, Path, Path] | None,
    host: str,
    package: "PackageNotes | None",
) -> "Certificates":
    from ..deployment.certificates import (
        check_not_expired,
        folder_certificates,
        given_certificates,
        server_certificates,
    )
    from ..deployment.wire.addresses import own_address

    here = own_address(host)
    if package and not own:  # made by the study's authority, whose key is not on this machine
        made = folder_certificates(folder)
        check_not_expired(
            made, "the operator renews it (fedcopl provision STUDY --renew server, or authority); start anew"
        )
        return made
    return given_certificates(*own, here) if own else server_certificates(folder, [*addresses, here])


def _host(home: "ServerHome", prepared: "PreparedServer") -> Outcome:
    from ..deployment.server.server_process import run_server

    print_start(home, prepared.plan)
    try:
        with stopping_on_sigterm(), watch(prepared.config.rounds) as watcher:
            outcome = run_server(home, prepared, watcher)
    except KeyboardInterrupt as error:
        raise Interrupted("stopped; go on with the same command and --resume") from error
    except NoClientReplied as error:
        raise NoClientReplied(f"{error}. Finished rounds are kept: go on with the same command and --resume") from error
    write_report(prepared.plan.out)
    return outcome


def print_start(home: "ServerHome", plan: "ServerPlan") -> None:
    """What the operator has to hand out and to collect."""
    from ..deployment.wire.addresses import with_port

    typer.echo(f"listening on           {with_port(home.host, home.port)}", err=True)
    if (home.folder / "package.json").exists():
        typer.echo(f"sites may join         by {home.sites}; fedcopl admit PACKAGE changes it", err=True)
    else:
        typer.echo(f"give to every site     {home.certificates.ca} and {plan.classes_file}", err=True)
        keys = f"{home.sites} (the file site.pub of each, under any name ending in .pub)"
        typer.echo(f"put their keys into    {keys}", err=True)
    typer.echo(f"results                {plan.out}", err=True)


def status(
    folder: Annotated[Path, typer.Option(help="The folder of the server, or of a site.")] = FEDERATION,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell who is connected and how far the run is; at a site, how far the site is."""
    from ..deployment.status import status_of

    status = status_of(folder)
    print(json.dumps(asdict(status))) if as_json else print_status(status)


def stop(
    folder: Annotated[Path, typer.Option(help="The folder of the server, or of a site.")] = FEDERATION,
    patience: Annotated[float, typer.Option(help="Seconds to wait until it has stopped.")] = 60.0,
) -> None:
    """Ask a server or a site to stop. Finished rounds are kept: go on with --resume."""
    from ..deployment.processes import process_of, request_stop

    if not process_of(folder).running:
        print(f"nothing is running in {folder}")
    elif request_stop(folder, patience):
        print("stopped")
    else:
        raise FederationError(f"{folder}: did not stop within {patience:.0f} s")

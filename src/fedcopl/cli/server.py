"""`fedcopl server`, `status`, `stop` and `audit`: the server of a federation across machines."""

import json
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from ..config import RunConfig, load, read_settings, with_overrides
from ..errors import ConfigError, FedCoPLError, FederationError, Interrupted, NoClientReplied, RunFolderError
from ..files import check_output_file, no_folder, write_text
from ..plurals import counted
from ..progress import reporting
from ..report.run_page import write_report
from ..run.folder import file_name
from ..run.record import Outcome, to_plain
from .command import PluginFiles
from .provision import SERVER_FOLDER, MetricsPort, install_package
from .run import RUNS, PreviousRunFolder
from .show import print_next, print_outcome, print_status

if TYPE_CHECKING:
    from ..deployment.keys import Certificates
    from ..deployment.packages import PackageMetadata
    from ..deployment.server.rounds import PreparedServer
    from ..deployment.server.server_process import ServerOptions

_DEFAULT_PORT = 9092
_SHOWN_DIGEST = 12  # characters


def server(
    settings: Annotated[
        list[str] | None,
        Argument(
            metavar="[PACKAGE|CONFIG.toml] [key=value ...]",
            help="The server's package or a settings file, and single settings that override it. Without a file: the "
            "default settings.",
        ),
    ] = None,
    classes: Annotated[
        Path | None, Option(help="File of class names, one per line; every site needs the same file.")
    ] = None,
    folder: Annotated[Path, Option(help="Folder of the server's keys, certificates and logs.")] = SERVER_FOLDER,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Folder for the results (default: runs/<time>-<name>).")
    ] = None,
    host: Annotated[str, Option(help="Network address to listen on.")] = "0.0.0.0",
    port: Annotated[
        int | None, Option(min=1, max=65535, help="Port to listen on (default: that of the package, or 9092).")
    ] = None,
    address: Annotated[
        list[str] | None, Option(help="Host name or IP address of this machine, for the certificate.")
    ] = None,
    certificates: Annotated[
        tuple[Path, Path, Path] | None,
        Option(metavar="CA CERT KEY", help="Existing certificate files instead of generated ones."),
    ] = None,
    min_sites: Annotated[int, Option(min=1, help="Minimum number of connected sites; the server waits for them.")] = 2,
    start_with: Annotated[int, Option(min=0, help="Number of sites to wait for at the start (0: --min-sites).")] = 0,
    timeout: Annotated[float, Option(min=1, help="Time limit for a site's reply, in seconds.")] = 600.0,
    resume: Annotated[bool, Option("--resume", help="Continue a run that was stopped.")] = False,
    auto_resume: Annotated[
        bool, Option("--auto-resume", help="Continue the last run if it is not finished, else start a new run.")
    ] = False,
    previous_run: PreviousRunFolder = None,
    metrics_port: MetricsPort = 0,
    plugin: PluginFiles = None,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Run a federation with the sites that have a public key in FOLDER/sites.

    A package of `fedcopl provision` contains the settings, the sites' keys, the classes and the certificate.
    """
    arguments = list(settings or [])
    package = install_package(arguments, folder, "server")
    unfinished = _unfinished_run(folder)
    resume = resume or (auto_resume and unfinished is not None)
    if resume:
        from ..deployment.processes import process_of

        out = out or process_of(folder).results
    elif unfinished:
        typer.echo(f"note: {unfinished} is not finished; --resume continues it. This is a new run.", err=True)
    config = _read_config(arguments, out if resume else None, folder / "settings.toml" if package else None)
    out = out or RUNS / f"{datetime.now():%Y%m%d-%H%M%S}-{config.name}"
    if classes is None:
        classes = (folder if package else out) / "classes.txt"
        if not classes.exists():
            raise ConfigError("--classes: is missing; give a file of class names, one per line, the same at all sites")
    config = _without_prototypes(config)
    from ..deployment.server.grid_transport import Timeouts
    from ..deployment.server.rounds import PreparedServer, ServerPlan
    from ..deployment.server.server_process import ServerOptions

    plan = ServerPlan(config, classes, out, Timeouts(timeout, min_sites, start_with=start_with), resume, previous_run)
    prepared = PreparedServer.prepare(plan)
    server_files = _certificates(folder, address or [], certificates, host, package)
    port = port or (package.port if package else _DEFAULT_PORT)
    outcome = _run(ServerOptions(folder, folder / "sites", server_files, host, port, metrics_port), prepared)
    write_report(out)
    if as_json:
        print(json.dumps(to_plain(outcome)))
    else:
        print_outcome(outcome, out)
        predict = f"at each site: fedcopl predict PHOTOS -c FOLDER/runs/{file_name(outcome.run_id)} -o predictions.csv"
        print_next(predict, ("fedcopl", "report", out, "--open"))


def _unfinished_run(folder: Path) -> Path | None:
    """Return the folder of this server's last run if it was started and not finished."""
    from ..deployment.processes import process_of

    with suppress(FedCoPLError):
        last = process_of(folder).results
        return last if (last / "checkpoint.safetensors").exists() and not (last / "results.json").exists() else None
    return None


def _read_config(arguments: list[str], resumed_run: Path | None, package_settings: Path | None) -> RunConfig:
    """Read the settings from the file in the arguments, else from the resumed run, else from the package."""
    has_file = bool(arguments) and "=" not in arguments[0]
    file, overrides = (Path(arguments[0]), arguments[1:]) if has_file else (None, arguments)
    if file is None and resumed_run is not None and (resumed_run / "settings.toml").exists():
        return load(resumed_run / "settings.toml", overrides)
    file = file or package_settings
    return with_overrides(read_settings(file) if file else {}, overrides, str(file or "settings"))


def _without_prototypes(config: RunConfig) -> RunConfig:
    """Return the settings, without prototypes if no site would send class feature sums, and print a note then."""
    needs_sums = config.uses_priors and config.priors.logit_bias and config.priors.prototypes
    if not needs_sums or config.privacy.secure_aggregation or config.privacy.noise_multiplier:
        return config
    typer.echo(
        "note: priors.prototypes is off: sites send class feature sums only with --share features and under "
        "privacy.secure_aggregation=true privacy.min_sites=3",
        err=True,
    )
    return config.model_copy(update={"priors": config.priors.model_copy(update={"prototypes": False})})


def _certificates(
    folder: Path,
    addresses: list[str],
    given: tuple[Path, Path, Path] | None,
    host: str,
    package: "PackageMetadata | None",
) -> "Certificates":
    """Return the given certificate files, else those of the package, else generated ones."""
    from ..deployment.addresses import own_address
    from ..deployment.keys import check_not_expired, folder_certificates, given_certificates, server_certificates

    machine_address = own_address(host)
    if given:
        return given_certificates(*given, machine_address)
    if package:  # signed by the study's authority; its key is not on this machine
        files = folder_certificates(folder)
        remedy = "renew it (fedcopl provision STUDY --renew server, or authority) and install the new package"
        check_not_expired(files, remedy)
        return files
    return server_certificates(folder, [*addresses, machine_address])


def _run(options: "ServerOptions", prepared: "PreparedServer") -> Outcome:
    """Print the files to exchange with the sites, and run the server until the run ends."""
    from ..deployment.addresses import with_port
    from ..deployment.processes import stopping_on_sigterm
    from ..deployment.server.server_process import run_server

    plan = prepared.plan
    facts = {"listening on": with_port(options.host, options.port), "results": str(plan.out)}
    if (options.folder / "package.json").exists():
        facts["sites that may join"] = f"{options.sites}; change them with: fedcopl admit PACKAGE"
    else:
        facts["send to every site"] = f"{options.certificates.ca} and {plan.classes_file}"
        facts["put their keys into"] = f"{options.sites} (the site.pub of each site, under any name that ends in .pub)"
    for title, value in facts.items():
        typer.echo(f"{title:<23}{value}", err=True)
    try:
        with stopping_on_sigterm(), reporting(prepared.config.rounds) as progress:
            return run_server(options, prepared, progress)
    except KeyboardInterrupt as error:
        raise Interrupted("stopped; continue with the same command and --resume") from error
    except NoClientReplied as error:
        raise NoClientReplied(
            f"{error}. Finished rounds are kept: continue with the same command and --resume"
        ) from error


def status(
    folder: Annotated[Path, Option(help="Folder of the server, or of a site.")] = SERVER_FOLDER,
    as_json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the connected sites and the progress of the run; at a site, the progress of the site."""
    from ..deployment.monitoring import status_of

    status = status_of(folder)
    if as_json:
        print(json.dumps(asdict(status)))
        return
    print_status(status)
    stop_it = [("fedcopl", "stop", "--folder", folder)] if status.running else []
    print_next(("fedcopl", "watch", folder), ("fedcopl", "audit", folder), *stop_it)


def stop(
    folder: Annotated[Path, Option(help="Folder of the server, or of a site.")] = SERVER_FOLDER,
    timeout: Annotated[float, Option(min=0, help="Seconds to wait for the end of the process.")] = 60.0,
) -> None:
    """Stop a server or a site. Finished rounds are kept: continue with --resume."""
    from ..deployment.processes import process_of, request_stop

    process = process_of(folder)
    if not process.running:
        print(f"nothing is running in {folder}")
    elif request_stop(folder, timeout):
        print("stopped")
    else:
        raise FederationError(f"{folder}: did not stop within {timeout:.0f} s; wait longer with --timeout")
    start = "fedcopl server with the same arguments and --resume" if process.role == "server" else "fedcopl join again"
    print_next(start, ("fedcopl", "audit", folder))


def audit(
    folder: Annotated[Path, Argument(help="Folder of a site, of a server, or of a server's run.")],
    run: Annotated[str, Option(help="Only messages of this run.")] = "",
    last: Annotated[int, Option(min=0, help="Number of latest messages to print (0: all).")] = 20,
    out: Annotated[Path | None, Option("--out", "-o", help="Write all messages to this CSV file.")] = None,
) -> None:
    """Verify and print the log of all received and sent messages; an error if it was changed."""
    from ..deployment.audit_log import audit_csv, read_audit

    if out is not None:
        check_output_file(out)
    lines = read_audit(_folder_of_log(folder))
    selected = [line for line in lines if run in ("", line.run)]
    if out is not None:
        write_text(out, audit_csv(selected))
        typer.echo(f"{counted(len(selected), 'message')} written to {out}")
    else:
        for line in selected[-last:] if last else selected:
            when = datetime.fromtimestamp(line.time)
            description = (
                f"{line.run} round {line.round} {line.kind}, {line.bytes:,} bytes, sha256 {line.digest[:_SHOWN_DIGEST]}"
            )
            typer.echo(f"{when:%Y-%m-%d %H:%M:%S}  {line.direction:<4}{line.peer}  {description}: {line.decision}")
    sizes = {side: [line.bytes for line in selected if line.direction == side] for side in ("in", "out")}
    totals = [f"{len(byte_counts)} {side}, {sum(byte_counts):,} bytes" for side, byte_counts in sizes.items()]
    refused = sum(line.decision.startswith(("refused", "dropped")) for line in selected)
    typer.echo("; ".join([*totals, f"{refused} refused or dropped"]))
    typer.echo(f"verified: {counted(len(lines), 'line')}, none changed; the head is {lines[-1].chain}")
    if out is None:
        print_next(("fedcopl", "audit", folder, "--out", "audit.csv"))
    else:
        print_next("keep the head with the file: it proves later that the log was not changed")


def _folder_of_log(folder: Path) -> Path:
    """Return the folder with the audit log; the log of a server is in the folder of its run."""
    from ..deployment.audit_log import AUDIT
    from ..deployment.processes import WORKING, process_of

    if not folder.is_dir():
        raise RunFolderError(f"{folder}: {no_folder(folder)}; name the folder of a site, a server or a server's run")
    if not (folder / AUDIT).exists() and (folder / WORKING).exists():
        process = process_of(folder)
        return process.results if process.role == "server" else folder
    return folder

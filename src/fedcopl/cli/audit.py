"""`fedcopl audit`: what went in and out, read and verified."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..files import check_output_file, write_text
from ..plurals import counted

if TYPE_CHECKING:
    from ..deployment.audit_log import AuditLine

SHOWN = 12  # letters of a digest


def audit(
    folder: Annotated[Path, typer.Argument(help="The folder of a site, of a server, or of a server's run.")],
    run: Annotated[str, typer.Option(help="Only messages of this run.")] = "",
    last: Annotated[int, typer.Option(min=0, help="How many messages to show, the latest; 0: all.")] = 20,
    export: Annotated[
        Path | None, typer.Option(help="Write all of it into this CSV file instead.", show_default=False)
    ] = None,
) -> None:
    """Verify and show the record of every message that came in or went out; an error if it was tampered with."""
    from ..deployment.audit_log import audit_csv, read_audit

    if export is not None:
        check_output_file(export)
    lines = read_audit(_home(folder))
    chosen = [line for line in lines if run in ("", line.message.run)]
    if export is not None:
        write_text(export, audit_csv(chosen))
        typer.echo(f"{counted(len(chosen), 'message')} written to {export}")
    else:
        Console(highlight=False, markup=False).print(_table(chosen[-last:] if last else chosen))
    typer.echo(_summary(chosen))
    typer.echo(f"verified: {counted(len(lines), 'line')}, none changed; the head is {lines[-1].chain}")


def _home(folder: Path) -> Path:
    """A server keeps its record in the folder of its run."""
    from ..deployment.audit_log import AUDIT
    from ..deployment.processes import WORKING, process_of

    if not (folder / AUDIT).exists() and (folder / WORKING).exists():
        process = process_of(folder)
        return process.results if process.role == "server" else folder
    return folder


def _table(lines: Sequence["AuditLine"]) -> Table:
    table = Table("time", "", "with", "run", "round", "kind", "bytes", "sha256", "decision")
    for line in lines:
        one, when = line.message, datetime.fromtimestamp(line.time)
        words = (one.way, one.peer, one.run, one.round, one.kind, f"{one.bytes:,}", one.digest[:SHOWN], one.decision)
        table.add_row(f"{when:%Y-%m-%d %H:%M:%S}", *words)
    return table


def _summary(lines: Sequence["AuditLine"]) -> str:
    ways = {way: [line.message for line in lines if line.message.way == way] for way in ("in", "out")}
    count = {way: f"{len(found)} {way}, {sum(one.bytes for one in found):,} bytes" for way, found in ways.items()}
    refused = sum(line.message.decision.startswith(("refused", "dropped")) for line in lines)
    return f"{count['in']}; {count['out']}; {refused} refused or dropped"

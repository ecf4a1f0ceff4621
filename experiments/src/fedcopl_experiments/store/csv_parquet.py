"""Stored runs as flat tables for other programs: CSV, or Parquet with the extra [parquet]."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedcopl.errors import ConfigError
from fedcopl.files import publish_bytes

from ..flat_settings import flat
from .stored_run import StoredRun, headline, is_huge, readable, round_rows

ExportRow = Mapping[str, Any]
FileEncoder = Callable[[Sequence[ExportRow]], bytes]
RUN_COLUMNS = ("key", "title", "status", "error", "host", "code", "started", "finished", "folder")


def export_runs(runs: Sequence[StoredRun], path: Path) -> None:
    """Write one row per run to `path`, and one per run and round to the file `-rounds` next to it."""
    encode = _encoder(path)
    publish_bytes(path, encode([run_row(run) for run in runs]))
    publish_bytes(
        path.with_name(f"{path.stem}-rounds{path.suffix}"), encode([row for run in runs for row in _rounds(run)])
    )


def run_row(run: StoredRun) -> dict[str, Any]:
    """Return a run as a row: its settings as `section.key`, headline numbers and versions."""
    row = {name: getattr(run, name) for name in RUN_COLUMNS} | flat(run.settings)
    row |= {f"version.{package}": version for package, version in run.versions.items()}
    return row | ({"seconds": run.seconds} if run.outcome is None else headline(run.outcome))


def _rounds(run: StoredRun) -> list[dict[str, Any]]:
    rows: dict[int, dict[str, Any]] = {}
    for number, metric, value in round_rows(run.outcome) if run.outcome else ():
        rows.setdefault(number, {"key": run.key, "round": number})[metric] = value
    return list(rows.values())


def _encoder(path: Path) -> FileEncoder:
    match path.suffix.lower():
        case ".csv":
            return _csv
        case ".parquet":
            return _parquet(path)
    raise ConfigError(f"{path}: should end in .csv or .parquet")


def _columns(rows: Sequence[ExportRow]) -> list[str]:
    """Return the names of all rows, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv(rows: Sequence[ExportRow]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows) or ["key"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return readable(text.getvalue()).encode("utf-8")


def _parquet(path: Path) -> FileEncoder:
    """Return the encoder; raise ConfigError if pyarrow is missing, before any file is written."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            f"{path}: Parquet needs pyarrow: pip install 'fedcopl[parquet]', or export as .csv"
        ) from error

    def encode(rows: Sequence[ExportRow]) -> bytes:
        columns = {name: _one_type([row.get(name) for row in rows]) for name in _columns(rows) or ["key"]}
        buffer = io.BytesIO()
        parquet.write_table(arrow.table(columns), buffer)
        return buffer.getvalue()

    return encode


def _one_type(values: list[Any]) -> list[Any]:
    """Convert a column to text if its values have several types, which Parquet does not allow."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool} or (kinds <= {int, float} and not any(is_huge(value) for value in values)):
        return values
    return [None if value is None else readable(str(value)) for value in values]

"""The source `manifest`: a CSV or Parquet table with the columns path, label, split, client; only path is required.

Paths are relative to the table's folder and may lead out of it.
"""

import csv
import difflib
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from ..config import Data
from ..errors import DataError, printable
from ..plurals import counted
from .dataset import Dataset, FileRecord, Skipped, Split, build, find_classes

COLUMNS = ("path", "label", "split", "client")
ManifestRow = tuple[int, dict[str, str]]  # its line or number in the file, and its cells


def read_manifest(data: Data) -> Dataset:
    file = _require_file(data.path)
    skipped: list[Skipped] = []
    rows = _parquet_rows(file) if file.suffix.lower() in (".parquet", ".pq") else _csv_rows(file)
    records = []
    for record in _records(file, rows):
        if record.path.is_file():
            records.append(record)
        else:
            skipped.append((record.name, "there is no such file"))
    if skipped and not records:
        raise DataError(
            f"{file}: of {counted(len(skipped), 'image')} none is there, for example {printable(skipped[0][0])}"
        )
    return build("manifest", file, records, listed=find_classes(data.classes_file, file.parent), skipped=skipped)


def _require_file(path: str) -> Path:
    file = Path(path).expanduser()
    if not path or not file.is_file():
        why = "is a folder" if path and file.is_dir() else "there is no such manifest"
        raise DataError(f"{path or 'data.path'}: {why}; data.path should be a .csv or .parquet file")
    return file.resolve()


def _csv_rows(file: Path) -> list[ManifestRow]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            _check_columns(file, reader.fieldnames or ())
            return [(reader.line_num, _cells(row)) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as CSV: {error}") from error


def _parquet_rows(file: Path) -> list[ManifestRow]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(f"{file}: reading Parquet needs pyarrow: pip install 'fedcopl[parquet]'") from error
    try:
        names = parquet.read_schema(file).names
        _check_columns(file, names)
        table = parquet.read_table(file, columns=[name for name in names if name in COLUMNS])
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{file}: cannot be read as Parquet: {error}") from error
    return [(number, _cells(row)) for number, row in enumerate(table.to_pylist(), start=1)]


def _cells(row: dict[Any, Any]) -> dict[str, str]:
    """Return the non-empty cells as text."""
    texts = {name: str(row[name]).strip() for name in COLUMNS if row.get(name) is not None}
    return {name: text for name, text in texts.items() if text}


def _check_columns(file: Path, names: Sequence[str]) -> None:
    """Refuse misspelt columns, which would silently drop all labels; other columns are ignored."""
    for name in names:
        near = difflib.get_close_matches(name.strip().lower(), set(COLUMNS) - set(names), n=1, cutoff=0.75)
        if near:
            raise DataError(f"{file}: unknown column {name!r}; did you mean {near[0]}?")
    if "path" not in names:
        raise DataError(f"{file}: has no column path (its columns: {', '.join(names) or 'none'})")


def _records(file: Path, rows: Iterable[ManifestRow]) -> Iterator[FileRecord]:
    first: dict[Path, int] = {}
    for line, cells in rows:
        where = f"{file}, row {line}"
        if "path" not in cells:
            raise DataError(f"{where}: has no path")
        path = file.parent / cells["path"]
        if path in first:
            raise DataError(f"{where}: {printable(cells['path'])} is listed twice, first in row {first[path]}")
        first[path] = line
        split = cells.get("split", "train").lower()
        if split not in ("train", "test"):
            raise DataError(f"{where}: the split is {split!r}; it should be train or test")
        name = Path(cells["path"]).as_posix()
        yield FileRecord(name, path, cast(Split, split), cells.get("label"), cells.get("client"))

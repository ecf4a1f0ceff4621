"""The sources `manifest`, a CSV or Parquet file, and `huggingface`, a data set of the package datasets.

A manifest has the columns path, label, split and client; only path is required. Paths are relative to the manifest's
folder and may lead out of it.
"""

import copy
import csv
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from ..config import Data
from ..errors import DataError, did_you_mean
from .dataset import TEMPLATE, Dataset, FileRecord, ImageSet, Skipped, Split, build, clean_class_names, find_classes
from .images import StoredImages

_COLUMNS = ("path", "label", "split", "client")


def read_manifest(data: Data) -> Dataset:
    """Read the images that a CSV or Parquet table lists; images that do not exist are skipped."""
    file = Path(data.path).expanduser()
    if not data.path or not file.is_file():
        reason = "is a folder" if data.path and file.is_dir() else "there is no such manifest"
        raise DataError(f"{data.path or 'data.path'}: {reason}; data.path should be a .csv or .parquet file")
    file = file.resolve()
    rows = _parquet_rows(file) if file.suffix.lower() in (".parquet", ".pq") else _csv_rows(file)
    records: list[FileRecord] = []
    skipped: list[Skipped] = []
    first_row: dict[Path, int] = {}
    for number, row in rows:
        texts = {name: str(row[name]).strip() for name in _COLUMNS if row.get(name) is not None}
        cells = {name: text for name, text in texts.items() if text}
        origin = f"{file}, row {number}"
        if "path" not in cells:
            raise DataError(f"{origin}: has no path")
        path = file.parent / cells["path"]
        if path in first_row:
            raise DataError(f"{origin}: {cells['path']} is listed twice, first in row {first_row[path]}")
        first_row[path] = number
        split = cells.get("split", "train").lower()
        if split not in ("train", "test"):
            raise DataError(f"{origin}: the split is {split!r}; it should be train or test")
        name = Path(cells["path"]).as_posix()
        if path.is_file():
            records.append(FileRecord(name, path, cast(Split, split), cells.get("label"), cells.get("client")))
        else:
            skipped.append((name, "there is no such file"))
    if skipped and not records:
        raise DataError(f"{file}: none of its images exists ({len(skipped):,} listed), for example {skipped[0][0]}")
    return build("manifest", file, records, class_list=find_classes(data.classes_file, file.parent), skipped=skipped)


def _csv_rows(file: Path) -> list[tuple[int, dict[Any, Any]]]:
    """Return the line number and the cells of each row of a CSV file."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            _check_columns(file, reader.fieldnames or ())
            return [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as CSV: {error}") from error


def _parquet_rows(file: Path) -> list[tuple[int, dict[Any, Any]]]:
    """Return the number, counted from 1, and the cells of each row of a Parquet file."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(f"{file}: reading Parquet needs pyarrow: pip install 'fedcopl[parquet]'") from error
    try:
        names = parquet.read_schema(file).names
        _check_columns(file, names)
        table = parquet.read_table(file, columns=[name for name in names if name in _COLUMNS])
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{file}: cannot be read as Parquet: {error}") from error
    return list(enumerate(table.to_pylist(), start=1))


def _check_columns(file: Path, names: Sequence[str]) -> None:
    """Raise DataError for a misspelt column, without which all labels would be lost; other columns are ignored."""
    for name in names:
        if hint := did_you_mean(name.strip().lower(), set(_COLUMNS) - set(names), cutoff=0.75):
            raise DataError(f"{file}: unknown column {name!r}{hint}")
    if "path" not in names:
        raise DataError(f"{file}: has no column path (its columns: {', '.join(names) or 'none'})")


class _ImageColumn(StoredImages):
    """Encoded images in one column of a table."""

    def __init__(self, table: Any, column: str):
        self._table, self._column = table, column
        self._lock = threading.Lock()  # the package is not documented as thread-safe

    def __len__(self) -> int:
        return len(self._table)

    def content(self, index: int) -> bytes:
        with self._lock:
            cell = self._table[index][self._column]
        return Path(cell["path"]).read_bytes() if cell["bytes"] is None else bytes(cell["bytes"])

    def take(self, indices: Sequence[int]) -> Self:
        subset = copy.copy(self)
        subset._table = self._table.select(indices)
        return subset


def read_huggingface(data: Data) -> Dataset:
    """Read the splits `train` and `test` of a data set in a folder or on the hub; a single table is the split train."""
    try:
        package = import_module("datasets")
    except ImportError as error:
        raise DataError("data.source: huggingface needs: pip install 'fedcopl[datasets]'") from error
    if not data.path:
        raise DataError("data.path: data.source=huggingface needs a folder of save_to_disk, or a name on the hub")
    folder = Path(data.path).expanduser()
    try:
        loaded = package.load_from_disk(str(folder)) if folder.is_dir() else package.load_dataset(data.path)
    except Exception as error:  # of the package, the network and the file system
        raise DataError(f"{data.path}: cannot be loaded: {' '.join(str(error).split())}") from error
    tables: Mapping[str, Any] = loaded if isinstance(loaded, Mapping) else {"train": loaded}
    if "train" not in tables:
        raise DataError(f"{data.path}: has no split train (its splits: {', '.join(tables)})")
    features = tables["train"].features
    image = _find_column(data.path, features, package.Image, "")
    label = _find_column(data.path, features, package.ClassLabel, data.label_column)
    splits = []
    for table in (tables["train"], tables.get("test", tables["train"].select([]))):
        labels = np.array(table.select_columns([label])[:][label], np.int64)
        stored = _ImageColumn(table.cast_column(image, package.Image(decode=False)), image)
        # The hub marks images without a label as -1.
        splits.append(ImageSet(stored, labels if len(labels) and labels.min() >= 0 else None))
    return Dataset("huggingface", clean_class_names(features[label].names, data.path), TEMPLATE, splits[0], splits[1])


def _find_column(path: str, features: Mapping[str, Any], kind: type, name: str) -> str:
    """Return the only column of this kind, or the column of this kind with the given name."""
    columns = [column for column, feature in features.items() if isinstance(feature, kind) and name in ("", column)]
    if len(columns) == 1:
        return columns[0]
    if columns:
        listed = ", ".join(columns)
        raise DataError(f"{path}: has several columns of {kind.__name__} ({listed}); name one in data.label_column")
    raise DataError(f"{path}: has no column{f' {name}' if name else ''} of {kind.__name__}")

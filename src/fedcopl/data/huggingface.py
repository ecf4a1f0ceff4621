"""The source `huggingface`: a data set of the `datasets` package, from a folder or from the hub."""

import copy
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..config import Data
from ..errors import DataError
from .dataset import TEMPLATE, Dataset, ImageSet, clean_all
from .images import StoredImages


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
        if cell["bytes"] is not None:
            return bytes(cell["bytes"])
        return Path(cell["path"]).read_bytes()

    def take(self, indices: Sequence[int]) -> Self:
        some = copy.copy(self)
        some._table = self._table.select(indices)
        return some


def read_huggingface(data: Data) -> Dataset:
    """Read the splits `train` and `test`; the labels are the only column of class labels."""
    package = _package()
    tables = _tables(package, data.path)
    if "train" not in tables:
        raise DataError(f"{data.path}: has no split train (its splits: {', '.join(tables)})")
    features = tables["train"].features
    image = _column(data.path, features, package.Image, "")
    label = _column(data.path, features, package.ClassLabel, data.label_column)
    return Dataset(
        "huggingface",
        clean_all(features[label].names, data.path),
        TEMPLATE,
        _image_set(package, tables["train"], image, label),
        _image_set(package, tables.get("test", tables["train"].select([])), image, label),
    )


def _package() -> Any:
    try:
        return import_module("datasets")
    except ImportError as error:
        raise DataError("data.source: huggingface needs: pip install 'fedcopl[datasets]'") from error


def _tables(package: Any, path: str) -> Mapping[str, Any]:
    """Load all splits; a single table counts as train."""
    if not path:
        raise DataError("data.path: huggingface needs a folder written by save_to_disk, or a name on the hub")
    folder = Path(path).expanduser()
    try:
        found = package.load_from_disk(str(folder)) if folder.is_dir() else package.load_dataset(path)
    except Exception as error:  # of the package, the network and the file system
        raise DataError(f"{path}: cannot be loaded: {' '.join(str(error).split())}") from error
    return found if isinstance(found, Mapping) else {"train": found}


def _column(path: str, features: Mapping[str, Any], kind: type, name: str) -> str:
    """Return the only column of this kind, or the one named in the settings."""
    found = [column for column, feature in features.items() if isinstance(feature, kind)]
    if name:
        found = [column for column in found if column == name]
    if len(found) == 1:
        return found[0]
    problem = f"several columns of {kind.__name__} ({', '.join(found)}); name one in data.label_column"
    raise DataError(f"{path}: has {problem if found else f'no column {name} of {kind.__name__}'.replace('  ', ' ')}")


def _image_set(package: Any, table: Any, image: str, label: str) -> ImageSet:
    stored = _ImageColumn(table.cast_column(image, package.Image(decode=False)), image)
    labels = np.array(table.select_columns([label])[:][label], np.int64)
    # The hub marks images without a label as -1.
    return ImageSet(stored, labels if len(labels) and labels.min() >= 0 else None)

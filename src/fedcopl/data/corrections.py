"""An expert's answers, as `fedcopl review --export` writes them."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithm.select import Corrections
from ..errors import DataError
from .dataset import ImageSet, clean
from .digests import digest
from .images import StoredImages


def read_corrections(file: Path, images: ImageSet, classes: Sequence[str]) -> dict[int, int]:
    """Place of an image -> number of its class. Images that are not there, or whose content changed, are left out."""
    index_of = {name: index for index, name in enumerate(images.names)}
    number_of = {name: number for number, name in enumerate(classes)}
    said: dict[int, int] = {}
    for row in read_answer_rows(file):
        index, label = index_of.get(row["file"]), number_of.get(clean(row["label"]))
        if index is not None and label is not None and _is_same(images, index, row.get("digest") or ""):
            said[index] = label
    return said


def corrections_of(part: NDArray[Any], said: Mapping[int, int]) -> Corrections:
    """What was said of one client's images; `part` are their rows in the data set."""
    mine = [(number, said[int(row)]) for number, row in enumerate(part) if int(row) in said]
    index, label = np.array(mine, np.int64).reshape(-1, 2).T
    return Corrections(index, label)


def read_answer_rows(file: Path) -> list[dict[str, str]]:
    """Every row with at least the cells file and label, as they were said."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.DictReader(lines, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{file}: cannot be read as an expert's answers: {getattr(error, 'strerror', None) or error}"
        ) from error
    if rows and not {"file", "label"} <= set(rows[0]):
        raise DataError(f"{file}: has no columns file and label; write it with fedcopl review --export")
    return [{name: _plain(cell or "") for name, cell in row.items() if isinstance(name, str)} for row in rows]


def _plain(cell: str) -> str:
    """Without the apostrophe that keeps a spreadsheet from working the cell out."""
    return cell[1:] if cell[:1] == "'" and cell[1:2] in ("=", "+", "-", "@", "\t", "\r") else cell


def _is_same(images: ImageSet, index: int, known: str) -> bool:
    stored = images.images
    if not known:
        return True
    if isinstance(stored, StoredImages):
        return digest(stored.kind(index), stored.content(index)) == known
    return digest(stored[index].mode, stored[index].tobytes()) == known

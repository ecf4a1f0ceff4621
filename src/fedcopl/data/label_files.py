"""An expert's answers, as `fedcopl review --export` writes them."""

import csv
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithm import FloatArray
from ..algorithm.select import Corrections
from ..errors import DataError
from .dataset import ImageSet, clean
from .images import StoredImages, digest


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


def read_class_prior(file: Path) -> dict[str, Any]:
    """Class -> share, of JSON {class: share} or of a table `class,share`; the numbers are not looked at yet."""
    if not file.is_file():
        raise DataError(f"{file}: there is no such file of shares")
    try:
        text = file.read_text(encoding="utf-8-sig")
        return _of_pairs(_pairs_of_json(text) if file.suffix.lower() == ".json" else _pairs_of_csv(text))
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        raise DataError(f"{file}: cannot be read as a mix of classes: {error}") from error


def _pairs_of_json(text: str) -> list[tuple[str, Any]]:
    shares = json.loads(text, object_pairs_hook=list)
    if not isinstance(shares, list) or not all(isinstance(pair, tuple) for pair in shares):
        raise ValueError('write it as {"class": share, ...}')
    return shares


def _pairs_of_csv(text: str) -> list[tuple[str, Any]]:
    rows = csv.DictReader(text.splitlines(), strict=True)
    if not {"class", "share"} <= set(rows.fieldnames or ()):
        raise ValueError("its first line must be class,share")
    return [(row["class"] or "", row["share"]) for row in rows]


def _of_pairs(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    shares: dict[str, Any] = {}
    for name, share in pairs:
        if clean(name) in shares:
            raise ValueError(f"it names {name!r} twice")
        shares[clean(name)] = share
    return shares


def class_prior_of(given: Mapping[str, Any], classes: Sequence[str], origin: str) -> FloatArray:
    """One share for each class, (C,), made to add up to 1; `origin` says in the message where they came from."""
    shares = {clean(str(name)): share for name, share in given.items()}
    for name in shares:
        if name not in classes:
            near = difflib.get_close_matches(name, classes, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{origin}: {name!r} is none of the classes{hint}")
    missing = [name for name in classes if name not in shares]
    if missing:
        raise DataError(f"{origin}: has no share for {missing[0]!r}; every class needs one, 0 if it does not occur")
    class_prior = np.array([_share(shares[name], name, origin) for name in classes])
    if not class_prior.any():
        raise DataError(f"{origin}: all shares are 0; at least one class must occur")
    scaled = class_prior / class_prior.max()  # first, so that no sum is too large
    shares_above_0 = np.maximum(scaled / scaled.sum(), np.finfo(np.float64).tiny)
    normed: FloatArray = shares_above_0 / shares_above_0.sum()
    return normed


def _share(value: Any, name: str, origin: str) -> float:
    try:
        share = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        share = math.nan
    if not math.isfinite(share) or share < 0:
        raise DataError(f"{origin}: the share of {name!r} is {value!r:.40}; it must be a number, 0 or more")
    return share

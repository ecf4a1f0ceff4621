"""In what mix classes occur, as people write it down: a table `class,share`, or JSON."""

import csv
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithm import FloatArray
from ..errors import DataError
from .dataset import clean


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

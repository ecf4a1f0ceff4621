"""Files about labels: labels by an expert, exported by `fedcopl review --export`, and class priors."""

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithm import FloatArray
from ..algorithm.select import Corrections
from ..errors import DataError, did_you_mean
from .dataset import ImageSet, clean_class_name


def read_corrections(file: Path, images: ImageSet, classes: Sequence[str]) -> dict[int, int]:
    """Read an expert's labels as position of the image -> number of the class.

    Labels of other classes, and of images that are not in the set or have changed since, are ignored.
    """
    index_of = {name: index for index, name in enumerate(images.names)}
    number_of = {name: number for number, name in enumerate(classes)}
    labels: dict[int, int] = {}
    for row in read_answer_rows(file):
        index, label = index_of.get(row["file"]), number_of.get(clean_class_name(row["label"]))
        if index is None or label is None:
            continue
        expected = row.get("digest")
        if not expected or images.images.digest(index) == expected:
            labels[index] = label
    return labels


def corrections_of(part: NDArray[Any], labels: Mapping[int, int]) -> Corrections:
    """Select the expert's labels of one client; `part` are the positions of its images in the data set."""
    pairs = [(index, labels[int(row)]) for index, row in enumerate(part) if int(row) in labels]
    index, label = np.array(pairs, np.int64).reshape(-1, 2).T
    return Corrections(index, label)


def read_answer_rows(file: Path) -> list[dict[str, str]]:
    """Read all rows of a table of expert labels; each has at least the cells file and label."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.DictReader(lines, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{file}: cannot be read as a table of expert labels: {reason}") from error
    if rows and not {"file", "label"} <= set(rows[0]):
        raise DataError(f"{file}: has no columns file and label; write it with fedcopl review --export")
    # The export adds an apostrophe before these characters, so that no spreadsheet evaluates the cell.
    escaped = re.compile(r"\A'(?=[=+@\t\r-])")
    return [{name: escaped.sub("", cell or "") for name, cell in row.items() if isinstance(name, str)} for row in rows]


def read_class_prior(file: Path) -> dict[str, Any]:
    """Read shares by class from JSON {class: share} or from a table `class,share`, without validating them."""
    if not file.is_file():
        raise DataError(f"{file}: there is no such file with a class prior")
    try:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix.lower() == ".json":
            pairs = json.loads(text, object_pairs_hook=list)
            if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
                raise ValueError('write it as {"class": share, ...}')
        else:
            rows = csv.DictReader(text.splitlines(), strict=True)
            if not {"class", "share"} <= set(rows.fieldnames or ()):
                raise ValueError("its first line must be class,share")
            pairs = [(row["class"] or "", row["share"]) for row in rows]
        shares: dict[str, Any] = {}
        for name, share in pairs:
            if clean_class_name(name) in shares:
                raise ValueError(f"it names {name!r} twice")
            shares[clean_class_name(name)] = share
        return shares
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        raise DataError(f"{file}: cannot be read as a class prior: {error}") from error


def parse_class_prior(given: Mapping[str, Any], classes: Sequence[str], origin: str) -> FloatArray:
    """Convert shares by class to a class prior, (C,), of sum 1; error messages contain the `origin` of the shares."""
    shares = {clean_class_name(str(name)): share for name, share in given.items()}
    for name in shares:
        if name not in classes:
            raise DataError(f"{origin}: {name!r} is not one of the classes{did_you_mean(name, classes)}")
    missing = [name for name in classes if name not in shares]
    if missing:
        raise DataError(f"{origin}: has no share for {missing[0]!r}; every class needs one, 0 if it does not occur")
    class_prior = np.array([_share(shares[name], name, origin) for name in classes])
    if not class_prior.any():
        raise DataError(f"{origin}: all shares are 0; at least one class must occur")
    scaled = class_prior / class_prior.max()  # avoids overflow of the sum
    positive = np.maximum(scaled / scaled.sum(), np.finfo(np.float64).tiny)
    normalised: FloatArray = positive / positive.sum()
    return normalised


def _share(value: Any, name: str, origin: str) -> float:
    try:
        share = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        share = math.nan
    if not math.isfinite(share) or share < 0:
        raise DataError(f"{origin}: the share of {name!r} is {value!r:.40}; it must be a number, 0 or more")
    return share

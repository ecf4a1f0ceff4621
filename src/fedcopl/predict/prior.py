"""What a classifier knows before it sees an image: the priors of its federation, and in what mix classes occur here."""

import csv
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithm import FloatArray
from ..algorithm.priors import Learned, learn_nothing
from ..data.dataset import clean
from ..errors import ConfigError, DataError, ModelError
from ..run.folder import SITE_MIX

PRIOR = "prior/"  # before the names of its arrays, among a classifier's others
NUMBERS = ("text", "tempering", "calm", "sure", "uneven")  # of `Learned`, in the order of their array
WORDS = ("site", "none", "images")  # for --prior; anything else is a file


@dataclass(frozen=True)
class Prior:
    """What all sites know, and the mix of classes that answers are given for: the site's own, unless it was changed."""

    learned: Learned
    mix: FloatArray  # (C,), positive, of sum 1

    @classmethod
    def of_nothing(cls, classes: int) -> "Prior":
        """For a classifier without priors: no lean, no prototypes, and all classes equally common."""
        learned = learn_nothing(classes)
        return cls(learned, learned.reading.mix)

    def answers(self, log_probs: FloatArray, features: FloatArray) -> FloatArray:
        """log p~ of new images, (n, C), from log p and the features of plain CLIP."""
        return self.learned.answers(log_probs, features, self.mix)

    def everybodys(self) -> "Prior":
        """For images of anywhere: the mix of all sites together."""
        return self.with_mix(self.learned.reading.mix)

    def with_mix(self, mix: FloatArray) -> "Prior":
        return replace(self, mix=mix)

    def fitted_to(self, log_probs: FloatArray, features: FloatArray) -> "Prior":
        """For these images: in the mix that they themselves show."""
        view = self.learned.view(log_probs, features)
        return self.with_mix(view.site_prior(self.learned.reading).mix)

    def named_mix(self, classes: Sequence[str]) -> dict[str, float]:
        return dict(zip(classes, self.mix.tolist(), strict=True))

    def to_arrays(self) -> dict[str, FloatArray]:
        """All of it, to be stored."""
        return {**self.learned.to_arrays(), SITE_MIX: self.mix}

    def to_numbers(self) -> dict[str, float]:
        """What can be read without the arrays."""
        return dict(zip(NUMBERS, self.learned.to_arrays()["numbers"].tolist(), strict=True))


def prior_from(arrays: Mapping[str, FloatArray], classes: int, width: int) -> Prior:
    """What `Prior.to_arrays` gave; ModelError for anything that could not have been."""
    fitting: dict[str, tuple[int, ...]] = {
        "bias": (classes,),
        "mix": (classes,),
        "numbers": (len(NUMBERS),),
        SITE_MIX: (classes,),
    }
    if "whiten" in arrays:
        fitting |= {"images": (classes,), "total": (classes, width), "whiten": (width, width)}
    for name, shape in fitting.items():
        if name not in arrays:
            raise ModelError(f"the priors lack the array {name!r}")
        if arrays[name].shape != shape:
            raise ModelError(f"the array {name!r} of the priors has the shape {arrays[name].shape}, not {shape}")
    if any(not (mix > 0).all() or not math.isclose(mix.sum(), 1) for mix in (arrays["mix"], arrays[SITE_MIX])):
        raise ModelError("a mix of classes in the priors is not positive shares that add up to 1")
    return Prior(Learned.from_arrays({name: arrays[name] for name in fitting}), arrays[SITE_MIX])


def read_shares(file: Path) -> dict[str, Any]:
    """Class -> share, of JSON {class: share} or of a table `class,share`; the numbers are not looked at yet."""
    if not file.is_file():
        raise ConfigError(f"--prior: {str(file)!r} is neither {', '.join(WORDS)} nor a file of shares")
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


def mix_of(given: Mapping[str, Any], classes: Sequence[str], origin: str) -> FloatArray:
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
    mix = np.array([_share(shares[name], name, origin) for name in classes])
    if not mix.any():
        raise DataError(f"{origin}: all shares are 0; at least one class must occur")
    scaled = mix / mix.max()  # first, so that no sum is too large
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

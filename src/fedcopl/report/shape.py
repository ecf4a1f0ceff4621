"""The outcome of any run in one shape, whichever engine wrote it; what cannot be one is refused with the reason.

A server of real sites knows less than a simulation: no truth, nobody's counts, nobody's number of images. What is not
known is None, or an empty list.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .curves import KINDS
from .narrative import Results

Kind = type | tuple[type, ...]
Shape = Mapping[str, Kind]

NUMBER = (int, float)
MAYBE = (int, float, type(None))
LARGEST = 1e15  # counts, bytes and seconds beyond this are none
RUN: Shape = {
    "name": str,
    "seed": int,
    "classes": list,
    "rounds": list,
    "settings": dict,
    "seconds": NUMBER,
    "bytes_up": int,
    "bytes_down": int,
}
PARTS: Shape = {
    "zero_shot": dict,
    "final": dict,
    "best": dict,
    "refreshes": list,
    "clients": list,
    "versions": dict,
    "images_used": int,
}
ROUND: Shape = {
    "round": int,
    "participants": int,
    "examples": int,
    "loss": MAYBE,
    "bytes_up": int,
    "bytes_down": int,
    "seconds": NUMBER,
    "refreshed": bool,
    "kept_old_prompt": bool,
    "labelling": (dict, type(None)),
    "dropped": dict,
    "clients": list,
    "drift": (dict, type(None)),
    "recall": (list, type(None)),
    "seconds_of": dict,
    **dict.fromkeys(KINDS, MAYBE),
}
LABELLING: Shape = dict.fromkeys(("images", "chosen", "compared", "unchanged"), int)
REFRESH: Shape = {
    "round": int,
    "images": int,
    "estimated": list,
    "allocated": list,
    "selected": list,
    **dict.fromkeys(("pseudo_label_accuracy", "distribution_similarity", "coverage", "mean_set_size"), MAYBE),
}
UNKNOWN: Results = dict.fromkeys(("distribution_similarity", "coverage", "mean_set_size"))
CLIENT: Shape = {
    "name": str,
    "train": (int, type(None)),
    "test": (int, type(None)),
    "zero_shot": MAYBE,
    "final": MAYBE,
    "true_counts": (list, type(None)),
}
SCORES: Shape = dict.fromkeys(KINDS, MAYBE)
UNMEASURED: Results = dict.fromkeys(KINDS)
QUIET: Results = {
    "drift": None,
    "recall": None,
    "labelling": None,
    "clients": [],
    "dropped": {},
    "seconds_of": {},
    **UNMEASURED,
}


def completed(results: Results) -> dict[str, Any]:
    """The same with everything that a page asks for; ValueError says what is wrong with it."""
    _check(results, RUN, "")
    rounds = [{**QUIET, **record} for record in _mappings(results["rounds"], "rounds")]
    if not rounds:
        raise ValueError("rounds is empty")
    whole = {
        "zero_shot": {},
        "final": {},
        "best": {},
        "refreshes": [],
        "clients": [_unknown(name) for name in results.get("sites", [])],
        "versions": {},
        "images_used": rounds[-1].get("examples"),
        **results,
        "rounds": rounds,
    }
    _check(whole, PARTS, "")
    whole["refreshes"] = [{**UNKNOWN, **refresh} for refresh in _mappings(whole["refreshes"], "refreshes")]
    _check_lists(whole)
    return _with_headlines(whole)


def _unknown(name: object) -> dict[str, Any]:
    return {"name": name, **dict.fromkeys(("train", "test", "zero_shot", "final", "true_counts"))}


def _with_headlines(whole: dict[str, Any]) -> dict[str, Any]:
    """The last round and the best; of a run that is not finished the last round that was evaluated."""
    measured = [record for record in whole["rounds"] if record["macro"] is not None] or whole["rounds"]
    best = max(measured, key=lambda record: record["macro"] or 0)
    for key, record in {"final": measured[-1], "best": best}.items():
        told = whole[key].get("macro") is not None
        whole[key] = {**UNMEASURED, **whole[key]} if told else {name: record[name] for name in (*KINDS, "round")}
        _check(whole[key], {**SCORES, "round": int}, f"{key}.")
    scores = measured[-1]["clients"]
    in_place = "sites" not in whole and len(scores) == len(whole["clients"])  # real sites come and go: whose is which?
    if in_place and all(client["final"] is None for client in whole["clients"]):
        whole["clients"] = [{**client, "final": score} for client, score in zip(whole["clients"], scores, strict=True)]
    whole["zero_shot"] = {**UNMEASURED, **whole["zero_shot"]}
    _check(whole["zero_shot"], SCORES, "zero_shot.")
    return whole


def _check_lists(results: Results) -> None:
    """Every list holds what it should, as many as it should."""
    classes, clients = len(results["classes"]), len(results["clients"])
    for key in ("classes", "shared"):
        names = results.get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{key} is not a list of names")
    if not classes:
        raise ValueError("classes is empty")
    for n, record in enumerate(results["rounds"]):
        _check(record, ROUND, f"rounds[{n}].")
        _check_recall(record["recall"], classes, f"rounds[{n}].recall")
        _check_numbers(record["clients"], f"rounds[{n}].clients")
        _check_numbers(list(record["seconds_of"].values()), f"rounds[{n}].seconds_of")
        if record["labelling"] is not None:
            _check(record["labelling"], LABELLING, f"rounds[{n}].labelling.")
        for name, drift in (record["drift"] or {}).items():
            _check(drift, {"diversity": MAYBE, "cosine": MAYBE}, f"rounds[{n}].drift.{name}.", math.inf)
    for n, refresh in enumerate(results["refreshes"]):
        _check(refresh, REFRESH, f"refreshes[{n}].")
        for key in ("estimated", "allocated", "selected"):
            _check_table(refresh[key], clients, classes, f"refreshes[{n}].{key}")
    for n, client in enumerate(_mappings(results["clients"], "clients")):
        _check(client, CLIENT, f"clients[{n}].")
        _check_counts(client["true_counts"] or [], classes, f"clients[{n}].true_counts")
    _check_recall(results["zero_shot"].get("recall"), classes, "zero_shot.recall")


def _check(found: Results, shape: Shape, place: str, largest: float = LARGEST) -> None:
    if not isinstance(found, Mapping):
        raise ValueError(f"{place.rstrip('.') or 'it'} is no object")
    for key, kind in shape.items():
        if key not in found:
            raise ValueError(f"{place}{key} is missing")
        if not _is(found[key], kind, largest):
            raise ValueError(f"{place}{key} is {found[key]!r:.40}")


def _is(value: Any, kind: Kind, largest: float = LARGEST) -> bool:
    """Of this kind, and no number beyond all sense; True is a number to Python, but not to us."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind) and not (isinstance(value, NUMBER) and abs(value) > largest)


def _mappings(found: object, name: str) -> list[Results]:
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise ValueError(f"{name} is not a list of objects")
    return found


def _check_table(rows: Sequence[Any], clients: int, classes: int, place: str) -> None:
    if len(rows) != clients:
        raise ValueError(f"{place} has {len(rows)} rows for {clients} clients")
    for n, row in enumerate(rows):
        _check_counts(row, classes, f"{place}[{n}]")


def _check_counts(row: Any, classes: int, place: str) -> None:
    """One count for each class, or nothing at all from a client that did not answer."""
    counts = isinstance(row, list) and all(_is(one, int) and one >= 0 for one in row)
    if not counts or len(row) not in (0, classes):
        raise ValueError(f"{place} is not one count for each of {classes} classes")


def _check_recall(row: Any, classes: int, place: str) -> None:
    _check_numbers(row or [], place)
    if row and len(row) != classes:
        raise ValueError(f"{place} is not one number for each of {classes} classes")


def _check_numbers(row: Any, place: str) -> None:
    if not isinstance(row, list) or not all(_is(one, MAYBE) for one in row):
        raise ValueError(f"{place} is not a list of numbers")

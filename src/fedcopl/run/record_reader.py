"""Reading of outcomes from JSON: missing keys get their defaults, invalid values are dropped and reported.

>>> from .record import Outcome, RoundRecord, to_plain
>>> run = Outcome(name="demo", classes=("cat", "dog"), method="FedCoPL", rounds=(RoundRecord(round=0, loss=0.5),))
>>> read_outcome(to_plain(run)).outcome == run
True
>>> damaged = to_plain(run) | {"seed": "seven"}
>>> read_outcome(damaged).errors
("seed is 'seven'",)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ..plurals import counted
from .record import Counts, Outcome, RoundRecord, adapter


@dataclass(frozen=True)
class ReadOutcome:
    """An outcome, and one line for each value that was invalid: `rounds[3].loss is 'high'`."""

    outcome: Outcome
    errors: tuple[str, ...] = ()


def read_outcome(plain: object) -> ReadOutcome:
    """Return the outcome in the content of results.json, without invalid values."""
    valid, errors = _read(Outcome, plain)
    outcome = valid or Outcome()
    return ReadOutcome(outcome, (*errors, *_wrong_lengths(outcome)))


def read_rounds(lines: Sequence[object]) -> tuple[RoundRecord, ...]:
    """Return the valid lines of rounds.jsonl in the order of their rounds; of a repeated round the last."""
    records = [record for record in (_read(RoundRecord, line)[0] for line in lines) if record is not None]
    by_round = {record.round: record for record in records}
    return tuple(by_round[round] for round in sorted(by_round))


def _read(kind: type, plain: object) -> tuple[Any, list[str]]:
    """Validate data, dropping invalid values until the rest is valid; None if it is invalid as a whole."""
    errors: list[str] = []
    while True:
        try:
            return adapter(kind).validate_python(plain), errors
        except ValidationError as invalid:
            problems = invalid.errors(include_url=False, include_context=False)
        paths = {_existing(plain, error["loc"]): error for error in problems}
        errors += [_describe(path, error) for path, error in paths.items()]
        if () in paths:
            return None, errors
        for path in sorted(paths, key=_order, reverse=True):  # the last of a list first: the other indices stay valid
            plain = _without(plain, path)


def _existing(plain: Any, location: Sequence[int | str]) -> tuple[int | str, ...]:
    """Return the part of pydantic's location that is in the data, without union branches and missing keys."""
    path: list[int | str] = []
    for key in location:
        known = range(len(plain)) if isinstance(plain, list) else plain if isinstance(plain, Mapping) else ()
        if key not in known:
            break
        plain = plain[key]
        path.append(key)
    return tuple(path)


def _order(path: Sequence[int | str]) -> list[tuple[int, str]]:
    return [(part, "") if isinstance(part, int) else (-1, part) for part in path]


def _without(plain: Any, path: Sequence[int | str]) -> Any:
    """Return a copy without the value at this path."""
    key, *below = path
    if isinstance(plain, Mapping):
        rest = {name: value for name, value in plain.items() if name != key}
        return rest | ({key: _without(plain[key], below)} if below else {})
    position = int(key)
    kept = [_without(plain[position], below)] if below else []
    return [*plain[:position], *kept, *plain[position + 1 :]]


def _describe(path: Sequence[int | str], error: Any) -> str:
    location = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".") or "it"
    if error["type"] == "missing":
        return f"{location}.{error['loc'][-1]} is missing"
    return f"{location} is {error['input']!r:.40}"


def _wrong_lengths(outcome: Outcome) -> Iterator[str]:
    """Yield one line for each list that has not one entry per client or class."""
    classes, clients = len(outcome.classes), len(outcome.clients)
    for n, refresh in enumerate(outcome.refreshes):
        for kind in ("estimated", "allocated", "selected"):
            rows: tuple[Counts, ...] = getattr(refresh, kind)
            if len(rows) != clients:
                yield f"refreshes[{n}].{kind} has {len(rows)} rows for {counted(clients, 'client')}"
            elif any(len(row) not in (0, classes) for row in rows):
                yield f"refreshes[{n}].{kind} is not one count for each of {classes} classes"
        if len(refresh.class_prior) not in (0, clients):
            yield f"refreshes[{n}].class_prior has {len(refresh.class_prior)} rows for {counted(clients, 'client')}"
        elif any(len(row) not in (0, classes) for row in refresh.class_prior):
            yield f"refreshes[{n}].class_prior is not one share for each of {classes} classes"
    for n, client in enumerate(outcome.clients):
        if len(client.true_counts or ()) not in (0, classes):
            yield f"clients[{n}].true_counts is not one count for each of {classes} classes"
    recalls = {f"rounds[{n}].recall": record.recall for n, record in enumerate(outcome.rounds)}
    for location, recall in {"zero_shot.recall": outcome.zero_shot.recall, **recalls}.items():
        if len(recall or ()) not in (0, classes):
            yield f"{location} is not one number for each of {classes} classes"

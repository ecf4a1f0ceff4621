"""Outcomes from plain data of any version: what is missing is unknown, what is damaged is left out and named.

>>> from .record import Outcome, RoundRecord, to_plain
>>> run = Outcome(name="demo", classes=("cat", "dog"), method="FedCoPL", rounds=(RoundRecord(round=0, loss=0.5),))
>>> read_outcome(to_plain(run)).outcome == run
True
>>> damaged = to_plain(run) | {"seed": "seven"}
>>> read_outcome(damaged).complaints
("seed is 'seven'",)
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from ..plurals import counted
from .record import ClientRecord, Counts, Outcome, RoundRecord, adapter


@dataclass(frozen=True)
class ReadOutcome:
    """What could be read, and what could not: `rounds[3].loss is 'high'`."""

    outcome: Outcome
    complaints: tuple[str, ...] = ()


def read_outcome(plain: object) -> ReadOutcome:
    """The outcome in plain data of any version: what is missing is unknown, what is damaged is left out and named."""
    found, complaints = _read(Outcome, plain)
    outcome = _of_this_version(found or Outcome())
    return ReadOutcome(outcome, (*complaints, *_misfits(outcome)))


def _of_this_version(outcome: Outcome) -> Outcome:
    """Version 0.1 said nothing of its methods, and a server wrote the names of its sites only."""
    if outcome.sites and not outcome.clients:
        outcome = replace(outcome, clients=tuple(ClientRecord(name=name) for name in outcome.sites))
    if outcome.method or not outcome.rounds:
        return outcome
    method = outcome.setting("method")
    clients = tuple(_with_scores(outcome))
    return replace(outcome, clients=clients, trains=method != "zeroshot", pools=method == "central")


def _with_scores(outcome: Outcome) -> Iterator[ClientRecord]:
    """Version 0.1 gave a client the score of the last round, also where that one was not measured."""
    scores = outcome.final.clients
    whose = outcome.sites is None and len(scores) == len(outcome.clients)  # real sites come and go: whose is which?
    unknown = all(client.final is None for client in outcome.clients)
    for number, client in enumerate(outcome.clients):
        yield replace(client, final=scores[number]) if whose and unknown else client


def read_rounds(lines: Sequence[object]) -> tuple[RoundRecord, ...]:
    """The lines of rounds.jsonl that can be read, in the order of their rounds."""
    found = [record for record in (_read(RoundRecord, line)[0] for line in lines) if record is not None]
    by_round = {record.round: record for record in found}
    return tuple(by_round[round] for round in sorted(by_round))


def parse_json(text: bytes | str) -> Any:
    """What is no number (NaN) is not measured; ValueError for what is no JSON."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _read(kind: type, plain: object) -> tuple[Any, list[str]]:
    complaints: list[str] = []
    while True:
        try:
            return adapter(kind).validate_python(plain), complaints
        except ValidationError as error:
            mistakes = error.errors(include_url=False, include_context=False)
        paths = {_existing(plain, mistake["loc"]): mistake for mistake in mistakes}
        complaints += [_complaint(path, mistake) for path, mistake in paths.items()]
        if () in paths:  # nothing of it is what it should be
            return None, complaints
        for path in sorted(paths, key=_order, reverse=True):  # the last of a list first, so that the others stay
            plain = _without(plain, path)


def _existing(plain: Any, location: Sequence[int | str]) -> tuple[int | str, ...]:
    """The part of pydantic's place that is in the data: it adds the branches of unions, and what is missing."""
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
    """A copy without what is at this place."""
    key, *below = path
    if isinstance(plain, Mapping):
        rest = {name: value for name, value in plain.items() if name != key}
        return rest | ({key: _without(plain[key], below)} if below else {})
    position = int(key)
    kept = [_without(plain[position], below)] if below else []
    return [*plain[:position], *kept, *plain[position + 1 :]]


def _complaint(path: Sequence[int | str], mistake: Any) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".") or "it"
    if mistake["type"] == "missing":
        return f"{where}.{mistake['loc'][-1]} is missing"
    return f"{where} is {mistake['input']!r:.40}"


def _misfits(outcome: Outcome) -> Iterator[str]:
    """Lists that are not as long as they should be."""
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
    for where, recall in _recalls(outcome):
        if len(recall or ()) not in (0, classes):
            yield f"{where} is not one number for each of {classes} classes"


def _recalls(outcome: Outcome) -> Iterator[tuple[str, tuple[float | None, ...] | None]]:
    yield "zero_shot.recall", outcome.zero_shot.recall
    yield from ((f"rounds[{n}].recall", record.recall) for n, record in enumerate(outcome.rounds))

"""A run's folder as somebody watches it: read only, never believed, and still there when the folder is not.

All files are optional, and may be of another version or half written: what cannot be read as meant is left out.
"""

import json
import math
import os
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..data.records import printable
from ..runs import ENDED

FILES = ("settings.toml", "rounds.jsonl", "progress.json", "results.json", "server.json", ENDED)
LARGEST = 256_000_000  # bytes of one of them
PATIENCE = 60.0  # seconds without news that are nothing unusual
LONGER = 4  # times the usual round that are
Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class Round:
    """One round, counted from 1; None where the folder does not say."""

    number: int
    refreshed: bool = False
    participants: int | None = None
    trained: tuple[str, ...] | None = None  # who took part
    examples: int | None = None
    loss: float | None = None
    accuracy: Mapping[str, float | None] = field(default_factory=dict)  # macro, weighted, global
    clients: tuple[float | None, ...] = ()  # each client's own accuracy
    pseudo: float | None = None  # share of right pseudo labels, at a refresh in a simulation
    totals: tuple[int, ...] | None = None  # sure images of each class, all clients together, at a refresh
    chosen: float | None = None  # share of all images that are trained on from this refresh on
    unchanged: float | None = None  # share of the labels that are those of the refresh before
    dropped: Mapping[str, str] = field(default_factory=dict)  # whose answers could not be used, and why
    kept_old_prompt: bool = False
    undone: tuple[str, ...] = ()  # what the guard took back, in its words
    seconds: float | None = None  # since the run began


@dataclass(frozen=True)
class Refresh:
    """Images of each class, all clients together: sure before, allowed after the allocation, chosen."""

    round: int
    estimated: tuple[int, ...]
    allocated: tuple[int, ...] = ()
    selected: tuple[int, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """All that is known of a run at one moment."""

    name: str
    planned: int | None = None  # rounds
    rounds: tuple[Round, ...] = ()
    refreshes: tuple[Refresh, ...] = ()
    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    zero_shot: float | None = None
    finished: bool = False
    ended: str = ""  # why it could not go on
    changed: float = 0.0  # when a file was last written, in seconds since 1970
    there: bool = True  # False: the folder is gone, and this is what was last seen

    @property
    def done(self) -> int:
        return self.rounds[-1].number if self.rounds else 0

    @property
    def seconds_per_round(self) -> float | None:
        ends = [r.seconds for r in self.rounds if r.seconds is not None]
        steps = [later - earlier for earlier, later in zip([0.0, *ends], ends, strict=False) if later >= earlier]
        return statistics.median(steps) if steps else None

    def state(self, now: float) -> str:
        """ "gone", "finished", "ended" too early, "waiting" for the first round, "running", or "silent" too long."""
        if not self.there:
            return "gone"
        if self.finished:
            return "finished"
        if self.ended:
            return "ended"
        usual = max(PATIENCE, LONGER * (self.seconds_per_round or 0.0))
        if now - self.changed > usual:
            return "silent"
        return "running" if self.rounds else "waiting"


class Feed:
    """Looks at a run's folder whenever asked, and reads only what changed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._seen: Signature | None = None
        self._last = Snapshot(printable(folder.resolve().name))

    def look(self) -> Snapshot:
        signature, changed = self._signature()
        if not any(signature):  # gone, or replaced by one that is still empty
            self._seen = None
            empty = Snapshot(self._last.name, changed=_changed(self.folder))
            gone = self._last if not self._last.there else replace(self._last, there=False)
            self._last = empty if empty.changed else gone
        elif signature != self._seen:
            self._last = replace(read(self.folder), changed=changed)
            self._seen = signature
        return self._last

    def _signature(self) -> tuple[Signature, float]:
        found = [_traits(self.folder / name) for name in FILES]
        return tuple(found), max((traits[1] / 1e9 for traits in found if traits), default=0.0)


def _changed(folder: Path) -> float:
    """When something was put into it or taken out; 0 if it is not there."""
    traits = _traits(folder)
    return traits[1] / 1e9 if traits else 0.0


def _traits(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(path)
        return stat.st_ino, stat.st_mtime_ns, stat.st_size
    except OSError:
        return None


def read(folder: Path) -> Snapshot:
    settings, results = _toml(folder / "settings.toml"), _object(folder / "results.json")
    told = results or _object(folder / "progress.json")
    lines = _lines(folder / "rounds.jsonl") or [_mapping(line) for line in _list(told.get("rounds"))]
    by_number = {one.number: one for one in (read_round(line) for line in lines if "round" in line)}
    rounds = tuple(by_number[number] for number in sorted(by_number))
    held = [_mapping(client) for client in _list(told.get("clients"))]
    clients = _clients(folder, held, told, rounds)
    planned = _whole(settings.get("rounds"))
    return Snapshot(
        name=_text(settings.get("name")) or printable(folder.resolve().name),
        planned=planned,
        rounds=tuple(_with_everybody(one, clients) for one in rounds),
        refreshes=_refreshes(told, rounds),
        clients=clients,
        classes=_texts(told.get("classes")),
        zero_shot=_share(_mapping(told.get("zero_shot")).get("macro")),
        ended=printable(_content(folder / ENDED).decode(errors="replace").strip()),
        finished=bool(results) and planned is not None and bool(rounds) and rounds[-1].number >= planned,
    )


def read_round(line: Mapping[str, Any]) -> Round:
    return Round(
        number=(_whole(line.get("round")) or 0) + 1,
        refreshed=line.get("refreshed") is True,
        participants=_whole(line.get("participants")),
        trained=_texts(line["sites"]) if isinstance(line.get("sites"), list) else None,
        examples=_whole(line.get("examples")),
        loss=_number(line.get("loss")),
        accuracy={kind: _share(line.get(kind)) for kind in ("macro", "weighted", "global")},
        clients=tuple(_share(value) for value in _list(line.get("clients"))),
        pseudo=_share(line.get("pseudo_label_accuracy")),
        totals=_counts(line["totals"]) if isinstance(line.get("totals"), list) else None,
        chosen=_part(line.get("labelling"), "chosen", "images"),
        unchanged=_part(line.get("labelling"), "unchanged", "compared"),
        dropped={printable(str(who)): _text(why) or "" for who, why in _mapping(line.get("dropped")).items()},
        kept_old_prompt=line.get("kept_old_prompt") is True,
        undone=_texts(_list(_mapping(line.get("guard")).get("words"))),
        seconds=_number(line.get("seconds")),
    )


def _part(told: Any, part: str, whole: str) -> float | None:
    some, of = (_whole(_mapping(told).get(key)) for key in (part, whole))
    return None if some is None or not of else min(1.0, some / of)


def _with_everybody(one: Round, clients: tuple[str, ...]) -> Round:
    """Where as many took part as there are, their names need not be told."""
    everybody = one.trained is None and clients and one.participants == len(clients)
    return replace(one, trained=clients) if everybody else one


def _refreshes(told: Mapping[str, Any], rounds: Sequence[Round]) -> tuple[Refresh, ...]:
    """A simulation knows all counts of all clients; a server of a real federation only the sums before."""
    found = [_mapping(refresh) for refresh in _list(told.get("refreshes"))]
    if found:
        return tuple(
            Refresh(
                (_whole(refresh.get("round")) or 0) + 1,
                *(_summed(refresh.get(kind)) for kind in ("estimated", "allocated", "selected")),
            )
            for refresh in found
        )
    return tuple(Refresh(one.number, one.totals) for one in rounds if one.totals is not None)


def _clients(
    folder: Path, held: Sequence[Mapping[str, Any]], told: Mapping[str, Any], rounds: Sequence[Round]
) -> tuple[str, ...]:
    """Everybody who is known to belong to the run, in the order they are known."""
    known = [_text(client.get("name")) or "?" for client in held] or _texts(told.get("sites"))
    listed = _mapping(_object(folder / "server.json").get("sites"))
    seen = [name for one in rounds for name in (*(one.trained or ()), *one.dropped)]
    return tuple(dict.fromkeys([*known, *(printable(str(name)) for name in listed), *seen]))


def _summed(rows: Any) -> tuple[int, ...]:
    counts = [row for row in (_counts(row) for row in _list(rows)) if row]
    return tuple(map(sum, zip(*counts, strict=True))) if len({len(row) for row in counts}) == 1 else ()


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST)
    except OSError:
        return b""


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(_content(path).decode())
    except ValueError:
        return {}


def _object(path: Path) -> Mapping[str, Any]:
    return _mapping(_json(_content(path)))


def _lines(path: Path) -> list[Mapping[str, Any]]:
    return [line for line in (_mapping(_json(text)) for text in _content(path).splitlines()) if line]


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return printable(value) if isinstance(value, str) else None


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(printable(text) for text in _list(value) if isinstance(text, str))


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if is_number and math.isfinite(value) else None


def _share(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and 0 <= number <= 1 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15 else None


def _counts(value: Any) -> tuple[int, ...]:
    return tuple(_whole(number) or 0 for number in _list(value))

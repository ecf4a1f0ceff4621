"""A run's folder as somebody watches it: read only, never believed, and still there when the folder is not.

All files are optional, and may be of another version or half written: what cannot be read as meant is left out.
"""

import os
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data.dataset import printable
from ..run.folder import ENDED, PROGRESS, RESULTS, ROUNDS, SETTINGS
from ..run.record import Counts, Outcome, RoundRecord
from ..run.record_reader import parse_json, read_outcome, read_rounds

SERVER = "server.json"  # of a server of real sites: everybody who ever joined
FILES = (SETTINGS, ROUNDS, PROGRESS, RESULTS, SERVER, ENDED)
LARGEST = 256_000_000  # bytes of one of them
PATIENCE = 60.0  # seconds without news that are nothing unusual
LONGER = 4  # times the usual round that are
MOST_ROUNDS = 10**9  # more are no plan
Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class RefreshTotals:
    """Images of each class, all clients together: sure before, allowed after the allocation, chosen."""

    round: int  # counted from 1
    estimated: Counts
    allocated: Counts = ()
    selected: Counts = ()


@dataclass(frozen=True)
class Snapshot:
    """All that is known of a run at one moment."""

    outcome: Outcome
    clients: tuple[str, ...] = ()  # everybody who is known to belong to it
    planned: int | None = None  # rounds
    finished: bool = False
    ended: str = ""  # why it could not go on
    changed: float = 0.0  # when a file was last written, in seconds since 1970
    there: bool = True  # False: the folder is gone, and this is what was last seen

    @property
    def name(self) -> str:
        return self.outcome.name

    @property
    def zero_shot(self) -> float | None:
        return self.outcome.zero_shot.macro

    @property
    def done(self) -> int:
        return self.outcome.rounds[-1].number if self.outcome.rounds else 0

    @property
    def refreshes(self) -> tuple[RefreshTotals, ...]:
        """A simulation knows all counts of all clients; a server of a real federation only the sums before."""
        if not self.outcome.refreshes:
            rounds = self.outcome.rounds
            return tuple(RefreshTotals(one.number, one.totals) for one in rounds if one.totals is not None)
        return tuple(
            RefreshTotals(one.round + 1, *map(_summed, (one.estimated, one.allocated, one.selected)))
            for one in self.outcome.refreshes
        )

    @property
    def seconds_per_round(self) -> float | None:
        ends = [record.seconds for record in self.outcome.rounds if record.seconds]
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
        return "running" if self.outcome.rounds else "waiting"


def _summed(rows: Sequence[Counts]) -> Counts:
    """Over all clients that answered; nothing where their rows do not fit together."""
    answered = [row for row in rows if row]
    return tuple(map(sum, zip(*answered, strict=True))) if len(set(map(len, answered))) == 1 else ()


class Feed:
    """Looks at a run's folder whenever asked, and reads only what changed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._seen: Signature | None = None
        self._last = Snapshot(Outcome(name=_folder_name(folder)))

    def look(self) -> Snapshot:
        signature, changed = self._signature()
        if not any(signature):  # gone, or replaced by one that is still empty
            self._seen = None
            empty = Snapshot(Outcome(name=self._last.name), changed=_changed(self.folder))
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
    settings, results = _toml(folder / SETTINGS), _mapping(_json(_content(folder / RESULTS)))
    outcome = read_outcome(results or _mapping(_json(_content(folder / PROGRESS)))).outcome
    rounds = read_rounds([_json(line) for line in _content(folder / ROUNDS).splitlines()]) or outcome.rounds
    clients = _clients(folder, outcome, rounds)
    name = settings.get("name")
    known = replace(
        outcome,
        name=printable(name) if name and isinstance(name, str) else _folder_name(folder),
        rounds=tuple(_with_everybody(record, clients) for record in rounds),
    )
    seen = Snapshot(known, clients, _planned(settings), ended=_content(folder / ENDED).decode(errors="replace").strip())
    return replace(seen, finished=bool(results) and seen.planned is not None and seen.done >= max(seen.planned, 1))


def _planned(settings: Mapping[str, Any]) -> int | None:
    rounds = settings.get("rounds")
    return rounds if type(rounds) is int and 0 <= rounds < MOST_ROUNDS else None  # True is an int to Python


def _folder_name(folder: Path) -> str:
    return printable(folder.resolve().name)


def _clients(folder: Path, outcome: Outcome, rounds: Sequence[RoundRecord]) -> tuple[str, ...]:
    """Everybody who is known to belong to the run, in the order they are known."""
    known = [client.name for client in outcome.clients] or outcome.sites or ()
    joined = _mapping(_mapping(_json(_content(folder / SERVER))).get("sites"))
    seen = [name for record in rounds for name in (*(record.sites or ()), *record.dropped, *record.missed_refresh)]
    return tuple(dict.fromkeys([*known, *joined, *seen]))


def _with_everybody(record: RoundRecord, clients: tuple[str, ...]) -> RoundRecord:
    """Where as many took part as there are, their names need not be said."""
    everybody = record.sites is None and clients and record.participants == len(clients)
    return replace(record, sites=clients) if everybody else record


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST)
    except OSError:
        return b""


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(_content(path).decode())
    except (ValueError, RecursionError):
        return {}


def _json(text: bytes) -> Any:
    try:
        return _printable(parse_json(text))
    except (ValueError, RecursionError):
        return None


def _printable(plain: Any) -> Any:
    """All texts fit for a page: names of files and sites may hold bytes that are no text."""
    if isinstance(plain, str):
        return printable(plain)
    if isinstance(plain, list):
        return [_printable(one) for one in plain]
    if isinstance(plain, dict):
        return {printable(key): _printable(value) for key, value in plain.items()}
    return plain


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}

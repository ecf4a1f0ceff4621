"""Clients' states in files instead of memory: for simulations of thousands of clients.

A state is appended to a file of the process that made it, and found again by its span of bytes there. What many
clients were told is a file of its own, named by its content, so it is there once. Between two checkpoints nothing that
the last one names is changed or deleted: a run that was killed goes on from there.

| file in states/ | what it holds |
|---|---|
| 000003-4711.states | states made after the third checkpoint, by process 4711 |
| <digest>.common | one array that several clients have |
"""

import json
import math
import os
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import RunFolderError
from ..federation.client import ClientState
from ..federation.state_arrays import Tensors, state_from, state_tensors
from ..files import make_folders, only_for_owner, write_bytes

STATES = "states"
LARGE = 1024  # bytes: smaller arrays are not worth a file of their own
OPEN = 64  # files that a process reads from
HELD = 64  # arrays of several clients that a process keeps at hand
REMEMBERED = 4096  # digests among which an array that comes again is noticed
WASTE = 4  # times the bytes that are of use: with more, files are written anew
ALIGNED = 8  # bytes, where an array may begin
LONGEST_HEADER = 8  # bytes that say how long the header is
AnyArray = NDArray[Any]


class StateSpan(NamedTuple):
    """Where a state lies."""

    file: str
    start: int
    length: int


class StateFiles:
    """One process's way to the states in a folder: it reads all files, and writes its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._generation = -1
        self._own: BinaryIO | None = None
        self._readers: OrderedDict[str, BinaryIO] = OrderedDict()
        self._held: OrderedDict[str, AnyArray] = OrderedDict()
        self._digests: dict[int, str] = {}  # of the arrays that are held, by id
        self._seen: OrderedDict[str, str] = OrderedDict()  # digests of arrays, and whose each was first

    def write(self, client: str, state: ClientState, generation: int) -> StateSpan:
        """Append a state; the span is good once this has returned."""
        data, file = self._packed(client, state), self._to_write(generation)
        start = file.seek(0, os.SEEK_END)
        file.write(data)
        file.flush()
        return StateSpan(Path(file.name).name, start, len(data))

    def _to_write(self, generation: int) -> BinaryIO:
        if self._own is None or generation != self._generation:
            if self._own is not None:
                self._own.close()
            path = self.folder / f"{generation:06}-{os.getpid()}.states"
            self._own, self._generation = open(path, "ab", opener=only_for_owner), generation  # noqa: SIM115
        return self._own

    def _packed(self, client: str, state: ClientState) -> bytes:
        """A header that names the arrays and says where each is, and behind it each of them once."""
        header: list[tuple[str, str, tuple[int, ...], int | str]] = []
        parts: list[bytes] = []
        found: dict[int, int | str] = {}
        size = 0
        for name, value in state_tensors(state).items():
            if id(value) not in found:
                digest = self._common(client, value)
                found[id(value)] = size if digest is None else digest
                if digest is None:
                    data = value.tobytes()
                    parts.append(data + bytes(-len(data) % ALIGNED))
                    size += len(parts[-1])
            header.append((name, value.dtype.str, value.shape, found[id(value)]))
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % ALIGNED)
        return b"".join([len(head).to_bytes(LONGEST_HEADER, "little"), head, *parts])

    def _common(self, client: str, value: AnyArray) -> str | None:
        """The digest under which an array that several clients have is found; None for others, and the first time."""
        if value.nbytes < LARGE:
            return None
        if id(value) in self._digests:
            return self._digests[id(value)]
        digest = blake2b(f"{value.dtype.str}{value.shape}".encode() + value.tobytes(), digest_size=16).hexdigest()
        if digest in self._held:
            return digest
        if self._seen.setdefault(digest, client) == client:
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
            return None
        if not self._common_file(digest).exists():
            mine = self.folder / f"{digest}.{os.getpid()}"  # another process may be about to write the same
            write_bytes(mine, value.tobytes())
            mine.replace(self._common_file(digest))
        self._hold(digest, value)
        return digest

    def _common_file(self, digest: str) -> Path:
        return self.folder / f"{digest}.common"

    def _hold(self, digest: str, value: AnyArray) -> None:
        self._held[digest], self._digests[id(value)] = value, digest
        if len(self._held) > HELD:
            _, old = self._held.popitem(last=False)
            del self._digests[id(old)]

    def read(self, span: StateSpan) -> ClientState:
        try:
            return state_from(self._unpacked(self.bytes_at(span)))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunFolderError(f"{self.folder / span.file}: holds no state at {span.start}: {error}") from error

    def bytes_at(self, span: StateSpan) -> bytes:
        data = os.pread(self._to_read(span.file).fileno(), span.length, span.start)
        if len(data) != span.length:
            raise ValueError("the file is too short")
        return data

    def _to_read(self, name: str) -> BinaryIO:
        if name not in self._readers:
            self._readers[name] = open(self.folder / name, "rb", buffering=0)  # noqa: SIM115
            if len(self._readers) > OPEN:
                self._readers.popitem(last=False)[1].close()
        return self._readers[name]

    def _unpacked(self, data: bytes) -> Tensors:
        begin = LONGEST_HEADER + int.from_bytes(data[:LONGEST_HEADER], "little")
        arrays: dict[int | str, AnyArray] = {}
        tensors: Tensors = {}
        for name, kind, shape, where in json.loads(data[LONGEST_HEADER:begin]):
            if where not in arrays:
                is_own = isinstance(where, int)
                arrays[where] = (
                    _array(data, kind, shape, begin + where) if is_own else self._read_common(where, kind, shape)
                )
            tensors[name] = arrays[where]
        return tensors

    def _read_common(self, digest: str, kind: str, shape: list[int]) -> AnyArray:
        if digest not in self._held:
            self._hold(digest, _array(self._common_file(digest).read_bytes(), kind, shape, 0))
        return self._held[digest]


def _array(data: bytes, kind: str, shape: list[int], start: int) -> AnyArray:
    """A copy: whoever keeps one array of a state must not keep all of it."""
    return np.frombuffer(data, np.dtype(kind), math.prod(shape), start).reshape(shape).copy()


def files_in(folder: Path) -> StateFiles:
    """This process's way to a folder: a forked one must not write into its parent's file."""
    return _files_of(folder, os.getpid())


@lru_cache(maxsize=8)
def _files_of(folder: Path, process: int) -> StateFiles:
    return StateFiles(folder)


class StatesAsTheyWere(Mapping[str, ClientState]):
    """All states at one moment; their files stay as long as somebody has this."""

    def __init__(self, folder: Path, spans: Mapping[str, StateSpan | None]):
        self.folder, self.spans = folder, dict(spans)

    def __getitem__(self, client: str) -> ClientState:
        span = self.spans[client]
        return ClientState() if span is None else files_in(self.folder).read(span)

    def __iter__(self) -> Iterator[str]:
        return iter(self.spans)

    def __len__(self) -> int:
        return len(self.spans)


class StoredStates(StatesAsTheyWere, MutableMapping[str, ClientState]):
    """All clients' states, of which only the spans are in memory."""

    def __init__(self, folder: Path, spans: Mapping[str, StateSpan | None]):
        super().__init__(folder, spans)
        make_folders(folder)
        self.generation = 1 + max((_generation(file.name) for file in folder.glob("*.states")), default=-1)
        self._moments: list[weakref.ref[StatesAsTheyWere]] = []

    def __setitem__(self, client: str, state: ClientState) -> None:
        self.spans[client] = files_in(self.folder).write(client, state, self.generation)

    def __delitem__(self, client: str) -> None:
        del self.spans[client]

    def as_they_are(self) -> StatesAsTheyWere:
        moment = StatesAsTheyWere(self.folder, self.spans)
        self._moments.append(weakref.ref(moment))
        return moment

    def flush(self) -> None:
        """All of it on the disk, for a checkpoint that names the spans; without much that is of no use any more."""
        size = sum(file.stat().st_size for file in self.folder.glob("*.states"))
        if size > WASTE * sum(span.length for span in self.spans.values() if span is not None):
            self._write_anew()
        for name in self.files():
            with open(self.folder / name, "rb") as file:
                os.fsync(file.fileno())

    def _write_anew(self) -> None:
        files, name = files_in(self.folder), f"{self.generation:06}-anew.states"
        with open(self.folder / name, "ab", opener=only_for_owner) as file:
            for client, span in self.spans.items():
                if span is not None:
                    start = file.tell()
                    file.write(files.bytes_at(span))
                    self.spans[client] = StateSpan(name, start, span.length)

    def files(self) -> list[str]:
        return sorted({span.file for span in self.spans.values() if span is not None})

    def committed(self) -> None:
        """A checkpoint names these spans now: what none of them is in may go, and new states go into new files."""
        alive = [(ref, one) for ref in self._moments if (one := ref()) is not None]
        self._moments = [ref for ref, _ in alive]
        kept = {
            span.file for one in (self, *(one for _, one in alive)) for span in one.spans.values() if span is not None
        }
        gone = [file.name for file in self.folder.glob("*.states") if file.name not in kept]
        for name in gone:
            (self.folder / name).unlink(missing_ok=True)
        self.generation += 1

    def to_rows(self) -> NDArray[np.int64]:
        """Of each client the number of its file among `files`, start and length; -1 where it has none."""
        numbers = {name: number for number, name in enumerate(self.files())}
        rows = [(-1, 0, 0) if at is None else (numbers[at.file], at.start, at.length) for at in self.spans.values()]
        return np.array(rows, np.int64).reshape(-1, 3)

    @classmethod
    def from_rows(
        cls, folder: Path, clients: Iterable[str], files: Sequence[str], rows: NDArray[np.int64]
    ) -> "StoredStates":
        """What `to_rows` gave."""
        spans = [None if file < 0 else StateSpan(files[file], start, length) for file, start, length in rows.tolist()]
        return cls(folder, dict(zip(clients, spans, strict=True)))


def _generation(name: str) -> int:
    return int(name.split("-")[0])


def stored(folder: Path, clients: Iterable[str], states: Mapping[str, ClientState]) -> StoredStates:
    """The states of a run in its folder: those that are given, and of all others that they begin."""
    if isinstance(states, StoredStates):
        return states
    store = StoredStates(folder / STATES, dict.fromkeys(clients))
    store.update(states)
    return store


def as_they_are(states: Mapping[str, ClientState]) -> Mapping[str, ClientState]:
    """A copy that stays as it is, wherever the states are."""
    return states.as_they_are() if isinstance(states, StoredStates) else dict(states)

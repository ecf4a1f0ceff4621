"""Every message in and out, in a file that only grows and in which each line vouches for all lines before it.

`audit.jsonl` has one line for each message: when, of which run and round, what kind, in or out, with whom, how many
bytes, their SHA-256, and what was decided. Its last word, `chain`, is the SHA-256 of the line before and of this one;
and `audit.head` says how many lines there are and the chain of the last. So a line that was changed, taken out or
moved, or an end that was cut off, is found. Whoever may write here could make up a whole new file, though: to be
sure against that too, note the head that `fedcopl audit` prints somewhere else. A site's log and its server's name the
same digests.
"""

import csv
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path

from ..errors import RunFolderError
from ..files import make_private_folder, write_private

AUDIT, HEAD = "audit.jsonl", "audit.head"
TAIL = 65536  # bytes from the end of the file in which the last line is found
BEGIN = "0" * 64  # what the first line follows
LONGEST = 300  # letters of a decision
IN, OUT = "in", "out"


@dataclass(frozen=True)
class Crossing:
    """One message that came in or went out."""

    way: str  # IN or OUT
    peer: str  # with whom: at a site the server, at a server the site
    run: str
    round: str
    kind: str
    bytes: int  # of the whole content
    digest: str  # SHA-256 of the whole content
    decision: str


@dataclass(frozen=True)
class AuditLine:
    """As it stands in the log."""

    number: int  # counted from 1
    time: float
    crossing: Crossing
    chain: str

    def plain(self) -> dict[str, object]:
        return {"number": self.number, "time": self.time, **asdict(self.crossing)}


@dataclass(frozen=True)
class AuditLog:
    """The log of a site's folder, or of a server's run."""

    folder: Path
    now: Callable[[], float] = time.time

    def write(self, crossing: Crossing) -> None:
        """Add a line before what it is about happens; RunFolderError if that cannot be done."""
        try:
            self._write(crossing)
        except OSError as error:
            raise RunFolderError(f"{self.folder / AUDIT}: cannot be written: {error.strerror or error}") from error

    def _write(self, crossing: Crossing) -> None:
        number, before, is_torn = self._end()
        line = AuditLine(number + 1, self.now(), crossing, "")
        text = json.dumps(line.plain(), sort_keys=True)
        chain = _chained(before, text)
        whole = "\n" * is_torn + json.dumps({**line.plain(), "chain": chain}, sort_keys=True) + "\n"
        self._append(whole.encode())
        write_private(self.folder / HEAD, f"{line.number} {chain}\n".encode())

    def _append(self, text: bytes) -> None:
        if not self.folder.exists():
            make_private_folder(self.folder)
        opened = os.open(self.folder / AUDIT, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(opened, "ab", buffering=0) as log:
            log.write(text)
            os.fsync(log.fileno())

    def _end(self) -> tuple[int, str, bool]:
        """Number and chain of the last whole line, and whether a stop has left a part of one behind it."""
        file = self.folder / AUDIT
        if not file.exists():
            return 0, BEGIN, False
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - TAIL))
            *lines, rest = log.read().split(b"\n")
        whole = [line for line in map(_parsed, reversed(lines)) if line is not None]
        return (whole[0].number, whole[0].chain, bool(rest)) if whole else (0, BEGIN, bool(rest))


def _chained(before: str, text: str) -> str:
    return sha256(f"{before} {text}".encode()).hexdigest()


def _parsed(line: bytes) -> AuditLine | None:
    """None for what is no line."""
    try:
        plain = json.loads(line)
        crossing = Crossing(**{part.name: plain[part.name] for part in fields(Crossing)})
        return AuditLine(plain["number"], plain["time"], crossing, plain["chain"])
    except (ValueError, KeyError, TypeError):
        return None


def read_audit(folder: Path) -> list[AuditLine]:
    """All lines, verified; RunFolderError with the first that does not fit."""
    file = folder / AUDIT
    try:
        content, head = file.read_bytes(), (folder / HEAD).read_text(encoding="utf-8").split()
        count, chain = int(head[0]), head[1]
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder}: has no audit log ({error.filename} is missing)") from error
    except (OSError, ValueError, IndexError) as error:
        raise RunFolderError(f"{folder / HEAD}: cannot be read: {error}") from error
    lines = list(_verified(content, file))
    if len(lines) < count or count < 1 or lines[count - 1].chain != chain:
        raise RunFolderError(f"{file}: was tampered with: it ends after line {len(lines)}, and there were {count}")
    return lines


def _verified(content: bytes, file: Path) -> Iterator[AuditLine]:
    before, expected = BEGIN, 1
    for text in content.split(b"\n"):
        line = _parsed(text)
        if line is None:
            continue  # what a stop left of a line: the next one has its number
        if line.number != expected or _chained(before, json.dumps(line.plain(), sort_keys=True)) != line.chain:
            raise RunFolderError(f"{file}: was tampered with: line {expected} is not the one that was written")
        before, expected = line.chain, expected + 1
        yield line


def audit_csv(lines: list[AuditLine]) -> str:
    """A table for others to read."""
    text = io.StringIO()
    table = csv.DictWriter(text, ["number", "time", *(part.name for part in fields(Crossing)), "chain"])
    table.writeheader()
    table.writerows([{**line.plain(), "chain": line.chain} for line in lines])
    return text.getvalue()

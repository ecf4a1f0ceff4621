"""The audit log: every message in and out, in an append-only file with a hash chain.

`audit.jsonl` has one line for each message: time, run, round, kind, direction, peer, number of bytes, their SHA-256,
and the decision. The last field, `chain`, is the SHA-256 of the previous chain and of this line; `audit.head` has the
number of lines and the last chain. So lines that were changed, removed or moved, and a truncated file, are detected. A
user with write access could forge a whole new file: to detect that too, store the head that `fedcopl audit` prints
elsewhere. The logs of a site and of its server have the same digests.
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
_TAIL = 65536  # bytes from the end of the file in which the last line is found
_BEGIN = "0" * 64  # chain before the first line
IN, OUT = "in", "out"


@dataclass(frozen=True)
class AuditMessage:
    """One message in or out."""

    way: str  # IN or OUT
    peer: str  # at a site the server, at a server the site
    run: str
    round: str
    kind: str
    bytes: int  # of the whole content
    digest: str  # SHA-256 of the whole content
    decision: str


@dataclass(frozen=True)
class _AuditLine:
    """One line of the log."""

    number: int  # counted from 1
    time: float
    message: AuditMessage
    chain: str

    def plain(self) -> dict[str, object]:
        return {"number": self.number, "time": self.time, **asdict(self.message)}


@dataclass(frozen=True)
class AuditLog:
    """The audit log of a site, or of a server's run."""

    folder: Path
    now: Callable[[], float] = time.time

    def write(self, message: AuditMessage) -> None:
        """Append a line, before the message is read or sent; `RunFolderError` if that fails."""
        try:
            self._write(message)
        except OSError as error:
            raise RunFolderError(f"{self.folder / AUDIT}: cannot be written: {error.strerror or error}") from error

    def _write(self, message: AuditMessage) -> None:
        number, before, is_torn = self._end()
        line = _AuditLine(number + 1, self.now(), message, "")
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
        """Return number and chain of the last complete line, and whether an incomplete one follows."""
        file = self.folder / AUDIT
        if not file.exists():
            return 0, _BEGIN, False
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _TAIL))
            *lines, rest = log.read().split(b"\n")
        whole = [line for line in map(_parsed, reversed(lines)) if line is not None]
        return (whole[0].number, whole[0].chain, bool(rest)) if whole else (0, _BEGIN, bool(rest))


def _chained(before: str, text: str) -> str:
    return sha256(f"{before} {text}".encode()).hexdigest()


def _parsed(line: bytes) -> _AuditLine | None:
    """Parse a line; None if it is incomplete."""
    try:
        plain = json.loads(line)
        message = AuditMessage(**{part.name: plain[part.name] for part in fields(AuditMessage)})
        return _AuditLine(plain["number"], plain["time"], message, plain["chain"])
    except (ValueError, KeyError, TypeError):
        return None


def read_audit(folder: Path) -> list[_AuditLine]:
    """Read and verify all lines; `RunFolderError` names the first invalid one."""
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
        raise RunFolderError(f"{file}: was tampered with: it has {len(lines)} lines instead of {count}")
    return lines


def _verified(content: bytes, file: Path) -> Iterator[_AuditLine]:
    before, expected = _BEGIN, 1
    for text in content.split(b"\n"):
        line = _parsed(text)
        if line is None:
            continue  # left by a crash: the next line has its number
        if line.number != expected or _chained(before, json.dumps(line.plain(), sort_keys=True)) != line.chain:
            raise RunFolderError(f"{file}: was tampered with: line {expected} was changed")
        before, expected = line.chain, expected + 1
        yield line


def audit_csv(lines: list[_AuditLine]) -> str:
    """Return the log as CSV."""
    text = io.StringIO()
    table = csv.DictWriter(text, ["number", "time", *(part.name for part in fields(AuditMessage)), "chain"])
    table.writeheader()
    table.writerows([{**line.plain(), "chain": line.chain} for line in lines])
    return text.getvalue()

"""The audit log: every message in and out, in an append-only file with a hash chain.

`audit.jsonl` has one line for each message: time, run, round, kind, direction, peer, number of bytes, their SHA-256,
and the decision. The last field, `chain`, is the SHA-256 of the previous chain and this line; `audit.head` has the
number of lines and the last chain. This detects changed, removed and moved lines, and a truncated file. A user with
write access could forge a complete new log: to detect that too, store the head, which `fedcopl audit` prints, on
another machine. The logs of a site and of its server have the same digests.
"""

import csv
import io
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path

from ..errors import RunFolderError
from ..files import make_private_folder, write_private

AUDIT, _HEAD = "audit.jsonl", "audit.head"
_TAIL = 65536  # bytes at the end of the file that are read for its last line
_FIRST_CHAIN = "0" * 64  # in place of the chain of a line before the first
IN, OUT = "in", "out"


@dataclass(frozen=True)
class AuditMessage:
    """A message in or out, as a line of the log; `AuditLog.write` sets the last three fields."""

    direction: str  # IN or OUT
    peer: str  # at a site the server, at a server the site
    run: str
    round: str
    kind: str
    bytes: int  # of the content
    digest: str  # SHA-256 of the content
    decision: str
    number: int = 0  # counted from 1
    time: float = 0.0
    chain: str = ""


@dataclass(frozen=True)
class AuditLog:
    """The audit log of a site, or of a server's run."""

    folder: Path
    now: Callable[[], float] = time.time

    def write(self, message: AuditMessage) -> None:
        """Append a message to the log, before it is read or sent; `RunFolderError` if that fails."""
        file = self.folder / AUDIT
        try:
            number, previous_chain, is_torn = self._last_line()
            line = replace(message, number=number + 1, time=self.now())
            line = replace(line, chain=_chain(previous_chain, line))
            if not self.folder.exists():
                make_private_folder(self.folder)
            opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(opened, "ab", buffering=0) as log:
                log.write(("\n" * is_torn + json.dumps(asdict(line), sort_keys=True) + "\n").encode())
                os.fsync(log.fileno())
            write_private(self.folder / _HEAD, f"{line.number} {line.chain}\n".encode())
        except OSError as error:
            raise RunFolderError(f"{file}: cannot be written: {error.strerror or error}") from error

    def _last_line(self) -> tuple[int, str, bool]:
        """Return the number and chain of the last complete line, and whether an incomplete line follows."""
        file = self.folder / AUDIT
        if not file.exists():
            return 0, _FIRST_CHAIN, False
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _TAIL))
            *lines, incomplete = log.read().split(b"\n")
        last = next((line for line in map(_parsed, reversed(lines)) if line is not None), None)
        return (last.number, last.chain, bool(incomplete)) if last else (0, _FIRST_CHAIN, bool(incomplete))


def _chain(previous_chain: str, line: AuditMessage) -> str:
    """Return the SHA-256 of the previous chain and a line."""
    fields_before_chain = {name: value for name, value in asdict(line).items() if name != "chain"}
    return sha256(f"{previous_chain} {json.dumps(fields_before_chain, sort_keys=True)}".encode()).hexdigest()


def _parsed(line: bytes) -> AuditMessage | None:
    """Parse a line of the log; None if it is incomplete or damaged."""
    try:
        plain = json.loads(line)
        return AuditMessage(**{part.name: plain[part.name] for part in fields(AuditMessage)})
    except (ValueError, KeyError, TypeError):
        return None


def read_audit(folder: Path) -> list[AuditMessage]:
    """Read and verify all lines; `RunFolderError` names the first invalid one."""
    file = folder / AUDIT
    try:
        content, head = file.read_bytes(), (folder / _HEAD).read_text(encoding="utf-8").split()
        count, last_chain = int(head[0]), head[1]
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder}: has no audit log ({error.filename} is missing)") from error
    except (OSError, ValueError, IndexError) as error:
        raise RunFolderError(f"{folder / _HEAD}: cannot be read: {error}") from error
    previous_chain = _FIRST_CHAIN
    lines: list[AuditMessage] = []
    for line in map(_parsed, content.split(b"\n")):
        if line is None:
            continue  # incomplete after a crash: the next line has the same number
        if line.number != len(lines) + 1 or line.chain != _chain(previous_chain, line):
            raise RunFolderError(f"{file}: was tampered with: line {len(lines) + 1} was changed, moved or removed")
        previous_chain = line.chain
        lines.append(line)
    if len(lines) < count or count < 1 or lines[count - 1].chain != last_chain:
        raise RunFolderError(f"{file}: was tampered with: line {count} of {len(lines)} is not that of {_HEAD}")
    return lines


def audit_csv(lines: Iterable[AuditMessage]) -> str:
    """Return the log as CSV."""
    text = io.StringIO()
    *message, number, when, chain = (part.name for part in fields(AuditMessage))
    table = csv.DictWriter(text, [number, when, *message, chain])
    table.writeheader()
    table.writerows(map(asdict, lines))
    return text.getvalue()

"""What is in each image, as a short digest. A file that did not change is not read again."""

import json
import os
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from .images import ImageFiles, StoredImages
from .parallel import in_order

Traits = list[int]
Index = dict[str, tuple[Traits, str]]
"""Of each path: the traits the file had when it was read, and its digest."""

UNREADABLE = "unreadable: "  # instead of a digest, with the reason
SETTLED = 2_000_000_000  # ns: a file younger than this may change again without its times showing it


def digest(kind: str, content: bytes) -> str:
    return blake2b(content, digest_size=20, person=kind.encode()[:16]).hexdigest()


def digests(images: StoredImages, known: Index) -> tuple[list[str], Index]:
    """The digest of each image, and what was learnt about the files among them."""
    if not isinstance(images, ImageFiles):
        return [_digest_or_reason(images, index) for index in range(len(images))], {}
    found = [_unchanged(images, index, known) for index in range(len(images))]
    unread = [index for index, result in enumerate(found) if result is None]
    learnt: Index = {}
    read = in_order(lambda number: _read(images, unread[number]), len(unread))
    for index, (traits, result) in zip(unread, read, strict=True):
        found[index] = result
        if traits is not None:
            learnt[_known_as(images, index)] = (traits, result)
    return [result or "" for result in found], learnt


def _known_as(images: ImageFiles, index: int) -> str:
    """In the index: a path, with the page where only that is meant."""
    kind = images.kind(index)
    return str(images.paths[index]) + ("" if kind == "file" else f" {kind}")


def _unchanged(images: ImageFiles, index: int, known: Index) -> str | None:
    try:
        traits, result = known[_known_as(images, index)]
        return result if _traits(images.paths[index]) == traits else None
    except (KeyError, OSError):
        return None


def _read(images: ImageFiles, index: int) -> tuple[Traits | None, str]:
    """Its traits, unless they cannot be relied on, and its digest."""
    path = images.paths[index]
    try:
        traits = _traits(path)
        result = _digest_or_reason(images, index)
        relied_on = _is_settled(traits) and _traits(path) == traits and not result.startswith(UNREADABLE)
        return traits if relied_on else None, result
    except OSError as error:
        return None, f"{UNREADABLE}{error.strerror or error}"


def _digest_or_reason(images: StoredImages, index: int) -> str:
    try:
        return digest(images.kind(index), images.content(index))
    except OSError as error:
        return f"{UNREADABLE}{error.strerror or error}"


def _traits(path: Path) -> Traits:
    """Size, times and number: whatever is written into a file, the second time, which nobody can set, moves."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _is_settled(traits: Traits) -> bool:
    return time.time_ns() - max(traits[1], traits[2]) > SETTLED


def read_index(file: Path) -> Index:
    """Only a shortcut: an index that is missing or damaged is begun again."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return {str(path): (list(traits), str(result)) for path, (traits, result) in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def home_of(paths: Sequence[Path]) -> str:
    """The folder that all files lie in: what an index is named after."""
    return os.path.commonpath([path.parent for path in paths]) if paths else ""

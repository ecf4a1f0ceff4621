"""Images decoded, resized and cropped once, then mapped into memory: `uint8 (n, 3, side, side)`.

An entry is a folder with the pixels of one list of images under one transform, named by a digest of all that went
into it. It is built under a temporary name and renamed when complete, so a stop at any moment leaves no entry or a
whole one. Whoever builds holds a lock; who comes second waits and finds the entry. Nothing else is ever written.
"""

import errno
import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image

from ..errors import DataError
from ..files import OWNER_ONLY_FOLDER, make_folders, only_for_owner
from ..plurals import counted
from .dataset import Dataset, ImageSet
from .decoding import BadImage
from .formats import could_be_read_now
from .images import UNREADABLE, ImageFiles, StoredImages, digest, digests, home_of, quiet, read_index
from .parallel import in_order

FORMAT = 2  # of the entries: another number makes all older ones unknown
RESERVE = 32_000_000  # bytes left free for others
PIXELS, ENTRY, PART, LOCK = "pixels.bin", "entry.json", ".part", ".lock"
HINT = "free some space (fedcopl cache clear), or name another folder in FEDCOPL_CACHE"

Cut = Callable[[Image.Image], NDArray[np.uint8]]
Progress = Callable[[int, int], None]
"""Is told how many images are done, and of how many."""


class Bad(NamedTuple):
    """An image that cannot be used."""

    number: int
    name: str
    reason: str


class Pixels(NamedTuple):
    """The images that can be used, in their order, those that cannot, and the digest of every image of the set."""

    array: NDArray[np.uint8]
    bad: list[Bad]
    digests: list[str]


@dataclass(frozen=True)
class CacheEntry:
    """One finished entry on disk."""

    folder: Path
    transform: str
    pillow: str
    shape: tuple[int, ...]
    digests: list[str]  # of the rows
    bad: list[tuple[int, str]]
    last_used: float  # seconds since 1970

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return math.prod(self.shape)

    def array(self) -> NDArray[np.uint8]:
        if self.shape[0] == 0:  # an empty file cannot be mapped
            return np.zeros(self.shape, np.uint8)
        return np.memmap(self.folder / PIXELS, np.uint8, "r", shape=self.shape)


def default_folder() -> Path:
    """FEDCOPL_CACHE, or `fedcopl` where this system keeps what can be made again."""
    if chosen := os.environ.get("FEDCOPL_CACHE"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "fedcopl"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "fedcopl"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "fedcopl"


class PixelCache:
    """Pixels of image sets, on disk; those of sets that live in memory are not worth it."""

    def __init__(self, folder: Path | None = None):
        self.folder = (folder or default_folder()) / "pixels"

    def pixels(self, images: ImageSet, cut: Cut, key: str, progress: Progress = lambda done, total: None) -> Pixels:
        """The set's images after `cut`; `key` names all that decides what `cut` does."""
        stored = images.images
        if not isinstance(stored, StoredImages):
            progress(len(images), len(images))
            return Pixels(_stack([cut(image) for image in stored], cut), [], [])
        key += stored.reading.key
        with self._explained():
            contents = self._digests(stored)
            entry = self._find(contents, key) or self._make(images, stored, contents, cut, key, progress)
            array = entry.array()
        progress(len(images), len(images))
        return Pixels(array, [Bad(index, images.names[index], why) for index, why in entry.bad], contents)

    def entries(self) -> list[CacheEntry]:
        """All finished entries, the last used first."""
        found = [entry for path in self.folder.glob(f"*/{ENTRY}") if (entry := read_entry(path.parent))]
        return sorted(found, key=lambda entry: entry.last_used, reverse=True)

    def clear(self) -> None:
        """Remove everything but what is being built. Who has an entry open keeps it until the end."""
        with self._explained():
            for index in self.folder.glob("*.index.json"):
                index.unlink(missing_ok=True)
            for entry in self.folder.glob(f"*/{ENTRY}"):
                shutil.rmtree(entry.parent)
            self._sweep()

    def _digests(self, stored: StoredImages) -> list[str]:
        if not isinstance(stored, ImageFiles):
            return digests(stored, {})[0]
        make_folders(self.folder)
        name = blake2b(os.fsencode(home_of(stored.paths)), digest_size=16).hexdigest()
        file = self.folder / f"{name}.index.json"
        contents, learnt = digests(stored, read_index(file))
        with suppress(OSError):  # only a shortcut: a cache that may only be read will do
            if learnt:
                with FileLock(self.folder / f"{name}.index{LOCK}"):
                    _write(file, json.dumps(read_index(file) | learnt))
        return contents

    def _home(self, contents: list[str], key: str) -> Path:
        made_of = json.dumps([FORMAT, PIL.__version__, key, contents])
        return self.folder / blake2b(made_of.encode(), digest_size=16).hexdigest()

    def _find(self, contents: list[str], key: str) -> CacheEntry | None:
        entry = read_entry(self._home(contents, key))
        if entry and any(could_be_read_now(reason) for _, reason in entry.bad):
            return None
        if entry:
            with suppress(OSError):
                os.utime(entry.folder / ENTRY)  # says when it was last used
        return entry

    def _make(
        self, images: ImageSet, stored: StoredImages, contents: list[str], cut: Cut, key: str, progress: Progress
    ) -> CacheEntry:
        """Build the entry, unless another process does so while we wait for the lock."""
        home = self._home(contents, key)
        make_folders(self.folder)
        with FileLock(_beside(home, LOCK)):
            if entry := self._find(contents, key):
                return entry
            for dead in (home, _beside(home, PART)):  # damaged, or half done: we hold the lock
                shutil.rmtree(dead, ignore_errors=True)
            self._sweep()
            shape = (len(images), *_shape(cut))
            self._require_space(math.prod(shape))
            work = _worker(images, stored, contents, cut, self._known_rows(key))
            try:
                _build(home, work, shape, contents, key, progress)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):  # somebody else took the space meanwhile
                    self._require_space(math.prod(shape))
                raise
        entry = read_entry(home)
        if entry is None:
            raise DataError(f"{home}: what was just written cannot be read back; check the disk")
        return entry

    def _sweep(self) -> None:
        """Remove what killed processes left half done."""
        for part in self.folder.glob(f"*{PART}"):
            with suppress(OSError), FileLock(part.with_suffix(LOCK), timeout=0):  # or else somebody is at work on it
                shutil.rmtree(part, ignore_errors=True)

    def _known_rows(self, key: str) -> dict[str, NDArray[np.uint8]]:
        """Pixels of other entries by digest: when one file of thousands changes, the others are copied."""
        rows: dict[str, NDArray[np.uint8]] = {}
        for entry in self.entries():
            if (entry.transform, entry.pillow) == (key, PIL.__version__):
                rows.update(zip(entry.digests, entry.array(), strict=True))
        return rows

    def _require_space(self, need: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if need + RESERVE > free:
            raise DataError(f"{self.folder}: needs {_size(need + RESERVE)}, but only {_size(free)} are free; {HINT}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What the system says about the cache folder, as one line."""
        try:
            yield
        except (OSError, NotImplementedError) as error:  # the latter where a file system cannot lock
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{self.folder}: cannot be written: {reason}; {HINT}") from error


def read_entry(folder: Path) -> CacheEntry | None:
    """A whole entry, or None: what is missing, cut short or of another format is no entry."""
    try:
        plain = json.loads((folder / ENTRY).read_text(encoding="utf-8"))
        if plain["format"] != FORMAT:
            return None
        entry = CacheEntry(
            folder,
            str(plain["transform"]),
            str(plain["pillow"]),
            tuple(map(int, plain["shape"])),
            list(plain["digests"]),
            [(int(index), str(reason)) for index, reason in plain["bad"]],
            (folder / ENTRY).stat().st_mtime,
        )
        is_whole = (folder / PIXELS).stat().st_size == entry.size and len(entry.digests) == entry.shape[0]
        return entry if is_whole else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _worker(
    images: ImageSet, stored: StoredImages, contents: list[str], cut: Cut, known: dict[str, NDArray[np.uint8]]
) -> Callable[[int], NDArray[np.uint8] | str]:
    """What is done for each image: its pixels, or the reason why there are none."""

    def work(index: int) -> NDArray[np.uint8] | str:
        expected = contents[index]
        if expected.startswith(UNREADABLE):
            return expected
        if expected in known:
            return known[expected]
        content = _content(stored, index)
        if content is None or digest(stored.kind(index), content) != expected:
            raise DataError(f"{images.names[index]}: was changed while it was read; start again when it is complete")
        try:
            return cut(stored.picture(index, content).image)
        except BadImage as reason:
            return str(reason)

    return work


def _content(stored: StoredImages, index: int) -> bytes | None:
    try:
        return stored.content(index)
    except OSError:
        return None


def _build(
    home: Path,
    work: Callable[[int], NDArray[np.uint8] | str],
    shape: tuple[int, ...],
    contents: list[str],
    key: str,
    progress: Progress,
) -> None:
    """Write the entry under a temporary name, then give it its own."""
    part = _beside(home, PART)
    part.mkdir(OWNER_ONLY_FOLDER)
    try:
        bad = _write_rows(part / PIXELS, work, shape[0], progress)
        dropped = dict(bad)
        entry = {
            "format": FORMAT,
            "pillow": PIL.__version__,
            "transform": key,
            "shape": [shape[0] - len(bad), *shape[1:]],
            "bad": bad,
            "digests": [content for index, content in enumerate(contents) if index not in dropped],
        }
        _write(part / ENTRY, json.dumps(entry))
        part.rename(home)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_rows(
    file: Path, work: Callable[[int], NDArray[np.uint8] | str], count: int, progress: Progress
) -> list[tuple[int, str]]:
    """The rows of all images that can be used, one after the other; returns the others, with their reasons.

    Plain writes: on a full disk they are an error that can be caught, where a mapped file would be a crash.
    """
    bad = []
    with open(file, "wb", opener=only_for_owner) as rows, quiet():
        for index, result in enumerate(in_order(work, count)):
            if isinstance(result, str):
                bad.append((index, result))
            else:
                rows.write(np.ascontiguousarray(result).data)
            progress(index, count)
        rows.flush()
        os.fsync(rows.fileno())
    return bad


def _write(file: Path, text: str) -> None:
    """Whole or not at all; the caller holds a lock."""
    temporary = file.with_name(f"{file.name}.new")
    with open(temporary, "w", encoding="utf-8", opener=only_for_owner) as written:
        written.write(text)
        written.flush()
        os.fsync(written.fileno())
    temporary.replace(file)


def _beside(home: Path, suffix: str) -> Path:
    return home.with_name(home.name + suffix)


def _shape(cut: Cut) -> tuple[int, ...]:
    return cut(Image.new("RGB", (1, 1))).shape


def _stack(rows: list[NDArray[np.uint8]], cut: Cut) -> NDArray[np.uint8]:
    return np.stack(rows) if rows else np.zeros((0, *_shape(cut)), np.uint8)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


@dataclass(frozen=True)
class Prepared:
    """A data set without its broken images, and the pixels of the others."""

    dataset: Dataset  # `skipped` tells of everything that was left out
    train: NDArray[np.uint8]  # (n, 3, side, side), perhaps mapped from disk
    test: NDArray[np.uint8]
    notes: tuple[str, ...]  # what the user should know, in whole sentences


def prepare(
    dataset: Dataset, cut: Cut, key: str, cache: PixelCache, progress: Progress = lambda done, total: None
) -> Prepared:
    """Decode and cut all images; `cut` and `key` are those of an ImageTransform."""
    first, total = len(dataset.train), len(dataset.train) + len(dataset.test)
    train = cache.pixels(dataset.train, cut, key, lambda done, _: progress(done, total))
    test = cache.pixels(dataset.test, cut, key, lambda done, _: progress(first + done, total))
    if len(train.array) == 0:
        raise DataError(f"{dataset.name}: of {counted(first, 'training image')} none can be used{_first(train.bad)}")
    usable = dataset.without(
        (bad.number for bad in train.bad),
        (bad.number for bad in test.bad),
        ((bad.name, bad.reason) for bad in (*train.bad, *test.bad)),
    )
    return Prepared(usable, train.array, test.array, tuple(repeats(train.digests, test.digests)))


def repeats(train: Sequence[str], test: Sequence[str]) -> list[str]:
    """Sentences about images that are there more than once. They are kept: leaving them out is the owner's choice."""
    seen = Counter(content for content in train if not content.startswith(UNREADABLE))
    again = sum(seen.values()) - len(seen)
    shared = sum(content in seen for content in test)
    copies = ("training image is an exact copy of another", "training images are exact copies of others")
    in_both = ("test image is also a training image", "test images are also training images")
    return [counted(count, *words) for count, words in ((again, copies), (shared, in_both)) if count]


def _first(bad: Sequence[Bad]) -> str:
    return f", the first, {bad[0].name}: {bad[0].reason}" if bad else ""

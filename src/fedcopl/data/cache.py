"""Images decoded, resized and cropped once, then mapped into memory: `uint8 (n, 3, side, side)`.

An entry is a folder with the pixels of one list of images under one transform, named by a digest of its inputs. It is
built under a temporary name and renamed when complete, so an interrupted process leaves no partial entry. A lock makes
a second process wait for the first one's entry.
"""

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
from .formats import is_readable_now
from .images import UNREADABLE, PillowImages, StoredImages, digest, digests, silence_decoders
from .parallel import parallel_map

_FORMAT = 2  # of the entries: entries of another format are ignored
_RESERVE = 32_000_000  # bytes of the disk that stay free
_PIXELS, _ENTRY, _PART, _LOCK = "pixels.bin", "entry.json", ".part", ".lock"
_HINT = "free some space (fedcopl cache clear), or name another folder in FEDCOPL_CACHE"

ToPixels = Callable[[Image.Image], NDArray[np.uint8]]
Progress = Callable[[int, int], None]
"""Called with the number of finished images and the total."""


class _Pixels(NamedTuple):
    """Pixels of the usable images in order, the reasons of the others by number, and the digests of all images."""

    array: NDArray[np.uint8]
    bad: dict[int, str]
    digests: list[str]


@dataclass(frozen=True)
class _CacheEntry:
    """One finished entry on disk."""

    folder: Path
    transform: str
    pillow: str
    shape: Sequence[int]
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
        return np.memmap(self.folder / _PIXELS, np.uint8, "r", shape=tuple(self.shape))


def default_folder() -> Path:
    """Return $FEDCOPL_CACHE, or `fedcopl` in the cache folder of this system."""
    if chosen := os.environ.get("FEDCOPL_CACHE"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "fedcopl"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "fedcopl"


class PixelCache:
    """Pixels of image sets on disk; embedded sets that are already in memory are not cached."""

    def __init__(self, folder: Path | None = None):
        self.folder = (folder or default_folder()) / "pixels"

    def pixels(
        self, images: ImageSet, to_pixels: ToPixels, key: str, progress: Progress = lambda done, total: None
    ) -> _Pixels:
        """Return the set's images after `to_pixels`; `key` identifies the transform."""
        stored = images.images
        if isinstance(stored, PillowImages):
            progress(len(images), len(images))
            rows = [to_pixels(image) for image in stored]
            return _Pixels(np.stack(rows) if rows else np.zeros((0, *_shape(to_pixels)), np.uint8), {}, [])
        key += stored.options.key
        with self._convert_os_errors():
            contents = self._digests(stored)
            entry = self._find(contents, key) or self._make(images, contents, to_pixels, key, progress)
            array = entry.array()
        progress(len(images), len(images))
        return _Pixels(array, dict(entry.bad), contents)

    def entries(self) -> list[_CacheEntry]:
        """Return all finished entries, the most recently used first."""
        entries = [entry for path in self.folder.glob(f"*/{_ENTRY}") if (entry := _read_entry(path.parent))]
        return sorted(entries, key=lambda entry: entry.last_used, reverse=True)

    def clear(self) -> None:
        """Remove all finished entries; a process that has one open keeps it until it ends."""
        with self._convert_os_errors():
            for index in self.folder.glob("*.index.json"):
                index.unlink(missing_ok=True)
            for entry in self.folder.glob(f"*/{_ENTRY}"):
                shutil.rmtree(entry.parent)
            self._sweep()

    def _digests(self, stored: StoredImages) -> list[str]:
        """Digest the images, with one index for the files below a folder."""
        parents = {file.path.absolute().parent for index in range(len(stored)) if (file := stored.file(index))}
        if not parents:
            return digests(stored)
        make_folders(self.folder)
        name = blake2b(os.fsencode(os.path.commonpath(parents)), digest_size=16).hexdigest()
        return digests(stored, self.folder / f"{name}.index.json")

    def _home(self, contents: list[str], key: str) -> Path:
        made_of = json.dumps([_FORMAT, PIL.__version__, key, contents])
        return self.folder / blake2b(made_of.encode(), digest_size=16).hexdigest()

    def _find(self, contents: list[str], key: str) -> _CacheEntry | None:
        entry = _read_entry(self._home(contents, key))
        if entry and any(is_readable_now(reason) for _, reason in entry.bad):
            return None
        if entry:
            with suppress(OSError):
                os.utime(entry.folder / _ENTRY)  # time of last use
        return entry

    def _make(
        self, images: ImageSet, contents: list[str], to_pixels: ToPixels, key: str, progress: Progress
    ) -> _CacheEntry:
        """Build the entry, unless another process does so while we wait for the lock."""
        home = self._home(contents, key)
        make_folders(self.folder)
        with FileLock(_sibling(home, _LOCK)):
            if entry := self._find(contents, key):
                return entry
            for dead in (home, _sibling(home, _PART)):  # damaged or incomplete: this process holds the lock
                shutil.rmtree(dead, ignore_errors=True)
            self._sweep()
            shape, free = _shape(to_pixels), shutil.disk_usage(self.folder).free
            need = len(images) * math.prod(shape) + _RESERVE
            if need > free:
                raise DataError(f"{self.folder}: needs {_size(need)}, but only {_size(free)} are free; {_HINT}")
            work = _worker(images, contents, to_pixels, self._decoded_rows(key))
            _build(home, work, shape, contents, key, progress)
        entry = _read_entry(home)
        if entry is None:
            raise DataError(f"{home}: the entry just written cannot be read back; check the disk")
        return entry

    def _sweep(self) -> None:
        """Remove incomplete entries of killed processes."""
        for part in self.folder.glob(f"[!.]*{_PART}"):  # no index that is being written
            with suppress(OSError), FileLock(part.with_suffix(_LOCK), timeout=0):  # locked: being built
                shutil.rmtree(part, ignore_errors=True)

    def _decoded_rows(self, key: str) -> dict[str, NDArray[np.uint8]]:
        """Return the pixels of other entries by digest, so that only changed files are decoded again."""
        rows: dict[str, NDArray[np.uint8]] = {}
        for entry in self.entries():
            if (entry.transform, entry.pillow) == (key, PIL.__version__):
                rows.update(zip(entry.digests, entry.array(), strict=True))
        return rows

    @contextmanager
    def _convert_os_errors(self) -> Iterator[None]:
        """Convert errors of the file system to DataError with the cache folder."""
        try:
            yield
        except (OSError, NotImplementedError) as error:  # the latter where a file system cannot lock
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{self.folder}: cannot be written: {reason}; {_HINT}") from error


def _read_entry(folder: Path) -> _CacheEntry | None:
    """Read an entry; None if it is missing, truncated or of another format."""
    try:
        written = json.loads((folder / _ENTRY).read_text(encoding="utf-8"))
        if written.pop("format") != _FORMAT:
            return None
        entry = _CacheEntry(folder, last_used=(folder / _ENTRY).stat().st_mtime, **written)
        is_whole = (folder / _PIXELS).stat().st_size == entry.size and len(entry.digests) == entry.shape[0]
        return entry if is_whole else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _worker(
    images: ImageSet, contents: list[str], to_pixels: ToPixels, decoded: dict[str, NDArray[np.uint8]]
) -> Callable[[int], NDArray[np.uint8] | str]:
    """Return the function that gives an image's pixels, or the reason why it cannot be used."""
    stored = images.images

    def work(index: int) -> NDArray[np.uint8] | str:
        expected = contents[index]
        if expected.startswith(UNREADABLE):
            return expected
        if expected in decoded:
            return decoded[expected]
        try:
            content = stored.content(index)
        except OSError:
            content = b""
        if digest(stored.kind(index), content) != expected:
            raise DataError(f"{images.names[index]}: was changed while it was read; start again when it is complete")
        try:
            return to_pixels(stored.picture(index, content).image)
        except BadImage as reason:
            return str(reason)

    return work


def _build(
    home: Path,
    work: Callable[[int], NDArray[np.uint8] | str],
    shape: tuple[int, ...],
    contents: list[str],
    key: str,
    progress: Progress,
) -> None:
    """Write the pixels of all usable images, in order, and the entry under a temporary name, then rename it.

    Plain writes raise an error on a full disk, where a mapped file would crash the process.
    """
    part, bad = _sibling(home, _PART), {}
    part.mkdir(OWNER_ONLY_FOLDER)
    try:
        with open(part / _PIXELS, "wb", opener=only_for_owner) as rows, silence_decoders():
            for index, result in enumerate(parallel_map(work, len(contents))):
                if isinstance(result, str):
                    bad[index] = result
                else:
                    rows.write(np.ascontiguousarray(result).data)
                progress(index, len(contents))
            rows.flush()
            os.fsync(rows.fileno())
        entry = {
            "format": _FORMAT,
            "pillow": PIL.__version__,
            "transform": key,
            "shape": [len(contents) - len(bad), *shape],
            "bad": list(bad.items()),
            "digests": [content for index, content in enumerate(contents) if index not in bad],
        }
        with open(part / _ENTRY, "w", encoding="utf-8", opener=only_for_owner) as file:
            file.write(json.dumps(entry))
            file.flush()
            os.fsync(file.fileno())
        part.rename(home)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sibling(home: Path, suffix: str) -> Path:
    return home.with_name(home.name + suffix)


def _shape(to_pixels: ToPixels) -> tuple[int, ...]:
    return to_pixels(Image.new("RGB", (1, 1))).shape


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


@dataclass(frozen=True)
class Prepared:
    """A data set without unusable images, and the pixels of the others."""

    dataset: Dataset  # `skipped` lists the excluded images
    train: NDArray[np.uint8]  # (n, 3, side, side), perhaps mapped from disk
    test: NDArray[np.uint8]
    notes: tuple[str, ...]  # for the user, one sentence each
    digest: str  # the number of images, and a digest of their names and contents in order


def prepare(
    dataset: Dataset, to_pixels: ToPixels, key: str, cache: PixelCache, progress: Progress = lambda done, total: None
) -> Prepared:
    """Decode, resize and crop all images; `to_pixels` and `key` are those of an ImageTransform."""
    first, total = len(dataset.train), len(dataset.train) + len(dataset.test)
    train = cache.pixels(dataset.train, to_pixels, key, lambda done, _: progress(done, total))
    test = cache.pixels(dataset.test, to_pixels, key, lambda done, _: progress(first + done, total))
    if len(train.array) == 0:
        example = next(
            (f", the first, {dataset.train.names[index]}: {reason}" for index, reason in train.bad.items()), ""
        )
        raise DataError(f"{dataset.name}: of {counted(first, 'training image')} none can be used{example}")
    usable = dataset.without(train.bad, test.bad)
    whole = blake2b(digest_size=8)
    for images, pixels in ((dataset.train, train), (dataset.test, test)):
        whole.update(json.dumps([*images.names, *pixels.digests]).encode())
        if not pixels.digests:  # not from files
            whole.update(np.ascontiguousarray(pixels.array).data)
    digest = f"{counted(total, 'image')}, {whole.hexdigest()}"
    return Prepared(usable, train.array, test.array, tuple(describe_duplicates(train.digests, test.digests)), digest)


def describe_duplicates(train: Sequence[str], test: Sequence[str]) -> list[str]:
    """Describe duplicate images, one sentence each. Duplicates are kept: removing them is the owner's choice."""
    counts = Counter(content for content in train if not content.startswith(UNREADABLE))
    duplicates = sum(counts.values()) - len(counts)
    shared = sum(content in counts for content in test)
    copies = ("training image is an exact copy of another", "training images are exact copies of others")
    in_both = ("test image is also a training image", "test images are also training images")
    return [counted(count, *words) for count, words in ((duplicates, copies), (shared, in_both)) if count]

"""Cache of decoded, resized and cropped images, `uint8 (n, 3, side, side)`, which are mapped into memory.

An entry is a folder with the pixels of one list of images after one transform; its name is a digest of both. It is
written under a temporary name and renamed when it is complete, so an interrupted process leaves no partial entry. A
lock makes a second process wait for the entry of the first.
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

_FORMAT = 2  # entries of another format are ignored
_RESERVE = 32_000_000  # bytes of the disk to leave free
_PIXELS, _ENTRY, _PART, _LOCK = "pixels.bin", "entry.json", ".part", ".lock"
_HINT = "free some space (fedcopl cache clear), or name another folder in FEDCOPL_CACHE"

ToPixels = Callable[[Image.Image], NDArray[np.uint8]]
Progress = Callable[[int, int], None]
"""Callback with the number of finished images and the total."""


class _Pixels(NamedTuple):
    """Pixels of the usable images, reasons by position why the others cannot be used, and digests of all images."""

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
    digests: list[str]  # of the usable images
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
    """Return $FEDCOPL_CACHE, or `fedcopl` in the cache folder of the operating system."""
    if chosen := os.environ.get("FEDCOPL_CACHE"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "fedcopl"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "fedcopl"


class PixelCache:
    """Cache of the pixels of image sets; small sets that are decoded in memory are not stored."""

    def __init__(self, folder: Path | None = None):
        self.folder = (folder or default_folder()) / "pixels"

    def pixels(
        self, images: ImageSet, to_pixels: ToPixels, key: str, progress: Progress = lambda done, total: None
    ) -> _Pixels:
        """Return the images after the transform `to_pixels`, which `key` identifies."""
        stored = images.images
        if isinstance(stored, PillowImages):
            progress(len(images), len(images))
            rows = [to_pixels(image) for image in stored]
            return _Pixels(np.stack(rows) if rows else np.zeros((0, *_output_shape(to_pixels)), np.uint8), {}, [])
        key += stored.options.key
        with self._convert_os_errors():
            image_digests = self._digests(stored)
            entry = self._find_entry(image_digests, key)
            entry = entry or self._build_entry(images, image_digests, to_pixels, key, progress)
            array = entry.array()
        progress(len(images), len(images))
        return _Pixels(array, dict(entry.bad), image_digests)

    def entries(self) -> list[_CacheEntry]:
        """Return all complete entries, the most recently used first."""
        entries = [entry for path in self.folder.glob(f"*/{_ENTRY}") if (entry := _load_entry(path.parent))]
        return sorted(entries, key=lambda entry: entry.last_used, reverse=True)

    def clear(self) -> None:
        """Remove all complete entries; a process that uses an entry keeps it until it ends."""
        with self._convert_os_errors():
            for index in self.folder.glob("*.index.json"):
                index.unlink(missing_ok=True)
            for entry in self.folder.glob(f"*/{_ENTRY}"):
                shutil.rmtree(entry.parent)
            self._remove_incomplete()

    def _digests(self, stored: StoredImages) -> list[str]:
        """Return the digests of the images; an index file stores those of all files in one folder tree."""
        parents = {file.path.absolute().parent for index in range(len(stored)) if (file := stored.file(index))}
        if not parents:
            return digests(stored)
        make_folders(self.folder)
        name = blake2b(os.fsencode(os.path.commonpath(parents)), digest_size=16).hexdigest()
        return digests(stored, self.folder / f"{name}.index.json")

    def _entry_folder(self, image_digests: list[str], key: str) -> Path:
        inputs = json.dumps([_FORMAT, PIL.__version__, key, image_digests])
        return self.folder / blake2b(inputs.encode(), digest_size=16).hexdigest()

    def _find_entry(self, image_digests: list[str], key: str) -> _CacheEntry | None:
        """Return the entry of these images; None if there is none, or if an image excluded from it is readable now."""
        entry = _load_entry(self._entry_folder(image_digests, key))
        if entry and any(is_readable_now(reason) for _, reason in entry.bad):
            return None
        if entry:
            with suppress(OSError):
                os.utime(entry.folder / _ENTRY)  # time of last use
        return entry

    def _build_entry(
        self, images: ImageSet, image_digests: list[str], to_pixels: ToPixels, key: str, progress: Progress
    ) -> _CacheEntry:
        """Build the entry, unless another process builds it while this one waits for the lock."""
        folder = self._entry_folder(image_digests, key)
        make_folders(self.folder)
        with FileLock(_with_suffix(folder, _LOCK)):
            if entry := self._find_entry(image_digests, key):
                return entry
            for unusable in (folder, _with_suffix(folder, _PART)):  # damaged or incomplete
                shutil.rmtree(unusable, ignore_errors=True)
            self._remove_incomplete()
            shape, free = _output_shape(to_pixels), shutil.disk_usage(self.folder).free
            required = len(images) * math.prod(shape) + _RESERVE
            if required > free:
                raise DataError(f"{self.folder}: needs {_size(required)}, but only {_size(free)} are free; {_HINT}")
            read_pixels = _pixel_reader(images, image_digests, to_pixels, self._decoded_rows(key))
            _write_entry(folder, read_pixels, shape, image_digests, key, progress)
        entry = _load_entry(folder)
        if entry is None:
            raise DataError(f"{folder}: the new entry cannot be read; check the disk")
        return entry

    def _remove_incomplete(self) -> None:
        """Remove incomplete entries of killed processes."""
        for part in self.folder.glob(f"[!.]*{_PART}"):  # temporary names of index files begin with a dot
            with suppress(OSError), FileLock(part.with_suffix(_LOCK), timeout=0):  # a running process has a lock
                shutil.rmtree(part, ignore_errors=True)

    def _decoded_rows(self, key: str) -> dict[str, NDArray[np.uint8]]:
        """Return the pixels of all entries with this key by digest, so that only changed files are decoded again."""
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
        except (OSError, NotImplementedError) as error:  # NotImplementedError: the file system has no locks
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{self.folder}: cannot be written: {reason}; {_HINT}") from error


def _load_entry(folder: Path) -> _CacheEntry | None:
    """Load an entry; None if it is missing, truncated or of another format."""
    try:
        fields = json.loads((folder / _ENTRY).read_text(encoding="utf-8"))
        if fields.pop("format") != _FORMAT:
            return None
        entry = _CacheEntry(folder, last_used=(folder / _ENTRY).stat().st_mtime, **fields)
        is_complete = (folder / _PIXELS).stat().st_size == entry.size and len(entry.digests) == entry.shape[0]
        return entry if is_complete else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _pixel_reader(
    images: ImageSet, image_digests: list[str], to_pixels: ToPixels, decoded_rows: dict[str, NDArray[np.uint8]]
) -> Callable[[int], NDArray[np.uint8] | str]:
    """Return a function that reads the pixels of an image, or returns the reason why it cannot be used."""
    stored = images.images

    def read_pixels(index: int) -> NDArray[np.uint8] | str:
        expected = image_digests[index]
        if expected.startswith(UNREADABLE):  # not a digest, but the reason
            return expected
        if expected in decoded_rows:
            return decoded_rows[expected]
        try:
            content = stored.content(index)
        except OSError:
            content = b""
        if digest(stored.kind(index), content) != expected:
            raise DataError(
                f"{images.names[index]}: the file changed while it was read; start again when it is complete"
            )
        try:
            return to_pixels(stored.picture(index, content).image)
        except BadImage as reason:
            return str(reason)

    return read_pixels


def _write_entry(
    folder: Path,
    read_pixels: Callable[[int], NDArray[np.uint8] | str],
    shape: tuple[int, ...],
    image_digests: list[str],
    key: str,
    progress: Progress,
) -> None:
    """Write an entry with the pixels of all usable images.

    Writing a file raises an error if the disk is full; writing to a memory-mapped file would crash the process.
    """
    part, bad = _with_suffix(folder, _PART), {}
    part.mkdir(OWNER_ONLY_FOLDER)
    try:
        with open(part / _PIXELS, "wb", opener=only_for_owner) as rows, silence_decoders():
            for index, result in enumerate(parallel_map(read_pixels, len(image_digests))):
                if isinstance(result, str):
                    bad[index] = result
                else:
                    rows.write(np.ascontiguousarray(result).data)
                progress(index, len(image_digests))
            rows.flush()
            os.fsync(rows.fileno())
        entry = {
            "format": _FORMAT,
            "pillow": PIL.__version__,
            "transform": key,
            "shape": [len(image_digests) - len(bad), *shape],
            "bad": list(bad.items()),
            "digests": [digest for index, digest in enumerate(image_digests) if index not in bad],
        }
        with open(part / _ENTRY, "w", encoding="utf-8", opener=only_for_owner) as file:
            file.write(json.dumps(entry))
            file.flush()
            os.fsync(file.fileno())
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _with_suffix(folder: Path, suffix: str) -> Path:
    return folder.with_name(folder.name + suffix)


def _output_shape(to_pixels: ToPixels) -> tuple[int, ...]:
    return to_pixels(Image.new("RGB", (1, 1))).shape


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


@dataclass(frozen=True)
class Prepared:
    """A data set without unusable images, and its pixels."""

    dataset: Dataset  # `skipped` lists the unusable images
    train: NDArray[np.uint8]  # (n, 3, side, side), memory-mapped if they are in the cache
    test: NDArray[np.uint8]
    notes: tuple[str, ...]  # for the user
    digest: str  # the number of images, and a digest of their names and contents in order


def prepare(
    dataset: Dataset, to_pixels: ToPixels, key: str, cache: PixelCache, progress: Progress = lambda done, total: None
) -> Prepared:
    """Decode all images, exclude the unusable ones, and apply the transform `to_pixels`, which `key` identifies."""
    train_count, total = len(dataset.train), len(dataset.train) + len(dataset.test)
    train = cache.pixels(dataset.train, to_pixels, key, lambda done, _: progress(done, total))
    test = cache.pixels(dataset.test, to_pixels, key, lambda done, _: progress(train_count + done, total))
    if len(train.array) == 0:
        reasons = [f", the first, {dataset.train.names[index]}: {reason}" for index, reason in train.bad.items()]
        example = reasons[0] if reasons else ""
        raise DataError(f"{dataset.name}: of {counted(train_count, 'training image')} none can be used{example}")
    digest = blake2b(digest_size=8)
    for images, pixels in ((dataset.train, train), (dataset.test, test)):
        digest.update(json.dumps([*images.names, *pixels.digests]).encode())
        if not pixels.digests:  # decoded in memory
            digest.update(np.ascontiguousarray(pixels.array).data)
    usable, notes = dataset.without(train.bad, test.bad), describe_duplicates(train.digests, test.digests)
    return Prepared(usable, train.array, test.array, tuple(notes), f"{counted(total, 'image')}, {digest.hexdigest()}")


def describe_duplicates(train: Sequence[str], test: Sequence[str]) -> list[str]:
    """Return notes on equal training images and on test images that are also training images, given their digests."""
    counts = Counter(digest for digest in train if not digest.startswith(UNREADABLE))
    duplicates = sum(counts.values()) - len(counts)
    shared = sum(digest in counts for digest in test)
    copies = ("training image is an exact copy of another", "training images are exact copies of others")
    in_both = ("test image is also a training image", "test images are also training images")
    return [counted(count, *words) for count, words in ((duplicates, copies), (shared, in_both)) if count]

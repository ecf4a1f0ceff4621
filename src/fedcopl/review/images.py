"""Images to review, their labels by refresh and by the finished classifier, and their pictures for a browser."""

import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..config import RunConfig
from ..config import load as load_settings
from ..data.cache import PixelCache, Progress
from ..data.catalog import SOURCES, load_dataset
from ..data.dataset import ImageSet
from ..data.decoding import BadImage, DecodeOptions
from ..data.images import FilePage, ImageList, StoredImages, digest
from ..errors import DataError, RunFolderError, printable
from ..files import no_folder
from ..plurals import counted
from ..report.gallery import on_white
from ..run.checkpoint import load_checkpoint
from ..run.folder import RESULTS
from ..run.pseudo_labels import ImageSources, PseudoLabels, read_final, read_images, read_labels, write_final

NOT_TRAINED = -1


@dataclass(frozen=True)
class _LabelHistory:
    """The labels of n images at each of R refreshes, and at the last one the likeliest classes."""

    rounds: tuple[int, ...]  # (R) in which the refreshes happened
    labels: NDArray[np.int64]  # (R, n)
    log_probability: NDArray[np.float64]  # (R, n) of each label
    top: NDArray[np.int64]  # (n, k) the likeliest classes, the most confident first
    top_log_probability: NDArray[np.float64]  # (n, k)
    trained_as: NDArray[np.int64] | None = None  # (n) the label an image is trained with, NOT_TRAINED; None: not known
    is_final: bool = False  # the last row is no refresh, but what the finished classifier says

    @classmethod
    def of(cls, refreshes: Sequence[PseudoLabels], trained_as: NDArray[np.int64] | None = None) -> "_LabelHistory":
        """Return the history of the labels of all refreshes."""
        last = refreshes[-1]
        return cls(
            tuple(labels.round for labels in refreshes),
            np.stack([labels.classes[:, 0] for labels in refreshes]).astype(np.int64),
            np.stack([labels.log_probability[:, 0] for labels in refreshes]).astype(np.float64),
            last.classes.astype(np.int64),
            last.log_probability.astype(np.float64),
            trained_as,
        )

    @property
    def origin(self) -> str:
        """Return the origin of the shown labels, such as `of the finished classifier`."""
        return "of the finished classifier" if self.is_final else f"of the refresh in round {self.rounds[-1] + 1:,}"

    @property
    def label(self) -> NDArray[np.int64]:
        """Return the label of each image: of the last refresh, or of the finished classifier."""
        label: NDArray[np.int64] = self.labels[-1]
        return label

    @property
    def confidence(self) -> NDArray[np.float64]:
        """Return the log-probability of each pseudo label."""
        confidence: NDArray[np.float64] = self.log_probability[-1]
        return confidence

    @cached_property
    def changes(self) -> NDArray[np.int64]:
        """Return how often the label of each image changed between refreshes."""
        changed: NDArray[np.int64] = (np.diff(self.labels, axis=0) != 0).sum(axis=0)
        return changed


@dataclass(frozen=True)
class Gallery:
    """The images of one client, opened one at a time when they are shown, and their labels."""

    client: str
    classes: Sequence[str]
    names: Sequence[str]
    predictions: _LabelHistory
    images: StoredImages

    def image(self, number: int) -> Image.Image:
        """Return an image; BadImage if it cannot be read."""
        return self.images[number]

    def digest(self, number: int) -> str:
        """Return a digest of its content, which identifies it when the file is moved; "" if unreadable."""
        stored = self.images
        try:
            return digest(stored.kind(number), stored.content(number))
        except OSError:
            return ""

    def file(self, number: int) -> Path | None:
        """Return where an image lies, if it is a file."""
        file = self.images.file(number)
        return None if file is None else file.path


def open_gallery(folder: Path, client: str | None) -> Gallery:
    """Return the images of one client of a run; of the only one by default."""
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: {no_folder(folder)}; name the folder of a run")
    classes, clients = read_images(folder)
    name = _choose_client(folder, list(clients), client)
    images = clients[name]
    refreshes = [labels for labels in read_labels(folder, name) if len(labels.classes) == len(images.names)]
    if not images.names or not refreshes:
        reason = "holds no image" if not images.names else "has no labels yet: a run writes them at its first refresh"
        raise RunFolderError(f"{folder}: the client {printable(name)} {reason}")
    predictions = _LabelHistory.of(refreshes, _trained_as(folder, name, len(images.names)))
    if max(int(labels.classes.max()) for labels in refreshes) >= len(classes):
        raise RunFolderError(f"{folder}: its labels do not fit its {counted(len(classes), 'class')}")
    shown = [image.encode("utf-8", "backslashreplace").decode() for image in images.names]  # answers need valid text
    return Gallery(printable(name), [printable(name) for name in classes], shown, predictions, _images(folder, images))


def _choose_client(folder: Path, clients: Sequence[str], requested: str | None) -> str:
    """The client that is meant; names are compared as they are printed."""
    shown = ", ".join(printable(name) for name in clients[:10]) + (", ..." if len(clients) > 10 else "")
    if requested is None and len(clients) == 1:
        return clients[0]
    if requested is None:
        raise RunFolderError(f"{folder}: has {counted(len(clients), 'client')}; name one with --client ({shown})")
    matches = [name for name in clients if requested in (name, printable(name))]
    if not matches:
        raise RunFolderError(f"{folder}: has no client {requested}; its clients are: {shown}")
    return matches[0]


def _trained_as(folder: Path, client: str, images: int) -> NDArray[np.int64] | None:
    """The label that each image is trained with, where the folder has a run's checkpoint."""
    checkpoint = load_checkpoint(folder)
    state = checkpoint.clients.get(client) if checkpoint else None
    if state is None or state.selection is None or (state.selection.index >= images).any():
        return None
    trained = np.full(images, NOT_TRAINED, np.int64)
    trained[state.selection.index] = state.selection.label
    return trained


def _images(folder: Path, held: ImageSources) -> StoredImages:
    if held.files is not None:
        reading = DecodeOptions.of(RunConfig.from_mapping({"data": held.reading}, str(folder)).data)
        pages = held.pages or [None] * len(held.files)
        files = [FilePage(Path(file), page) for file, page in zip(held.files, pages, strict=True)]
        return ImageList(files).with_options(reading)
    data = load_settings(folder / "settings.toml").data
    if data.source not in SOURCES:
        raise DataError(f"{folder}: its images were passed in memory and cannot be opened again")
    train = load_dataset(data).train
    index_of = {name: number for number, name in enumerate(train.names)}
    missing = [name for name in held.names if name not in index_of]
    if missing:
        raise DataError(f"{folder}: {len(missing)} of its images are not in {data.source} any more: {missing[0]}")
    return train.images.take([index_of[name] for name in held.names])


def with_final_labels(gallery: Gallery, folder: Path, progress: Progress = lambda done, total: None) -> Gallery:
    """Return the gallery with the labels of the finished classifier as its last ones.

    Raises:
        FedCoPLError: There is no finished classifier, or it cannot be loaded.
    """
    results = folder / RESULTS
    if not results.is_file():
        raise DataError("the run is not over")
    state = results.stat()
    made_of = f"{state.st_mtime_ns} {state.st_size} {len(gallery.names)}"  # a run that went on has other results
    labels = read_final(folder, gallery.client, made_of)
    if labels is None:
        log_probs = _final_log_probs(gallery, folder, progress)
        write_final(folder, gallery.client, made_of, gallery.predictions.rounds[-1] + 1, log_probs)
        labels = read_final(folder, gallery.client, made_of)
    if labels is None:
        return gallery
    before = gallery.predictions
    ending = replace(
        before,
        rounds=(*before.rounds, labels.round),
        labels=np.vstack([before.labels, labels.classes[None, :, 0]]).astype(np.int64),
        log_probability=np.vstack([before.log_probability, labels.log_probability[None, :, 0]]).astype(np.float64),
        top=labels.classes.astype(np.int64),
        top_log_probability=labels.log_probability.astype(np.float64),
        is_final=True,
    )
    return replace(gallery, predictions=ending)


def _final_log_probs(gallery: Gallery, folder: Path, progress: Progress) -> NDArray[np.float64]:
    """log p (n, C) of all images."""
    from ..classifier.loading import load  # imports torch, only where no labels are stored yet

    predictor = load(folder, client=gallery.client).predictor
    transform = predictor.transform
    pixels = PixelCache().pixels(
        ImageSet(gallery.images, names=gallery.names), transform.resize_and_crop, transform.key, progress
    )
    if pixels.bad:
        index, reason = next(iter(pixels.bad.items()))
        raise DataError(f"{gallery.names[index]}: {reason}")
    return predictor.log_probabilities(pixels.array)


SIDES = {"small": 144, "large": 720}  # pixels of the longer side
_TINY = 64  # up to this side an image is enlarged pixel by pixel
_MEMORY = 64_000_000  # bytes of pictures kept
_AT_ONCE = 3  # images decoded at the same time: one may take 256 MB


class _ShownPicture(NamedTuple):
    content: bytes
    media_type: str


class ShownPictures:
    """Pictures of a gallery by number and size."""

    def __init__(self, gallery: Gallery, memory: int = _MEMORY):
        self._gallery, self._memory = gallery, memory
        self._kept: OrderedDict[tuple[int, str], _ShownPicture] = OrderedDict()
        self._bytes = 0
        self._lock, self._decoding = threading.Lock(), threading.Semaphore(_AT_ONCE)

    def get(self, number: int, size: str) -> _ShownPicture:
        key = (number, size)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        try:
            with self._decoding:
                picture = _encoded(self._gallery.image(number), SIDES[size])
        except BadImage:
            picture = _ShownPicture(_png(_crossed_out()), "image/png")
        self._keep(key, picture)
        return picture

    def _keep(self, key: tuple[int, str], picture: _ShownPicture) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = picture
            self._bytes += len(picture.content)
            while self._bytes > self._memory and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1].content)


def _encoded(image: Image.Image, side: int) -> _ShownPicture:
    """Encode an image at most `side` pixels wide and high; a tiny one is enlarged without blurring its pixels."""
    plain = on_white(image)
    longest = max(plain.size)
    if longest <= _TINY:
        factor = max(1, side // longest)
        return _ShownPicture(
            _png(plain.resize((plain.width * factor, plain.height * factor), Image.Resampling.NEAREST)), "image/png"
        )
    plain.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    plain.save(file, "JPEG", quality=88)
    return _ShownPicture(file.getvalue(), "image/jpeg")


def _crossed_out() -> Image.Image:
    """Draw the placeholder of an image that cannot be opened."""
    blank = Image.new("L", (48, 48), 200)
    for x in range(12, 36):
        for thick in range(3):
            blank.putpixel((x, min(x + thick, 47)), 110)
            blank.putpixel((47 - x, min(x + thick, 47)), 110)
    return blank


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()

"""Images to review, their labels at each refresh and by the finished classifier, and pictures for the browser."""

import io
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

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

NOT_TRAINED = -1  # in place of the label of an image that was not used in training


@dataclass(frozen=True)
class _LabelHistory:
    """Labels of n images at each of R refreshes, and the k most probable classes at the last refresh."""

    rounds: tuple[int, ...]  # (R) rounds of the refreshes
    labels: NDArray[np.int64]  # (R, n)
    log_probability: NDArray[np.float64]  # (R, n) log-probability of each label
    top: NDArray[np.int64]  # (n, k) classes at the last refresh, the most probable first
    top_log_probability: NDArray[np.float64]  # (n, k)
    trained_as: NDArray[np.int64] | None = None  # (n) label in training or NOT_TRAINED; None: unknown
    is_final: bool = False  # whether the last row has the labels of the finished classifier

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
        """Return the shown label of each image (n): of the last refresh or of the finished classifier."""
        return np.asarray(self.labels[-1])

    @property
    def confidence(self) -> NDArray[np.float64]:
        """Return the log-probability of each shown label (n)."""
        return np.asarray(self.log_probability[-1])

    @cached_property
    def changes(self) -> NDArray[np.int64]:
        """Return the number of changes of each image's label between refreshes (n)."""
        return np.asarray((np.diff(self.labels, axis=0) != 0).sum(axis=0))


@dataclass(frozen=True)
class Gallery:
    """The images of one client, which are opened on demand, and their labels."""

    client: str
    classes: Sequence[str]
    names: Sequence[str]
    predictions: _LabelHistory
    images: StoredImages

    def image(self, number: int) -> Image.Image:
        """Return an image; BadImage if it cannot be read."""
        return self.images[number]

    def digest(self, number: int) -> str:
        """Return a digest of an image's content, which identifies a moved file; "" if it cannot be read."""
        try:
            return digest(self.images.kind(number), self.images.content(number))
        except OSError:
            return ""

    def file(self, number: int) -> Path | None:
        """Return the path of an image; None if it is not a separate file."""
        file = self.images.file(number)
        return None if file is None else file.path


def open_gallery(folder: Path, client: str | None) -> Gallery:
    """Return the images of one client of a run; the client is optional if there is only one."""
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: {no_folder(folder)}; name the folder of a run")
    classes, clients = read_images(folder)
    name = _choose_client(folder, list(clients), client)
    images = clients[name]
    refreshes = [labels for labels in read_labels(folder, name) if len(labels.classes) == len(images.names)]
    if not images.names or not refreshes:
        reason = "holds no image" if not images.names else "has no labels yet: a run writes them at its first refresh"
        raise RunFolderError(f"{folder}: the client {printable(name)} {reason}")
    history = _LabelHistory.of(refreshes, _trained_as(folder, name, len(images.names)))
    if max(int(labels.classes.max()) for labels in refreshes) >= len(classes):
        raise RunFolderError(f"{folder}: its labels do not fit its {counted(len(classes), 'class')}; run it again")
    names = [image.encode("utf-8", "backslashreplace").decode() for image in images.names]  # SQLite needs valid UTF-8
    return Gallery(printable(name), [printable(name) for name in classes], names, history, _open_images(folder, images))


def _choose_client(folder: Path, clients: Sequence[str], requested: str | None) -> str:
    """Return the requested client's name; the request may have the printable form of the name."""
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
    """Return the label of each image in training (n), NOT_TRAINED without one; None without a checkpoint."""
    checkpoint = load_checkpoint(folder)
    state = checkpoint.clients.get(client) if checkpoint else None
    if state is None or state.selection is None or (state.selection.index >= images).any():
        return None
    trained = np.full(images, NOT_TRAINED, np.int64)
    trained[state.selection.index] = state.selection.label
    return trained


def _open_images(folder: Path, sources: ImageSources) -> StoredImages:
    """Open a client's images by their recorded paths; without paths, by name in the data set of the run's settings."""
    if sources.files is not None:
        options = DecodeOptions.of(RunConfig.from_mapping({"data": sources.reading}, str(folder)).data)
        pages = sources.pages or [None] * len(sources.files)
        files = [FilePage(Path(file), page) for file, page in zip(sources.files, pages, strict=True)]
        return ImageList(files).with_options(options)
    data = load_settings(folder / "settings.toml").data
    if data.source not in SOURCES:
        raise DataError(f"{folder}: the images of this run were given in memory and cannot be opened again")
    train = load_dataset(data).train
    index_of = {name: number for number, name in enumerate(train.names)}
    missing = [name for name in sources.names if name not in index_of]
    if missing:
        not_in = f"{counted(len(missing), 'image is', 'images are')} not in {data.path or data.source} any more"
        raise DataError(f"{folder}: {not_in}, for example {missing[0]}; restore the images to review them")
    return train.images.take([index_of[name] for name in sources.names])


def with_final_labels(gallery: Gallery, folder: Path, progress: Progress = lambda done, total: None) -> Gallery:
    """Return the gallery with the labels by the finished classifier as the last row; they are computed only once.

    Raises:
        FedCoPLError: There is no finished classifier, or it cannot be loaded.
    """
    results = folder / RESULTS
    if not results.is_file():
        raise DataError("the run is not finished")
    stat = results.stat()
    results_version = f"{stat.st_mtime_ns} {stat.st_size} {len(gallery.names)}"
    labels = read_final(folder, gallery.client, results_version)
    if labels is None:
        log_probs = _final_log_probs(gallery, folder, progress)
        write_final(folder, gallery.client, results_version, gallery.predictions.rounds[-1] + 1, log_probs)
        labels = read_final(folder, gallery.client, results_version)
    if labels is None:
        return gallery
    refreshes = gallery.predictions
    history = replace(
        refreshes,
        rounds=(*refreshes.rounds, labels.round),
        labels=np.vstack([refreshes.labels, labels.classes[None, :, 0]]).astype(np.int64),
        log_probability=np.vstack([refreshes.log_probability, labels.log_probability[None, :, 0]]).astype(np.float64),
        top=labels.classes.astype(np.int64),
        top_log_probability=labels.log_probability.astype(np.float64),
        is_final=True,
    )
    return replace(gallery, predictions=history)


def _final_log_probs(gallery: Gallery, folder: Path, progress: Progress) -> NDArray[np.float64]:
    """Return the log-probabilities of all images by the finished classifier, (n, C)."""
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
_TINY = 64  # pixels; an image whose longer side is at most this is enlarged
_CACHED_PICTURES = 400  # about 150 kB each
_MAX_DECODING = 3  # images decoded at the same time, of up to 256 MB each


class _ShownPicture(NamedTuple):
    content: bytes
    media_type: str


class ShownPictures:
    """Encoded pictures of a gallery by number and size; the most recently used are cached."""

    def __init__(self, gallery: Gallery, cached: int = _CACHED_PICTURES):
        self._gallery, self._decoding = gallery, threading.Semaphore(_MAX_DECODING)
        self.get = lru_cache(maxsize=cached)(self._get)

    def _get(self, number: int, size: str) -> _ShownPicture:
        """Return a picture, or a placeholder if the image cannot be read."""
        try:
            with self._decoding:
                return _encoded(self._gallery.image(number), SIDES[size])
        except BadImage:
            return _ShownPicture(_png(_crossed_out()), "image/png")


def _encoded(image: Image.Image, side: int) -> _ShownPicture:
    """Encode an image at most `side` pixels wide and high; a tiny one is enlarged without interpolation."""
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
    draw = ImageDraw.Draw(blank)
    draw.line((12, 12, 36, 36), 110, 3)
    draw.line((36, 12, 12, 36), 110, 3)
    return blank


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()

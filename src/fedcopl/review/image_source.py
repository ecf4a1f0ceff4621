"""The images somebody reviews, and what the federation believes about each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..config import load
from ..data.catalog import SOURCES, load_dataset
from ..data.digests import digest
from ..data.images import BadImage, ImageFiles, StoredImages
from ..data.records import printable
from ..errors import DataError, RunFolderError
from ..run.believed_labels import BelievedLabels, HeldImages, read_images, read_labels
from ..run.checkpoint import load_checkpoint

NOT_TRAINED = -1


@dataclass(frozen=True)
class Beliefs:
    """The labels of n images at each of R refreshes, and at the last one the likeliest classes."""

    rounds: tuple[int, ...]  # (R) in which the refreshes happened
    labels: NDArray[np.int64]  # (R, n)
    log_probability: NDArray[np.float64]  # (R, n) of each label
    top: NDArray[np.int64]  # (n, k) the likeliest classes, the surest first
    top_log_probability: NDArray[np.float64]  # (n, k)
    trained_as: NDArray[np.int64] | None = None  # (n) the label an image is trained with, NOT_TRAINED; None: not known

    @property
    def label(self) -> NDArray[np.int64]:
        """The pseudo label of each image, as of the last refresh."""
        label: NDArray[np.int64] = self.labels[-1]
        return label

    @property
    def confidence(self) -> NDArray[np.float64]:
        """The log-probability of each pseudo label."""
        confidence: NDArray[np.float64] = self.log_probability[-1]
        return confidence

    @cached_property
    def changes(self) -> NDArray[np.int64]:
        """How often the label of each image changed from one refresh to the next."""
        changed: NDArray[np.int64] = (np.diff(self.labels, axis=0) != 0).sum(axis=0)
        return changed


class Gallery(Protocol):
    """One client's images. They are opened one at a time, when somebody looks at them."""

    @property
    def client(self) -> str: ...
    @property
    def classes(self) -> Sequence[str]: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def beliefs(self) -> Beliefs: ...

    def image(self, number: int) -> Image.Image:
        """The image, or BadImage."""
        ...

    def digest(self, number: int) -> str:
        """What is in it, so that an answer can be told to belong to it wherever the file goes; "" if unreadable."""
        ...

    def file(self, number: int) -> Path | None:
        """Where it lies, if it is a file."""
        ...


@dataclass(frozen=True)
class StoredGallery:
    """Images of a client, from whatever sequence holds them."""

    client: str
    classes: Sequence[str]
    names: Sequence[str]
    beliefs: Beliefs
    images: Sequence[Image.Image]

    def image(self, number: int) -> Image.Image:
        try:
            return self.images[number]
        except OSError as error:
            raise BadImage(f"cannot be read: {error.strerror or error}") from error

    def digest(self, number: int) -> str:
        stored = self.images
        try:
            if isinstance(stored, StoredImages):
                return digest(stored.kind, stored.content(number))
            return digest(stored[number].mode, stored[number].tobytes())
        except OSError:
            return ""

    def file(self, number: int) -> Path | None:
        return self.images.paths[number] if isinstance(self.images, ImageFiles) else None


def open_gallery(folder: Path, client: str | None) -> StoredGallery:
    """The images of one client of a run, or of the only one there is."""
    if not folder.is_dir():
        raise RunFolderError(f"{folder}: there is no such folder; name the folder of a run")
    classes, clients = read_images(folder)
    name = choose_client(folder, list(clients), client)
    held = clients[name]
    refreshes = [labels for labels in read_labels(folder, name) if len(labels.classes) == len(held.names)]
    if not held.names or not refreshes:
        why = "holds no image" if not held.names else "has no labels yet: a run writes them at its first refresh"
        raise RunFolderError(f"{folder}: the client {printable(name)} {why}")
    beliefs = beliefs_of(refreshes, _trained_as(folder, name, len(held.names)))
    if max(int(labels.classes.max()) for labels in refreshes) >= len(classes):
        raise RunFolderError(f"{folder}: its labels do not fit its {len(classes)} classes")
    shown = [printable(image) for image in held.names]
    return StoredGallery(printable(name), [printable(name) for name in classes], shown, beliefs, _images(folder, held))


def choose_client(folder: Path, clients: Sequence[str], wanted: str | None) -> str:
    """The client that is meant; names are compared as they are printed."""
    shown = ", ".join(printable(name) for name in clients[:10]) + (", ..." if len(clients) > 10 else "")
    if wanted is None and len(clients) == 1:
        return clients[0]
    if wanted is None:
        raise RunFolderError(f"{folder}: has {len(clients)} clients; name one with --client ({shown})")
    found = [name for name in clients if wanted in (name, printable(name))]
    if not found:
        raise RunFolderError(f"{folder}: has no client {wanted}; its clients are: {shown}")
    return found[0]


def beliefs_of(refreshes: Sequence[BelievedLabels], trained_as: NDArray[np.int64] | None = None) -> Beliefs:
    last = refreshes[-1]
    return Beliefs(
        tuple(labels.round for labels in refreshes),
        np.stack([labels.classes[:, 0] for labels in refreshes]).astype(np.int64),
        np.stack([labels.log_probability[:, 0] for labels in refreshes]).astype(np.float64),
        last.classes.astype(np.int64),
        last.log_probability.astype(np.float64),
        trained_as,
    )


def _trained_as(folder: Path, client: str, images: int) -> NDArray[np.int64] | None:
    """The label that each image is trained with, where the folder has a run's checkpoint."""
    checkpoint = load_checkpoint(folder)
    state = checkpoint.clients.get(client) if checkpoint else None
    if state is None or state.selection is None or (state.selection.index >= images).any():
        return None
    trained = np.full(images, NOT_TRAINED, np.int64)
    trained[state.selection.index] = state.selection.label
    return trained


def _images(folder: Path, held: HeldImages) -> Sequence[Image.Image]:
    if held.files is not None:
        return ImageFiles([Path(file) for file in held.files])
    data = load(folder / "settings.toml").data
    if data.source not in SOURCES:
        raise DataError(f"{folder}: its images were handed over in memory and cannot be opened again")
    train = load_dataset(data).train
    place = {name: number for number, name in enumerate(train.names)}
    missing = [name for name in held.names if name not in place]
    if missing:
        raise DataError(f"{folder}: {len(missing)} of its images are not in {data.source} any more: {missing[0]}")
    places, stored = [place[name] for name in held.names], train.images
    return stored.take(places) if isinstance(stored, StoredImages) else [stored[number] for number in places]

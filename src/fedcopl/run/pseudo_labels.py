"""The pseudo labels of each client's images at each refresh, for `fedcopl review`; they never leave the client."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..data.dataset import ImageSet
from ..errors import RunFolderError
from ..federation.client_state import Tensors, add_prefix
from ..files import reading, write_bytes, write_text
from .folder import file_name

_LABELS = "labels"
_TOP_CLASSES = 5  # classes of each image that are stored
_CHUNK = 4096  # images processed together, to limit memory


class PseudoLabels(NamedTuple):
    """The most probable classes of one client's images at one refresh, most probable first."""

    round: int
    classes: NDArray[np.int32]  # (n, min(C, 5))
    log_probability: NDArray[np.float32]  # of each of these classes


class LastLabels(NamedTuple):
    """The pseudo labels of one client's n images at the last refresh."""

    label: NDArray[np.int64]  # (n,)
    log_probability: NDArray[np.float64]  # (n,) of each label
    agreement: float | None = None  # share of images to which text and prototypes give the same class
    class_share: NDArray[np.float64] | None = None  # (C,) mean probability of each class
    class_error: NDArray[np.float64] | None = None  # (C,) expected share of false positives and negatives of each class

    @property
    def confidence(self) -> NDArray[np.float64]:
        """The probability of each label, (n,)."""
        return np.exp(self.log_probability)


class ImageSources(NamedTuple):
    """The images of one client, in the client's order."""

    names: list[str]
    files: list[str] | None  # paths; None for images that are not files
    pages: list[int | None] | None = None  # page numbers within the files, if there are any
    reading: Mapping[str, str] = MappingProxyType({})  # non-default settings of `data` for reading files


def write_image_list(folder: Path, classes: Sequence[str], images: ImageSet, parts: Mapping[str, NDArray[Any]]) -> None:
    """Write the class names and the images of each client; `parts` are the clients' rows in `images`."""
    sources = {client: _image_sources(images, rows) for client, rows in parts.items()}
    write_text(folder / _LABELS / "images.json", json.dumps({"classes": list(classes), "clients": sources}) + "\n")


def _image_sources(images: ImageSet, rows: NDArray[Any]) -> dict[str, Any]:
    """Return the fields of `ImageSources` that differ from the defaults."""
    stored, names = images.images, [images.names[row] for row in rows]
    files = [file for row in rows if (file := stored.file(int(row)))]
    if len(files) < len(names):
        return {"names": names, "files": None}
    pages = {"pages": [file.page for file in files]} if any(file.page is not None for file in files) else {}
    reading = {"reading": stored.options.non_defaults()} if stored.options.non_defaults() else {}
    return {"names": names, "files": [str(file.path.absolute()) for file in files], **pages, **reading}


def write_labels(
    folder: Path,
    round: int,
    log_probs: Mapping[str, NDArray[np.float64]],
    agreement: Mapping[str, float | None] = MappingProxyType({}),
) -> None:
    """Write the pseudo labels of a refresh, given log p_c(x), (n, C), and `LastLabels.agreement` of each client."""
    metadata = {"round": round, "agreement": dict(agreement)}
    _write_label_file(folder / _LABELS / f"round-{round:06}.safetensors", metadata, log_probs)


def _write_label_file(path: Path, metadata: dict[str, Any], log_probs: Mapping[str, NDArray[np.float64]]) -> None:
    tensors: Tensors = {}
    for number, rows in enumerate(log_probs.values()):
        classes, values = _top_classes(rows)
        arrays = {"classes": classes, "log_probability": values, "class_share": _class_share(rows)}
        tensors |= add_prefix(f"client/{number}/", arrays)
    write_bytes(path, save(tensors, {"about": json.dumps({**metadata, "clients": list(log_probs)})}))


def write_final(folder: Path, client: str, made_of: str, round: int, log_probs: NDArray[np.float64]) -> None:
    """Write the labels by a client's final classifier; `made_of` identifies the run's state that it was made from."""
    _write_label_file(_final_file(folder, client), {"round": round, "made_of": made_of}, {client: log_probs})


def read_final(folder: Path, client: str, made_of: str) -> PseudoLabels | None:
    """Return the labels by a client's final classifier; None if they are missing or were not made from `made_of`."""
    file = _final_file(folder, client)
    if not file.is_file():
        return None
    with suppress(RunFolderError), _open_labels(file) as (_, about):
        if about["made_of"] == made_of:
            return _labels_in(file, client)
    return None


def _final_file(folder: Path, client: str) -> Path:
    return folder / _LABELS / "final" / f"{file_name(client)}.safetensors"


def _top_classes(log_probs: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the most probable classes of each image and their log-probabilities; ties go to the lower class."""
    shape = len(log_probs), min(_TOP_CLASSES, log_probs.shape[1])
    classes, values = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for start in range(0, len(log_probs), _CHUNK):
        remaining = np.array(log_probs[start : start + _CHUNK])
        rows = np.arange(len(remaining))
        for rank in range(shape[1]):
            best = remaining.argmax(axis=1)
            classes[start + rows, rank], values[start + rows, rank] = best, remaining[rows, best]
            remaining[rows, best] = -np.inf
    return classes, values


def _class_share(log_probs: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the mean probability of each class, and its expected share of false positives and negatives, (2, C)."""
    sums = np.zeros((2, log_probs.shape[1]))
    for start in range(0, len(log_probs), _CHUNK):
        probabilities = np.exp(log_probs[start : start + _CHUNK])
        sums[0] += probabilities.sum(axis=0)
        labelled = np.arange(len(probabilities)), probabilities.argmax(axis=1)
        probabilities[labelled] = 1 - probabilities[labelled]  # false positives; the other entries are false negatives
        sums[1] += probabilities.sum(axis=0)
    return (sums / max(len(log_probs), 1)).astype(np.float32)


def read_images(folder: Path) -> tuple[tuple[str, ...], dict[str, ImageSources]]:
    """Return the class names and the images of each client.

    Raises:
        RunFolderError: The folder has no such file, or it is damaged.
    """
    file = folder / _LABELS / "images.json"
    if not file.exists():
        raise RunFolderError(f"{folder}: has no labels; a run writes them to {_LABELS}/ when it starts")
    with reading(file):
        stored = json.loads(file.read_text(encoding="utf-8"))
        sources = {client: ImageSources(**fields) for client, fields in stored["clients"].items()}
        return tuple(stored["classes"]), sources


def read_labels(folder: Path, client: str) -> list[PseudoLabels]:
    """Return the pseudo labels of a client at each refresh so far, in order."""
    files = sorted((folder / _LABELS).glob("round-*.safetensors"))
    return [labels for labels in (_labels_in(file, client) for file in files) if labels is not None]


def read_last_labels(folder: Path) -> dict[str, LastLabels]:
    """Return the labels of every client at the last refresh; empty without label files."""
    file = max((folder / _LABELS).glob("round-*.safetensors"), default=None)
    if file is None:
        return {}
    last, names = {}, ("classes", "log_probability", "class_share")
    with _open_labels(file) as (stored, about):
        for number, client in enumerate(about["clients"]):
            classes, log_probability, shares = (stored.get_tensor(f"client/{number}/{name}") for name in names)
            last[client] = LastLabels(
                classes[:, 0].astype(np.int64),
                log_probability[:, 0].astype(np.float64).clip(max=0),
                about.get("agreement", {}).get(client),
                *shares.astype(np.float64).clip(0, 1),
            )
    return last


def _labels_in(file: Path, client: str) -> PseudoLabels | None:
    with _open_labels(file) as (stored, about):
        if client not in about["clients"]:
            return None
        prefix = f"client/{about['clients'].index(client)}"
        arrays = (stored.get_tensor(f"{prefix}/{name}") for name in ("classes", "log_probability"))
        return PseudoLabels(about["round"], *arrays)


@contextmanager
def _open_labels(file: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a label file with its metadata; errors while it is open become a RunFolderError that names the file."""
    with reading(file, SafetensorError), safe_open(file, framework="numpy") as stored:
        yield stored, json.loads(stored.metadata()["about"])

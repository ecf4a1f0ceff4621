"""Example images of each pseudo label, from the most to the least confident."""

import base64
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import RunFolderError
from ..files import read_limited
from ..run.folder import EXAMPLES
from ..run.record import adapter

_PER_CLASS = 8  # images shown of a class
_DOUBTED = 12  # least confident images of all
_IN_ALL = 480  # with many classes fewer are shown of each, but never fewer than 2
_SIDE = 96  # pixels of a thumbnail's longer side
_TINY = 32  # up to this side an image is kept pixel by pixel and enlarged by the page


@dataclass(frozen=True)
class ChosenImages:
    """Images of one client with their pseudo labels: all of them, or those selected for training."""

    client: str
    index: NDArray[np.int64]  # of each image: its position in the data set
    label: NDArray[np.int64]  # its pseudo label
    confidence: NDArray[np.float64]  # the log-probability of that label


@dataclass(frozen=True)
class Example:
    """One pseudo-labelled image as the page shows it."""

    image: str  # a data URI
    width: int
    height: int
    label: int  # the pseudo label
    pseudo: str  # its class name
    confidence: float  # the label's probability
    truth: str | None  # the true class name, where labels exist
    right: bool | None
    client: str
    index: int  # the image's position in the data set
    doubted: bool = False  # one of the least confident of all images, selected or not

    @property
    def tiny(self) -> bool:
        return max(self.width, self.height) <= _TINY


def as_plain(examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Return the content of examples.json, from which the page can be written again without the images."""
    return [asdict(example) for example in examples]


def read_examples(folder: Path, classes: int) -> list[Example]:
    """Return the examples that were kept with a run; none where there is no such file."""
    file = folder / EXAMPLES
    if not file.is_file():
        return []
    try:
        return _examples_from(read_limited(file), classes)
    except OSError as error:
        raise RunFolderError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RunFolderError(f"{file}: is damaged: {error}; remove it to write the report without examples") from error


def _examples_from(content: bytes, classes: int) -> list[Example]:
    """Parse the content of examples.json; ValueError for what is damaged."""
    try:
        examples: list[Example] = adapter(list[Example]).validate_json(content, strict=True)
    except ValueError as error:  # of pydantic: a headline, then for each mistake its place, its text [and more]
        lines = [line.partition(" [")[0].strip() for line in str(error).splitlines()[1:3]]
        raise ValueError(": ".join(line for line in lines if not line.startswith("For further"))) from error
    for number, example in enumerate(examples):
        if not example.image.startswith("data:image/") or not 0 <= example.label < classes:
            raise ValueError(f"example {number} is not an image of one of the {classes} classes")
    return examples


def gallery(
    images: Sequence[Image.Image],
    labels: NDArray[np.int64] | None,
    classes: Sequence[str],
    chosen: Sequence[ChosenImages],
) -> list[Example]:
    """Return examples of each class, the most confident first.

    All selected images of a class are ranked by the log-probability of their label, and evenly spaced ranks are
    shown, always with the first and the last.
    """
    owner, position, label = _ranked(chosen)
    limit = max(2, min(_PER_CLASS, _IN_ALL // max(len(classes), 1)))
    shown: list[int] = []
    for c in range(len(classes)):
        ranked = np.flatnonzero(label == c)
        number = min(limit, len(ranked))
        shown += [int(ranked[rank * (len(ranked) - 1) // max(number - 1, 1)]) for rank in range(number)]
    return [_example(images, labels, classes, chosen[owner[n]], int(position[n])) for n in shown]


def _ranked(chosen: Sequence[ChosenImages]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return client, position within its images, and label of all images, the most confident first."""
    nothing, sizes = np.zeros(0, np.int64), [len(one.index) for one in chosen]
    index, label = (np.concatenate([nothing, *(getattr(one, name) for one in chosen)]) for name in ("index", "label"))
    confidence = np.concatenate([np.zeros(0), *(one.confidence for one in chosen)])
    order = np.lexsort((index, -confidence))
    position = np.concatenate([nothing, *(np.arange(size) for size in sizes)])
    return np.repeat(np.arange(len(chosen)), sizes)[order], position[order], label[order]


def least_confident(
    images: Sequence[Image.Image],
    labels: NDArray[np.int64] | None,
    classes: Sequence[str],
    held: Sequence[ChosenImages],
) -> list[Example]:
    """Return examples of the images of all clients whose labels are least confident, the least confident first."""
    owner, position, _ = _ranked(held)
    return [
        replace(_example(images, labels, classes, held[client], int(at)), doubted=True)
        for client, at in zip(owner[::-1][:_DOUBTED], position[::-1][:_DOUBTED], strict=True)
    ]


def _example(
    images: Sequence[Image.Image],
    labels: NDArray[np.int64] | None,
    classes: Sequence[str],
    held: ChosenImages,
    position: int,
) -> Example:
    index, label = int(held.index[position]), int(held.label[position])
    true = None if labels is None else int(labels[index])
    uri, width, height = _thumbnail(images[index])
    return Example(
        image=uri,
        width=width,
        height=height,
        label=label,
        pseudo=classes[label],
        confidence=min(float(np.exp(held.confidence[position])), 1.0),
        truth=None if true is None else classes[true],
        right=None if true is None else true == label,
        client=held.client,
        index=index,
    )


def _thumbnail(image: Image.Image) -> tuple[str, int, int]:
    """Return the image as a data URI, at most _SIDE pixels wide and high; a tiny one is kept as it is."""
    small = on_white(image)
    if max(small.size) <= _TINY:
        return _data_uri(small, "PNG"), *small.size
    small.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return _data_uri(small, "JPEG"), *small.size


def on_white(image: Image.Image) -> Image.Image:
    """Return a copy in grey or in colour, on white where it is transparent."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _stretched(image)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _stretched(image: Image.Image) -> Image.Image:
    """Scale deep grey (16 bit, float) from its darkest to its lightest pixel: its scale is not known."""
    pixels = np.asarray(image, np.float64)
    low, high = float(pixels.min()), float(pixels.max())
    return Image.fromarray(((pixels - low) * (255 / ((high - low) or 1))).round().astype(np.uint8))


def _data_uri(image: Image.Image, form: str) -> str:
    file = io.BytesIO()
    image.save(file, form, optimize=True, quality=80)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"

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
_LEAST_CONFIDENT = 12  # images shown of all classes
_MAX_EXAMPLES = 480  # of many classes fewer images are shown, but at least 2 of each
_SIDE = 96  # pixels of a thumbnail's longer side
_TINY = 32  # up to this side an image is kept pixel by pixel and enlarged by the page


@dataclass(frozen=True)
class ChosenImages:
    """Images of one client with their pseudo labels: all of them, or those selected for training."""

    client: str
    index: NDArray[np.int64]  # of each image: its position in the data set
    label: NDArray[np.int64]  # its pseudo label
    confidence: NDArray[np.float64]  # the log-probability of this label


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
    least_confident: bool = False  # of all images, selected for training or not

    @property
    def tiny(self) -> bool:
        return max(self.width, self.height) <= _TINY


def as_plain(examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Return the content of examples.json, from which the report can be written again without the images."""
    return [asdict(example) for example in examples]


def read_examples(folder: Path, classes: int) -> list[Example]:
    """Return the examples in the run's folder; an empty list without examples.json."""
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
    """Parse the content of examples.json.

    Raises:
        ValueError: An example is damaged; the message names it.
    """
    try:
        examples: list[Example] = adapter(list[Example]).validate_json(content, strict=True)
    except ValueError as error:  # pydantic's text: a title, then for each error its path and `message [details]`
        lines = [line.partition(" [")[0].strip() for line in str(error).splitlines()[1:3]]
        raise ValueError(": ".join(line for line in lines if not line.startswith("For further"))) from error
    for number, example in enumerate(examples):
        if not example.image.startswith("data:image/") or not 0 <= example.label < classes:
            raise ValueError(f"example {number} is not an image of one of the {classes} classes")
    return examples


def gallery(
    images: Sequence[Image.Image],
    true_labels: NDArray[np.int64] | None,
    classes: Sequence[str],
    selected: Sequence[ChosenImages],
    labelled: Sequence[ChosenImages] = (),
) -> list[Example]:
    """Return examples of each class, the most confident first, then the least confident of all images.

    All selected images of a class are ranked by the log-probability of their label, and evenly spaced ranks are
    shown, always with the first and the last.

    Args:
        images: The training images of all clients.
        true_labels: Their true labels, where labels exist.
        classes: The class names.
        selected: The images that each client selected for training.
        labelled: All images of each client, for the least confident ones.
    """

    def example(chosen: ChosenImages, position: int) -> Example:
        index, label = int(chosen.index[position]), int(chosen.label[position])
        true = None if true_labels is None else int(true_labels[index])
        uri, width, height = _thumbnail(images[index])
        return Example(
            image=uri,
            width=width,
            height=height,
            label=label,
            pseudo=classes[label],
            confidence=min(float(np.exp(chosen.confidence[position])), 1.0),
            truth=None if true is None else classes[true],
            right=None if true is None else true == label,
            client=chosen.client,
            index=index,
        )

    client, position, label = _ranked(selected)
    limit = max(2, min(_PER_CLASS, _MAX_EXAMPLES // max(len(classes), 1)))
    shown: list[int] = []
    for c in range(len(classes)):
        ranked = np.flatnonzero(label == c)
        number = min(limit, len(ranked))
        shown += [int(ranked[rank * (len(ranked) - 1) // max(number - 1, 1)]) for rank in range(number)]
    examples = [example(selected[client[n]], int(position[n])) for n in shown]
    client, position, _ = _ranked(labelled)
    least_confident = list(zip(client, position, strict=True))[: -_LEAST_CONFIDENT - 1 : -1]
    return examples + [replace(example(labelled[k], int(n)), least_confident=True) for k, n in least_confident]


def _ranked(clients: Sequence[ChosenImages]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return index of the client, index in its images, and label of all images, the most confident first."""
    empty, sizes = np.zeros(0, np.int64), [len(chosen.index) for chosen in clients]
    index = np.concatenate([empty, *(chosen.index for chosen in clients)])
    label = np.concatenate([empty, *(chosen.label for chosen in clients)])
    confidence = np.concatenate([np.zeros(0), *(chosen.confidence for chosen in clients)])
    position = np.concatenate([empty, *(np.arange(size) for size in sizes)])
    order = np.lexsort((index, -confidence))
    return np.repeat(np.arange(len(clients)), sizes)[order], position[order], label[order]


def _thumbnail(image: Image.Image) -> tuple[str, int, int]:
    """Return data URI, width and height of an image reduced to _SIDE pixels; a tiny image keeps its pixels."""
    small = on_white(image)
    if max(small.size) <= _TINY:
        return _data_uri(small, "PNG"), *small.size
    small.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return _data_uri(small, "JPEG"), *small.size


def on_white(image: Image.Image) -> Image.Image:
    """Return a copy in mode L or RGB, with transparent pixels on white."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _stretched(image)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _stretched(image: Image.Image) -> Image.Image:
    """Scale a grey image of 16 bits or floats, whose range is unknown: its darkest pixel to 0, its lightest to 255."""
    pixels = np.asarray(image, np.float64)
    low, high = float(pixels.min()), float(pixels.max())
    return Image.fromarray(((pixels - low) * (255 / ((high - low) or 1))).round().astype(np.uint8))


def _data_uri(image: Image.Image, image_format: str) -> str:
    file = io.BytesIO()
    image.save(file, image_format, optimize=True, quality=80)
    return f"data:image/{image_format.lower()};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"

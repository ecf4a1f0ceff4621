"""Stored image features and class embeddings of any CLIP as a data set and a frozen CLIP, for methods without prompts.

The settings `data.source=features`, `data.path=FILE.npz`, `model.backbone=FILE.npz` name such features. Both encoders
are lookup tables: an image is one pixel whose colour encodes a row number, and the image encoder returns the feature in
that row; a sentence is a class name, and the text encoder returns its embedding. There are no patches and no words, so
methods that train prompts or use patches cannot run.

A file has `train`, `test` (image features, n x d), `train_y`, `test_y` (labels), `text` (class embeddings, C x d),
`scale` (the logit scale) and, if known, `classes` (names). `fedcopl_experiments.priors_study encode` writes one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from fedcopl.clip.blocks import TowerShape
from fedcopl.clip.formats.layouts import ClipParts
from fedcopl.clip.frozen_clip import Clip
from fedcopl.clip.preprocess import ImageTransform
from fedcopl.clip.text_towers import Sentences, TextTower
from fedcopl.clip.tokenizer import Tokenizer
from fedcopl.clip.vision_towers import VisionTower
from fedcopl.data.dataset import Dataset, ImageSet
from fedcopl.data.images import PillowImages
from fedcopl.errors import DataError, ModelError
from fedcopl.rng import stream

_ARRAYS = ("train", "train_y", "test", "test_y", "text", "scale")
_POSITIONS = 77  # tokens of a sentence, as many as CLIP's
_ONE_PIXEL = ImageTransform(1, 1, mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255))


def _table_shape(width: int) -> TowerShape:
    return TowerShape(width, depth=0, heads=1, hidden=0)


class FeatureTable(nn.Module):
    """An image encoder that returns the stored feature whose row number the colour of a pixel encodes."""

    image, patch, embed_batch = 1, 1, 4096
    prompt_width = 0

    def __init__(self, features: NDArray[np.float32]):
        super().__init__()
        self.shape = _table_shape(features.shape[1])
        self.features = nn.Parameter(torch.from_numpy(features))
        self.positions = nn.Parameter(torch.zeros(1, features.shape[1]))

    def embed(self, pixels: Tensor) -> Tensor:
        """Return the features of one-pixel images, (B, 1, d)."""
        red, green, blue = pixels.round().long().flatten(1).T
        return self.features[(red << 16) + (green << 8) + blue][:, None]

    def forward(self, tokens: Tensor, prompts: Sequence[Tensor] = ()) -> Tensor:
        return tokens[:, 0]

    @property
    def prompt_levels(self) -> int:
        raise ModelError("stored features have no image encoder, so visual prompts cannot be trained")

    usual_prompt_levels = prompt_levels

    def patch_features(self, tokens: Tensor) -> Tensor:
        raise ModelError("stored features have no features of patches")


class EmbeddingTable(TextTower):
    """A text encoder whose only sentences are the class names."""

    def __init__(self, embeddings: NDArray[np.float32]):
        classes, width = embeddings.shape
        super().__init__(_table_shape(width), vocabulary=classes, positions=_POSITIONS, output=width)
        self.embedding = nn.Embedding.from_pretrained(torch.from_numpy(embeddings))
        self.positions = nn.Parameter(torch.zeros(_POSITIONS, width))

    def forward(self, sentences: Sentences, context: Tensor | None = None) -> Tensor:
        if context is not None:
            raise ModelError("stored features have no text encoder, so text prompts cannot be trained")
        embeddings: Tensor = self.embedding(sentences.rest[:, 0])
        return embeddings


def load_features(path: Path) -> tuple[Dataset, Clip]:
    """Read a file of features.

    Raises:
        DataError: The file is missing or has other arrays.
    """
    arrays = _read(path)
    classes = tuple(map(str, arrays.get("classes", [f"class {number}" for number in range(len(arrays["text"]))])))
    images, texts = with_unit_texts(*(np.asarray(arrays[name], np.float64) for name in ("train", "test", "text")))
    rows = np.arange(len(images))
    train, test = np.split(rows, [len(arrays["train"])])
    dataset = Dataset(
        path.stem,
        classes,
        "{}",
        ImageSet(_pixels(train), np.asarray(arrays["train_y"], np.int64)),
        ImageSet(_pixels(test), np.asarray(arrays["test_y"], np.int64)),
    )
    return dataset, _clip(path, images, texts, float(arrays["scale"]), classes)


def _read(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as features: {error}") from error
    missing = [name for name in _ARRAYS if name not in arrays]
    if missing:
        raise DataError(f"{path}: has no array {missing[0]!r}; a file of features has {', '.join(_ARRAYS)}")
    sizes = {arrays[name].shape[-1] for name in ("train", "test", "text")}
    if len(sizes) > 1:
        raise DataError(f"{path}: train, test and text have different numbers of features: {sorted(sizes)}")
    return arrays


def with_unit_texts(
    train: NDArray[np.float64], test: NDArray[np.float64], texts: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the features of all images and the class embeddings, scaled to length one without changing the logits.

    A class embedding that was projected on the subspace of the images is shorter than one. An additional dimension, in
    which all images are 0, brings it to length one. A random rotation then spreads this dimension over all coordinates,
    as in a real CLIP, because some methods divide by the variance of each coordinate.
    """
    images = np.concatenate([train, test])
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    lengths = np.linalg.norm(texts, axis=1)
    if lengths.max() > 1 + 1e-3:
        raise DataError(f"class embeddings should have at most length 1 (the longest has {lengths.max():.3f})")
    if lengths.min() < 1 - 1e-3:
        missing = np.sqrt(np.maximum(1 - lengths**2, 0))
        images = np.concatenate([images, np.zeros((len(images), 1))], axis=1)
        texts = np.concatenate([texts, missing[:, None]], axis=1)
        rotation = np.linalg.qr(stream(0, "rotation of features").standard_normal([images.shape[1]] * 2))[0]
        images, texts = images @ rotation, texts @ rotation
    return images.astype(np.float32), texts.astype(np.float32)


def _pixels(rows: NDArray[np.int64]) -> PillowImages:
    return PillowImages([Image.new("RGB", (1, 1), (row >> 16, row >> 8 & 255, row & 255)) for row in rows.tolist()])


def _clip(
    path: Path, images: NDArray[np.float32], texts: NDArray[np.float32], scale: float, classes: Sequence[str]
) -> Clip:
    number = {name: index for index, name in enumerate(classes)}

    def rows(sentences: Sequence[str]) -> list[list[int]]:
        names = [sentence if sentence in number else sentence.removesuffix(".") for sentence in sentences]
        unknown = [name for name in names if name not in number]
        if unknown:
            raise ModelError(f"{path}: has stored embeddings of the classes only, not of {unknown[0]!r}")
        return [[number[name]] for name in names]

    def sentences(rows: Sequence[Sequence[int]]) -> Sentences:
        return Sentences(torch.empty(0, dtype=torch.long), torch.tensor(rows), torch.zeros(len(rows), dtype=torch.long))

    tokenizer = Tokenizer(rows, start_id=None, end_id=0, pad_id=0, vocabulary=len(classes))
    vision = cast(VisionTower, FeatureTable(images))
    return Clip(str(path), ClipParts(vision, EmbeddingTable(texts), scale, tokenizer, _ONE_PIXEL, sentences))

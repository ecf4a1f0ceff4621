"""Several models and wordings on one site's images, ranked without labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from ..algorithm.choosing import LabelFreeSignals, scores, signals
from ..clip.device import choose_arithmetic
from ..clip.encoder import Encoder
from ..clip.frozen_clip import Clip, load_clip
from ..config import Data
from ..data.catalog import load_dataset
from ..errors import ConfigError, DataError
from ..rng import stream

BATCH = 32
KEPT = 0.9  # of each side, when an image is changed a little
DIMMED = 0.8


@dataclass(frozen=True)
class RankedModel:
    """One candidate: a model with a wording, what the images say of it, and its place among the others."""

    model: str
    template: str
    signals: LabelFreeSignals
    score: float


def compare_models(
    images: Path, classes: Path, models: Sequence[str], templates: Sequence[str], most: int
) -> list[RankedModel]:
    """All models with all templates, the best first. Looks at up to `most` images, drawn by lot but always the same."""
    dataset = load_dataset(Data(source="folder", path=str(images), classes_file=str(classes)))
    pictures = dataset.train.images
    if not len(pictures):
        raise DataError(f"{images}: holds no images")
    chosen = [pictures[int(row)] for row in _some(len(pictures), most)]
    candidates = [(model, template) for model in models for template in templates]
    if len(candidates) < 2:
        raise ConfigError("give at least two models, or one model and two templates")
    plain, changed = [], []
    for model in models:
        clip = load_clip(model)
        pixels = [_cut(clip, pictures) for pictures in (chosen, [changed_a_little(image) for image in chosen])]
        for template in templates:
            encoder = Encoder(clip, dataset.classes, dataset.wording(template), choose_arithmetic("auto", "fp32"))
            before, after = (log_probabilities(encoder, some) for some in pixels)
            plain.append(before)
            changed.append(after)
    found = signals(plain, changed)
    ranked = [
        RankedModel(model, template, one, float(score))
        for (model, template), one, score in zip(candidates, found, scores(found), strict=True)
    ]
    return sorted(ranked, key=lambda one: -one.score)


def _some(count: int, most: int) -> NDArray[np.int64]:
    return np.sort(stream(0, "images to compare models on").permutation(count)[:most])


def changed_a_little(image: Image.Image) -> Image.Image:
    """The middle of it, and darker: what it shows stays what it is, letters and digits too."""
    cut_x, cut_y = (round(side * (1 - KEPT) / 2) for side in image.size)
    middle = image.convert("RGB").crop((cut_x, cut_y, image.width - cut_x, image.height - cut_y))
    return ImageEnhance.Brightness(middle).enhance(DIMMED)


def _cut(clip: Clip, pictures: Sequence[Image.Image]) -> NDArray[np.uint8]:
    return np.stack([clip.preprocess.cut(picture) for picture in pictures])


@torch.inference_mode()
def log_probabilities(encoder: Encoder, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """log p of plain CLIP, (n, C)."""
    classes, parts = encoder.class_features(None), []
    for start in range(0, len(pixels), BATCH):
        batch = torch.from_numpy(encoder.clip.preprocess.scale(pixels[start : start + BATCH])).to(encoder.device)
        parts.append(encoder.logits(encoder.image_features(encoder.clip.vision.embed(batch)), classes))
    return torch.cat(parts).cpu().double().log_softmax(-1).numpy()

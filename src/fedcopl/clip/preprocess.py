"""From a picture to the numbers a CLIP reads. Pillow and NumPy only."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import ModelError

# What OpenAI trained with, and everybody since: for checkpoints that do not say.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)  # mean and deviation of SigLIP


@dataclass(frozen=True)
class ImageTransform:
    """Scale the short side to `short_side`, cut the middle `crop` x `crop`, centre and scale the colours.

    With `squash` both sides are scaled to `short_side`, whatever that does to the proportions.
    """

    short_side: int
    crop: int
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    resample: Image.Resampling = Image.Resampling.BICUBIC
    squash: bool = False

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        """The picture as (3, crop, crop)."""
        return self.scale(self.cut(image))

    def cut(self, image: Image.Image) -> NDArray[np.uint8]:
        """Resized and cropped, as (3, crop, crop): all that is slow, and all that is worth keeping."""
        size = (self.short_side, self.short_side) if self.squash else fit_short_side(image.size, self.short_side)
        # Pillow's filters widen when they shrink an image: this is the antialias.
        middle = crop_middle(to_rgb(image).resize(size, self.resample), self.crop)
        return np.ascontiguousarray(np.asarray(middle, np.uint8).transpose(2, 0, 1))

    def scale(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Colours of (..., 3, height, width), centred and scaled."""
        mean, std = (np.asarray(three, np.float32)[:, None, None] for three in (self.mean, self.std))
        scaled: NDArray[np.float32] = (np.asarray(pixels, np.float32) / np.float32(255) - mean) / std
        return scaled

    @property
    def key(self) -> str:
        """Names what `cut` does: transforms of one key give the same bytes."""
        fit = "squashed to" if self.squash else "short side"
        return f"{fit} {self.short_side}, cut {self.crop}, {self.resample.name.lower()}"


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB; what is transparent becomes white, as in `transformers`."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), layer).convert("RGB")


def fit_short_side(size: tuple[int, int], short_side: int) -> tuple[int, int]:
    """Keep the proportions; the long side is rounded down."""
    width, height = size
    if width <= height:
        return short_side, int(short_side * height / width)
    return int(short_side * width / height), short_side


def crop_middle(image: Image.Image, side: int) -> Image.Image:
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def read_transform(settings: Mapping[str, Any], image_size: int, file: Path) -> ImageTransform:
    """The transform a `preprocessor_config.json` describes; `image_size` is what the model reads."""
    crop = _side(settings.get("crop_size", image_size), file)
    short_side = _side(settings.get("size", crop), file)
    if crop != image_size or short_side < crop:
        raise ModelError(f"{file}: makes images of {short_side}, cut to {crop}; the model reads {image_size}")
    for step in ("do_resize", "do_center_crop", "do_convert_rgb", "do_rescale", "do_normalize"):
        if settings.get(step) is False:
            raise ModelError(f"{file}: {step} is off, but a CLIP needs it")
    return ImageTransform(
        short_side,
        crop,
        three_numbers(settings.get("image_mean", CLIP_MEAN), file),
        three_numbers(settings.get("image_std", CLIP_STD), file),
        _resampling(settings.get("resample", Image.Resampling.BICUBIC), file),
        squash=isinstance(settings.get("size"), Mapping) and "height" in settings["size"],
    )


def _side(size: Any, file: Path) -> int:
    """Older files hold a number; newer ones name the side or both, which are then equal."""
    sides = [*size.values()] if isinstance(size, Mapping) else [size]
    side = sides[0] if sides and sides.count(sides[0]) == len(sides) else None
    if not isinstance(side, int) or side < 1:
        raise ModelError(f"{file}: a size must be one positive number, not {size!r}")
    return side


def three_numbers(values: Any, file: Path) -> tuple[float, ...]:
    is_list = isinstance(values, list | tuple) and len(values) == 3
    if not is_list or not all(isinstance(value, int | float) for value in values):
        raise ModelError(f"{file}: image_mean and image_std must be three numbers, not {values!r}")
    return tuple(float(value) for value in values)


def _resampling(number: Any, file: Path) -> Image.Resampling:
    try:
        return Image.Resampling(number)
    except ValueError as error:
        raise ModelError(f"{file}: resample is {number!r}, which Pillow does not know") from error

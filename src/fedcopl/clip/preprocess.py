"""Image transform of a CLIP: resize, crop, normalise. Pillow and NumPy only."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import ModelError

# OpenAI's values: the defaults of checkpoints.
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)  # mean and standard deviation of SigLIP


@dataclass(frozen=True)
class ImageTransform:
    """Resize the short side to `short_side`, crop the centre to `crop` x `crop`, normalise the colours.

    With `squash` both sides are resized to `short_side`, without keeping the aspect ratio.
    """

    short_side: int
    crop: int
    mean: tuple[float, ...] = _CLIP_MEAN
    std: tuple[float, ...] = _CLIP_STD
    resample: Image.Resampling = Image.Resampling.BICUBIC
    squash: bool = False

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        """Transform an image to (3, crop, crop)."""
        return self.scale(self.resize_and_crop(image))

    def resize_and_crop(self, image: Image.Image) -> NDArray[np.uint8]:
        """Resize and crop an image to (3, crop, crop): the slow part, which is cached."""
        short = min(image.size)
        size = tuple(self.short_side if self.squash else int(self.short_side * side / short) for side in image.size)
        resized = _to_rgb(image).resize((size[0], size[1]), self.resample)  # Pillow's filters antialias
        left, top = (resized.width - self.crop) // 2, (resized.height - self.crop) // 2
        centre = resized.crop((left, top, left + self.crop, top + self.crop))
        return np.ascontiguousarray(np.asarray(centre, np.uint8).transpose(2, 0, 1))

    def scale(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Normalise the colours of (..., 3, height, width)."""
        mean, std = (np.asarray(channels, np.float32)[:, None, None] for channels in (self.mean, self.std))
        scaled: NDArray[np.float32] = (np.asarray(pixels, np.float32) / np.float32(255) - mean) / std
        return scaled

    @property
    def key(self) -> str:
        """Cache key: transforms with equal keys have the same `resize_and_crop`."""
        fit = "squashed to" if self.squash else "short side"
        return f"{fit} {self.short_side}, cut {self.crop}, {self.resample.name.lower()}"


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB on a white background, as in `transformers`."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), layer).convert("RGB")


def read_transform(settings: Mapping[str, Any], image_size: int, file: Path) -> ImageTransform:
    """Read the transform in a `preprocessor_config.json`, for a model of this `image_size`."""
    crop = _side(settings.get("crop_size", image_size), file)
    short_side = _side(settings.get("size", crop), file)
    if crop != image_size or short_side < crop:
        raise ModelError(
            f"{file}: resizes images to {short_side} and crops them to {crop} pixels; the model needs {image_size}"
        )
    for step in ("do_resize", "do_center_crop", "do_convert_rgb", "do_rescale", "do_normalize"):
        if settings.get(step) is False:
            raise ModelError(f"{file}: {step} is false, but CLIP requires this step")
    number = settings.get("resample", Image.Resampling.BICUBIC)
    try:
        resample = Image.Resampling(number)
    except ValueError as error:
        raise ModelError(f"{file}: resample is {number!r}, which is not a resampling filter of Pillow") from error
    return ImageTransform(
        short_side,
        crop,
        _three_numbers(settings.get("image_mean", _CLIP_MEAN), file),
        _three_numbers(settings.get("image_std", _CLIP_STD), file),
        resample,
        squash=isinstance(settings.get("size"), Mapping) and "height" in settings["size"],
    )


def read_open_clip_transform(preprocess: Mapping[str, Any], image_size: int, file: Path) -> ImageTransform:
    """Read the transform in the section preprocess_cfg of an open_clip config."""
    if not isinstance(preprocess, Mapping):
        raise ModelError(f"{file}: preprocess_cfg is {preprocess!r}, not a JSON object")
    modes = {"shortest": False, "squash": True}
    filters = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
    mode, resample = preprocess.get("resize_mode") or "shortest", preprocess.get("interpolation") or "bicubic"
    if mode not in modes or resample not in filters:
        raise ModelError(f"{file}: resize_mode {mode!r} with interpolation {resample!r} is not supported")
    return ImageTransform(
        image_size,
        image_size,
        _three_numbers(preprocess.get("mean", _CLIP_MEAN), file),
        _three_numbers(preprocess.get("std", _CLIP_STD), file),
        filters[resample],
        squash=modes[mode],
    )


def _side(size: Any, file: Path) -> int:
    """Read the side of a square: a number in older files, a mapping with equal values in newer ones."""
    sides = [*size.values()] if isinstance(size, Mapping) else [size]
    side = sides[0] if sides and sides.count(sides[0]) == len(sides) else None
    if not isinstance(side, int) or side < 1:
        raise ModelError(f"{file}: size and crop_size must each give one positive number, not {size!r}")
    return side


def _three_numbers(values: Any, file: Path) -> tuple[float, ...]:
    """Validate a mean or standard deviation of three channels."""
    is_list = isinstance(values, list | tuple) and len(values) == 3
    if not is_list or not all(isinstance(value, int | float) for value in values):
        raise ModelError(f"{file}: image_mean and image_std must be three numbers, not {values!r}")
    return tuple(float(value) for value in values)

"""Small pictures and folders of them, made on the spot."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from fedcopl.clip.preprocess import ImageTransform
from fedcopl.config import Data
from fedcopl.data.catalog import load_dataset

TRANSFORM = ImageTransform(short_side=18, crop=16)


def noise(seed: int, size: tuple[int, int] = (24, 20), mode: str = "RGB") -> Image.Image:
    """A picture that no other seed gives."""
    width, height = size
    dots = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(dots).convert(mode)


def encoded(image: Image.Image, form: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def make_images(root: Path, *names: str) -> Path:
    """A different picture under each of these names."""
    for seed, name in enumerate(names):
        put(root, name, encoded(noise(seed)))
    return root


def put(root: Path, name: str, content: bytes | str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def load(source: str, path: Path | str, **settings):
    return load_dataset(Data(source=source, path=str(path), **settings))


def decoded(image_set, transform: ImageTransform = TRANSFORM) -> np.ndarray:
    """The pixels without any cache."""
    return np.stack([transform.resize_and_crop(image) for image in image_set.images])

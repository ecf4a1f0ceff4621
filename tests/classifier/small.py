"""A federation small enough to run in seconds: a few real digits at two sites."""

from pathlib import Path

import numpy as np
from PIL import Image

from fedcopl.config import RunConfig
from fedcopl.data.catalog import CLASSES
from fedcopl.data.in_memory import SiteImages, collect_images, dataset_of_sites
from fedcopl.simulation.simulate import simulate
from small_digits import all_digits

SITES = ("north", "south/../[1]")  # a name that must stay a name
QUICK = {
    "rounds": 1,
    "train": {"epochs": 1},
    "model": {"threads": 1},
    "data": {"source": "sites", "partition": "natural"},
}


def digits(split: str, start: int, stop: int) -> tuple[list[Image.Image], np.ndarray]:
    images = getattr(all_digits(), split)
    return list(images.images[start:stop]), images.labels[start:stop]


def images_of_sites() -> list[SiteImages]:
    return [images_of_site(name, 40 * number) for number, name in enumerate(SITES)]


def images_of_site(name: str, start: int) -> SiteImages:
    train, _ = digits("train", start, start + 40)
    test, truth = digits("test", start, start + 30)
    return SiteImages(name, pictures(train), pictures(test), truth)


def pictures(images):
    return collect_images(images, "images")


def small_dataset():
    return dataset_of_sites(images_of_sites(), CLASSES)


def small_run(folder: Path, **settings) -> Path:
    simulate(RunConfig.from_mapping({**QUICK, **settings}, "test"), folder, dataset=small_dataset())
    return folder

"""Make the data of the grid in docs/results.md: a subset of CIFAR-10 as image folders, and stored CLIP features.

    python tools/grid_data.py OUT --cifar DIR --features DIR

`--cifar` is a folder with the official files of CIFAR-10; `--features` one with `real_clip.py` and its image features.
OUT then has cifar10-30 and a file NAME.npz for each set of features.
"""

import argparse
import importlib.util
from pathlib import Path

import numpy as np

from fedcopl.config import Data
from fedcopl.data.catalog import load_dataset
from fedcopl.rng import stream

IMAGES_PER_CLASS = 30  # of each split
FEATURE_SETS = ("dtd", "flowers", "aircraft")


def write_cifar_subset(cifar: Path, out: Path) -> None:
    """Write random images of each class of CIFAR-10 to OUT/SPLIT/CLASS."""
    dataset = load_dataset(Data(source="cifar10", path=str(cifar)))
    rng = stream(0, "images of the grid")
    for split, images in (("train", dataset.train), ("test", dataset.test)):
        assert images.labels is not None
        for label, class_name in enumerate(dataset.classes):
            folder = out / split / class_name
            folder.mkdir(parents=True, exist_ok=True)
            for row in rng.choice(np.flatnonzero(images.labels == label), IMAGES_PER_CLASS, replace=False):
                images.images[int(row)].save(folder / f"{row:05}.png")


def write_features(folder: Path, out: Path) -> None:
    """Write each set of features with a text classifier of CLIP's accuracy, drawn with seed 1."""
    module_spec = importlib.util.spec_from_file_location("real_clip", folder / "real_clip.py")
    assert module_spec is not None and module_spec.loader is not None
    real_clip = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(real_clip)
    for name in FEATURE_SETS:
        np.savez_compressed(out / f"{name}.npz", **real_clip.load(name, seed=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--features", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_cifar_subset(arguments.cifar, arguments.out / "cifar10-30")
    write_features(arguments.features, arguments.out)


if __name__ == "__main__":
    main()

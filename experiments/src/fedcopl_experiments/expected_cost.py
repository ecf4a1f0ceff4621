"""What a run will cost by `fedcopl.run.cost_model`, before its data and its model are on this machine."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from fedcopl.clip.device import choose_device
from fedcopl.clip.formats.hub import BUILT_IN
from fedcopl.clip.frozen_clip import Clip, load_clip
from fedcopl.clip.timing import TowerRates, try_product, try_towers
from fedcopl.clip.weightless import NAMED, weightless_clip
from fedcopl.config import RunConfig
from fedcopl.run.cost_model import RunCost, RunSize, run_cost

DATA_SETS: Mapping[str, tuple[int, int, int]] = {  # images to train and to test on, classes: docs/data.md
    "dtd": (3760, 1880, 47),
    "resisc45": (6300, 25200, 45),
    "cub200": (5994, 5794, 200),
    "ucf101": (7639, 3783, 101),
    "cifar10": (50000, 10000, 10),
    "cifar100": (50000, 10000, 100),
    "digits": (1198, 599, 10),
}
ANOTHER = (10_000, 2_500, 100)  # data set, of which nothing is known
LARGEST = "ViT-L/14"  # for a model of which nothing is known
WORDS = 8  # tokens of the longest class name


def expected_cost(config: RunConfig) -> RunCost:
    train, test, classes = DATA_SETS.get(config.data.source, ANOTHER)
    return run_cost(config, _sizes(config.model.backbone), RunSize(train, test, config.data.clients, classes, WORDS))


def expected_seconds(config: RunConfig) -> float:
    """By how fast this machine is at the model itself, where it is embedded; otherwise at a bare matrix product."""
    return expected_cost(config).seconds(_rates(config.model.backbone))


@cache
def _sizes(backbone: str) -> Clip:
    """Nothing is fetched for this."""
    if backbone in BUILT_IN or (backbone not in NAMED and Path(backbone).exists()):
        return load_clip(backbone)
    return weightless_clip(backbone if backbone in NAMED else LARGEST)


@cache
def _rates(backbone: str) -> TowerRates:
    if backbone in BUILT_IN:
        return _on_one_thread(backbone)
    return try_product(choose_device("auto"))


def _on_one_thread(backbone: str) -> TowerRates:
    """As the embedded model is run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return try_towers(_sizes(backbone))
    finally:
        torch.set_num_threads(threads)

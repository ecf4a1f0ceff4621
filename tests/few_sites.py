"""Three sites with a few digits each, and what of a run must be the same to the bit."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from fedcopl.config import RunConfig, override
from fedcopl.data.catalog import load_digits
from fedcopl.data.dataset import Dataset
from fedcopl.run.record import Outcome
from fedcopl.simulation.simulate import simulate

SHORT = ["rounds=2", "refresh_every=1", "epochs=1", "labels.per_class=4", "partition=natural"]
SITES = 3


@cache
def small() -> Dataset:
    """Few digits, which three sites hold in turn."""
    digits = load_digits()
    sets = (
        replace(images, images=images.images[:many], labels=images.labels[:many], clients=np.arange(many) % SITES)
        for images, many in ((digits.train, 90), (digits.test, 30))
    )
    train, test = sets
    return replace(digits, train=train, test=test, clients=("east", "north", "south"))


def config_of(*pairs):
    return RunConfig.from_mapping(override({}, [*SHORT, *pairs]), "test")


@pytest.fixture(scope="session")
def plainly(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Outcome, Path]]:
    """Plays a run as plainly as can be, in one process, states in memory, no stop; for all who compare with it once."""
    return lambda *pairs: _plainly(tmp_path_factory.getbasetemp(), pairs)


@cache
def _plainly(below: Path, pairs: tuple[str, ...]) -> tuple[Outcome, Path]:
    folder = Path(mkdtemp(dir=below)) / "run"
    outcome = simulate(config_of(*pairs), folder, workers=1, dataset=small())
    assert not (folder / "states").exists()
    return outcome, folder


def without_times(plain):
    if isinstance(plain, dict):
        return {key: without_times(value) for key, value in plain.items() if not key.startswith("seconds")}
    return [without_times(value) for value in plain] if isinstance(plain, list) else plain


def bits(folder):
    kinds = ("prompts/**/*.safetensors", "labels/**/*", "examples.json")
    files = sorted(path for kind in kinds for path in Path(folder).glob(kind) if path.is_file())
    assert len(files) > 8
    return {path.relative_to(folder): path.read_bytes() for path in files}

"""Runs on three sites with a few digits each, and the files that must be bit-identical in equal runs."""

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
def three_site_digits() -> Dataset:
    """Return 90 training and 30 test images of digits; image i belongs to site i mod 3."""
    digits = load_digits()
    sets = (
        replace(images, images=images.images[:count], labels=images.labels[:count], clients=np.arange(count) % SITES)
        for images, count in ((digits.train, 90), (digits.test, 30))
    )
    train, test = sets
    return replace(digits, train=train, test=test, clients=("east", "north", "south"))


def config_of(*pairs):
    return RunConfig.from_mapping(override({}, [*SHORT, *pairs]), "test")


@pytest.fixture(scope="session")
def reference_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Outcome, Path]]:
    """Return a function that runs once per settings in one process, without interruption, with states in memory."""
    return lambda *pairs: _reference_run(tmp_path_factory.getbasetemp(), pairs)


@cache
def _reference_run(parent: Path, pairs: tuple[str, ...]) -> tuple[Outcome, Path]:
    folder = Path(mkdtemp(dir=parent)) / "run"
    outcome = simulate(config_of(*pairs), folder, workers=1, dataset=three_site_digits())
    assert not (folder / "states").exists()
    return outcome, folder


def without_times(plain):
    if isinstance(plain, dict):
        return {key: without_times(value) for key, value in plain.items() if not key.startswith("seconds")}
    return [without_times(value) for value in plain] if isinstance(plain, list) else plain


def result_files(folder):
    kinds = ("prompts/**/*.safetensors", "labels/**/*", "examples.json")
    files = sorted(path for kind in kinds for path in Path(folder).glob(kind) if path.is_file())
    assert len(files) > 8
    return {path.relative_to(folder): path.read_bytes() for path in files}

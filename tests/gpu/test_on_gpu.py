"""What runs on a GPU, held to the CPU: `make test-gpu`. Bounds are stated here; docs/install.md names them."""

import numpy as np
import pytest
import torch

from clip.arithmetic_distance import FARTHEST, distance
from fedcopl.clip.device import choose_arithmetic
from fedcopl.clip.encoder import Encoder
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.config import RunConfig, override
from fedcopl.data.catalog import CLASSES
from fedcopl.errors import ConfigError
from fedcopl.methods import METHODS, choose_method
from fedcopl.methods.learner import ClipLearner
from fedcopl.methods.prompted_model import PromptedModel
from fedcopl.simulation.simulate import simulate
from fedcopl.simulation.worker_pool import working_memory
from fedcopl_experiments.grid_workers import devices
from methods.toolbox import CHOSEN, config_of, images, learner_of, trained
from small_digits import ONLY_LABEL_SHIFT, small_digits

pytestmark = pytest.mark.gpu
RUN = ["clients=3", "rounds=2", "epochs=1", "refresh_every=1", *ONLY_LABEL_SHIFT]


def config(*pairs):
    return RunConfig.from_mapping(override({}, [*RUN, *pairs]), "test")


@pytest.mark.parametrize("precision", FARTHEST)
def test_a_step_is_that_of_the_cpu(kind, precision):
    assert distance(choose_arithmetic(kind, precision)).is_within(FARTHEST[precision])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_as_on_the_cpu(kind, method):
    settings = config_of(method)
    encoder = Encoder(load_clip("glyph-clip"), CLASSES, "a photo of a {}", choose_arithmetic(kind, "fp32"))
    chosen = choose_method(settings)
    start = chosen.start(encoder.clip, encoder.classes)
    on_gpu = ClipLearner(PromptedModel(chosen, encoder), images(), start, settings, 0)
    ours, our_loss = trained(on_gpu)
    theirs, their_loss = trained(learner_of(method))
    assert our_loss == pytest.approx(their_loss, rel=1e-3, nan_ok=True)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-2, atol=1e-3)


def test_a_whole_run_ends_as_on_the_cpu(kind, tmp_path):
    runs = {
        device: simulate(config(f"device={device}"), tmp_path / device, dataset=small_digits())
        for device in (kind, "cpu")
    }
    accuracies = [run.final.macro for run in runs.values()]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.02)


def test_the_same_seed_gives_the_same_bits(kind, tmp_path):
    first, second = (
        simulate(config(f"device={kind}"), tmp_path / name, dataset=small_digits()) for name in ("first", "second")
    )
    assert [one.loss for one in first.rounds] == [one.loss for one in second.rounds]
    for ours in sorted((tmp_path / "first").glob("**/*.npz")):
        theirs = tmp_path / "second" / ours.relative_to(tmp_path / "first")
        with np.load(ours) as a, np.load(theirs) as b:
            assert all(np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f") for name in a)


def in_use(kind):
    """Bytes of the GPU: at the highest, where it is told."""
    return torch.cuda.max_memory_allocated() if kind == "cuda" else torch.mps.driver_allocated_memory()


def test_memory_of_the_gpu_is_as_estimated_and_does_not_grow(kind):
    settings = config_of("fedcopl", "batch=40")
    encoder = Encoder(load_clip("glyph-clip"), CLASSES, "a photo of a {}", choose_arithmetic(kind, "fp32"))
    chosen = choose_method(settings)
    start = chosen.start(encoder.clip, encoder.classes)
    learner = ClipLearner(PromptedModel(chosen, encoder), images(), start, settings, 0)
    before, used = in_use(kind), []
    for _ in range(3):
        learner.log_probabilities(learner.initial())
        trained(learner, CHOSEN)
        used.append(in_use(kind) - before)
    estimated = working_memory(settings, encoder.clip, CLASSES)
    assert used[2] <= 1.01 * used[1]
    assert used[2] <= 1.5 * estimated + 64e6  # and what the libraries reserve


def test_each_gpu_is_a_worker_of_the_grid(kind):
    """`fedcopl reproduce --jobs N` gives each worker a GPU of its own by the names that `devices` finds."""
    if kind == "cuda":
        assert len(devices()) == torch.cuda.device_count()


def test_forked_workers_of_a_simulation_are_refused_in_one_line(kind, tmp_path):
    with pytest.raises(ConfigError, match="workers: need the CPU"):
        simulate(config(f"device={kind}"), tmp_path / "run", dataset=small_digits(), workers=2)

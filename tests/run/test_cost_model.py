"""What a run costs: counted by hand on a small one, and the bytes against a run that was played."""

import json

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from clip.test_tower_work import small_clip
from fedcopl.algorithm.select import Selection
from fedcopl.clip.blocks import TowerShape
from fedcopl.clip.device import Arithmetic
from fedcopl.clip.encoder import Encoder
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.clip.image_tokens import ClientImages, TokenStore
from fedcopl.clip.timing import TowerRates
from fedcopl.clip.tower_work import (
    embedding_work,
    image_work,
    prompt_work,
    text_work,
    token_bytes,
    weight_bytes,
    words_of,
)
from fedcopl.config import RunConfig, override
from fedcopl.methods import METHODS, choose_method
from fedcopl.methods.learner import ClipLearner
from fedcopl.methods.prompted_model import PromptedModel
from fedcopl.published import AS_PUBLISHED
from fedcopl.run.cost_model import KEPT_FREED, PROGRAM, Passes, RunCost, RunSize, memory_of, run_cost, working_memory
from fedcopl.simulation.simulate import simulate

SIZE = RunSize(train=1000, test=300, clients=4, classes=10, words=5)


@pytest.fixture(scope="module")
def clip():
    return load_clip("glyph-clip")


def published(*pairs):
    letter = [f"{name}={json.dumps(value)}" for name, value in AS_PUBLISHED.items()]
    return RunConfig.from_mapping(override({}, [*letter, *pairs]), "test")


def test_passes_by_hand():
    config = published("rounds=7", "refresh_every=3", "epochs=2", "batch=100", "evaluation.every=2")
    # refreshes at rounds 0, 3, 6; measured after 2, 4, 6 and 7. Half of the images have a label, 125 at each client.
    assert Passes.of(config, choose_method(config), SIZE) == Passes(
        plain_looks=1000 + 300,
        looks=1000 * 2 + 300 * 4,
        trained=7 * 2 * 500,
        steps=7 * 2 * 4 * 2,
        text_passes=1 + 4 * (3 + 4),
    )


def test_half_of_the_clients_and_a_guard_by_hand():
    config = published("rounds=2", "epochs=1", "batch=50", "participation=0.5", "holdout=0.2")
    passes = Passes.of(config, choose_method(config), SIZE)
    # two clients train on 125 images each, of which 25 are the exam's: looked at twice a round
    assert (passes.trained, passes.steps) == (2 * 200, 2 * 2 * 2)
    assert passes.looks == 0 + 300 * 2 + 2 * 2 * 50


def test_fpl_chooses_so_many_of_each_class():
    config = published("labeler=fpl", "per_class=2", "rounds=1", "epochs=1")
    assert Passes.of(config, choose_method(config), SIZE).trained == 2 * 10 * 4


def test_flop_are_passes_times_work(clip):
    config = published("rounds=1", "epochs=1", "batch=125")
    cost = run_cost(config, clip, SIZE)
    vectors, levels = 5, clip.vision.usual_prompt_levels
    step = text_work(clip, 10, 5, 16)
    assert cost.embedding == embedding_work(clip).forward * 1300
    image = image_work(clip, vectors, levels)
    assert cost.labelling == image_work(clip).forward * 1300 + image.forward * 300
    assert cost.training == image.both_ways * 500 + prompt_work(clip, vectors, levels).both_ways * 4
    assert cost.trained_sentences == step.both_ways * 4
    assert cost.sentences == text_work(clip, 10, 5, 5).forward + step.forward * 4 * 2


def test_memory_is_program_weights_images_and_a_step(clip):
    small, large = (run_cost(published(f"batch={batch}"), clip, SIZE).memory for batch in (500, 1000))
    image = image_work(clip, 5, clip.vision.usual_prompt_levels)
    shape = clip.vision.shape
    widest = token_bytes(clip) * (5 + 2 * shape.hidden / shape.width)
    assert large - small == pytest.approx(KEPT_FREED * 500 * (image.kept + widest))
    none = run_cost(published("batch=500", "model.memory=0"), clip, SIZE).memory
    assert small - none == token_bytes(clip) * 1300
    rest = small - PROGRAM - weight_bytes(clip) - token_bytes(clip) * 1300
    step = 500 * (image.kept + widest) + text_work(clip, 10, 5, 16).kept
    assert rest == pytest.approx(KEPT_FREED * step)


def test_without_memory_images_are_embedded_whenever_they_are_looked_at(clip):
    config = published("rounds=1", "epochs=1", "model.memory=0")
    assert run_cost(config, clip, SIZE).embedding == embedding_work(clip).forward * (1300 + 300 + 500)


def test_seconds_are_flop_over_rates():
    cost = RunCost(1e9, 2e9, 3e9, 4e9, 6e9, 0, 0, 0)
    assert cost.seconds(TowerRates(images=2e9, texts=5e9)) == 3 + 2
    assert cost.flop == 16e9


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_cost_and_frozen_images_make_it_less(method, clip):
    cost = run_cost(published(f"method={method}"), clip, SIZE)
    fedcopl = run_cost(published(), clip, SIZE)
    frozen = choose_method(published(f"method={method}")).keeps_images
    assert cost.flop > 0
    assert (cost.training == 0) == (frozen or not choose_method(published(f"method={method}")).trains)
    assert not frozen or cost.images < fedcopl.images / 5


def test_bytes_are_those_of_a_run_to_the_byte(tmp_path, clip):
    config = published(
        "clients=4", "rounds=3", "refresh_every=2", "epochs=1", "participation=0.5", "evaluation.every=2"
    )
    outcome = simulate(config, tmp_path / "run")
    cost = run_cost(config, clip, RunSize(1198, 599, 4, 10, 5))
    assert (cost.up, cost.down) == (outcome.bytes_up, outcome.bytes_down)


@pytest.mark.parametrize(
    "sizes", ["192 4 3 768 16 96 64 20 16", "96 3 3 384 32 128 200 100 32", "128 2 2 512 16 64 256 10 8"]
)
def test_memory_is_what_torch_has_in_use_at_the_peak(sizes):
    """Width, depth, heads, hidden, patch, side; images, classes, batch.

    Counted by torch's own allocator, the same on every machine. What the system gives a process for it is not.
    """
    width, depth, heads, hidden, patch, side, images, classes, batch = map(int, sizes.split())
    config = published("epochs=1", f"train.batch={batch}")
    pixels = np.random.default_rng(0).integers(0, 256, (images, 3, side, side), np.uint8)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        clip = small_clip(TowerShape(width, depth, heads, hidden), patch, side)
        _label_and_train(config, clip, pixels, classes)
    size = RunSize(images, 0, 1, classes, words_of(clip, _names(classes)))
    in_use = working_memory(config, clip, size) / KEPT_FREED
    reckoned = memory_of(config, clip, size) - PROGRAM - working_memory(config, clip, size) + in_use
    assert reckoned == pytest.approx(_peak(profiled), rel=0.2)


def _names(classes):
    return [f"class number {number}" for number in range(classes)]


def _label_and_train(config, clip, pixels, classes):
    """One client looks at all its images and takes two steps of training."""
    method = choose_method(config)
    encoder = Encoder(clip, _names(classes), "a photo of a {}", Arithmetic(torch.device("cpu")))
    own = ClientImages(TokenStore.of(clip, pixels, 4e9), np.arange(len(pixels)))
    learner = ClipLearner(PromptedModel(method, encoder), own, method.start(clip, classes), config, 0)
    learner.log_probabilities(None)
    chosen = np.arange(2 * config.train.batch)
    learner.train(learner.initial(), Selection(chosen, chosen % classes), 0)


def _peak(profiled):
    """Bytes that were in use at once, at most."""
    changes = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return np.cumsum([event.nbytes() for event in changes]).max()

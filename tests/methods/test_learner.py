"""Local training and evaluation on the built-in model."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedcopl.algorithm.select import Selection
from fedcopl.clip.device import Arithmetic, choose_arithmetic
from fedcopl.clip.encoder import ClientImages, Encoder, TokenStore
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.config import RunConfig
from fedcopl.data.catalog import CLASSES, load_digits
from fedcopl.errors import ConfigError
from fedcopl.methods import choose_method, prompted_model
from fedcopl.methods.learner import ClipLearner, ClipTestSet, score_everywhere
from fedcopl.methods.prompted_model import PromptedModel
from fedcopl.methods.prompts import random_prompts, visual_shape
from fedcopl.methods.trainer import SGD, learning_rate

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def clip():
    return load_clip("glyph-clip")


@pytest.fixture(scope="module")
def encoder(clip):
    return Encoder(clip, CLASSES, "a photo of a {}", Arithmetic(CPU))


@pytest.fixture(scope="module")
def digits():
    return load_digits().train


@pytest.fixture(scope="module")
def store(clip, digits):
    return store_of(clip, digits.images[:100])


@pytest.fixture(scope="module")
def images(store):
    return ClientImages(store, np.arange(100))


def store_of(clip, pictures, memory=1e9):
    return TokenStore.of(clip, np.stack([clip.preprocess.resize_and_crop(picture) for picture in pictures]), memory)


def config_of(**train):
    return RunConfig.from_mapping({"train": {"epochs": 2, "batch": 16} | train}, "test")


def learner_of(encoder, images, number=0, config=None):
    config = config or config_of()
    method = choose_method(config)
    return ClipLearner(
        PromptedModel(method, encoder), images, method.start(encoder.clip, encoder.classes), config, number
    )


def labelled_test_set(encoder, images, truth):
    return ClipTestSet(PromptedModel(choose_method(config_of()), encoder), images, truth)


CHOSEN = Selection(np.arange(40), np.arange(40) % 10)


def test_learning_rate_of_the_paper():
    # lr (1 + cos(pi e / 50)) / 2 with E = 10, Q = 5: e = 0, 10, 25, 40, 49
    config = RunConfig()
    rates = [learning_rate(config, r, epoch, 0.1) for r, epoch in [(0, 0), (1, 0), (2, 5), (4, 0), (4, 9)]]
    assert rates == pytest.approx([0.1, 0.0904508, 0.05, 0.00954915, 0.0000986636], rel=1e-5)
    assert learning_rate(config, 5, 0, 0.1) == 0.1  # restarts at the refresh


def test_learning_rate_over_the_whole_run():
    config = config_of(epochs=10, schedule="run")
    assert learning_rate(config, 10, 0, 0.1) == pytest.approx(0.05)  # half of 20 rounds
    assert learning_rate(config, 5, 0, 0.1) == pytest.approx(0.1 * (1 + np.cos(np.pi / 4)) / 2)


def test_sizes_come_from_the_backbone(clip):
    shapes = choose_method(RunConfig()).shapes(clip, 3)
    blocks, width = clip.vision.shape.depth, clip.vision.shape.width
    assert shapes == {"visual": (blocks - 1, 5, width), "text": (16, clip.text.shape.width)}
    every = RunConfig.from_mapping({"model": {"visual_depth": "all"}}, "test").model
    assert visual_shape(clip, every)[0] == blocks
    two = RunConfig.from_mapping({"model": {"visual_depth": 2}}, "test").model
    assert visual_shape(clip, two)[0] == 2
    with pytest.raises(ConfigError, match="visual_depth: must be from 0 to 4, the number of blocks of glyph-clip"):
        visual_shape(clip, RunConfig.from_mapping({"model": {"visual_depth": 5}}, "test").model)


def test_initial_prompts_have_the_right_spread_and_their_own_streams():
    prompts = random_prompts({"visual": (11, 5, 768), "text": (16, 512)}, 0.02, seed=3)
    assert prompts["visual"].std() == pytest.approx(0.02, rel=0.02)
    assert abs(prompts["text"].mean()) < 0.001
    alone = random_prompts({"text": (16, 512)}, 0.02, seed=3)
    assert (alone["text"] == prompts["text"]).all()
    assert sum(p.size for p in prompts.values()) == 42_240 + 8_192


def test_zero_shot_is_plain_clip(clip, encoder, digits, images):
    pixels = torch.from_numpy(np.stack([clip.preprocess(image) for image in digits.images[:100]]))
    pictures = F.normalize(clip.encode_image(pixels), dim=-1)
    texts = F.normalize(clip.encode_text(clip.tokenize([f"a photo of a {name}" for name in CLASSES])), dim=-1)
    expected = (clip.logit_scale * pictures @ texts.T).log_softmax(-1)
    ours = learner_of(encoder, images).log_probabilities(None)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, expected.numpy(), atol=2e-4)
    np.testing.assert_allclose(np.exp(ours).sum(1), 1)


def test_training_lowers_the_loss_and_moves_both_prompts(encoder, images):
    learner = learner_of(encoder, images, config=config_of(epochs=8))
    trained, last = learner.train(learner.initial(), CHOSEN, round=0)
    _, first = learner_of(encoder, images, config=config_of(epochs=1, lr=1e-9)).train(learner.initial(), CHOSEN, 0)
    assert last < first
    assert all((trained[name] != learner.initial()[name]).any() for name in ("visual", "text"))
    assert all(value.dtype == np.float32 for value in trained.values())


def test_the_frozen_model_stays_as_it_is(clip, encoder, images):
    before = {name: value.clone() for name, value in clip.state_dict().items()}
    learner = learner_of(encoder, images)
    learner.train(learner.initial(), CHOSEN, round=0)
    assert all(torch.equal(value, before[name]) for name, value in clip.state_dict().items())
    assert all(parameter.grad is None for parameter in clip.parameters())


def test_training_does_not_depend_on_the_client_that_trained_before(encoder, images):
    alone, _ = learner_of(encoder, images, number=1).train(learner_of(encoder, images).initial(), CHOSEN, 3)
    learner_of(encoder, images, number=0).train(learner_of(encoder, images).initial(), CHOSEN, 3)
    after, _ = learner_of(encoder, images, number=1).train(learner_of(encoder, images).initial(), CHOSEN, 3)
    assert all((alone[name] == after[name]).all() for name in alone)


def test_the_order_of_images_depends_on_client_and_round(encoder, images):
    start = learner_of(encoder, images).initial()
    runs = [
        learner_of(encoder, images, number=n).train(start, CHOSEN, r)[0]["text"] for n, r in [(0, 0), (1, 0), (0, 5)]
    ]
    assert (runs[0] != runs[1]).any()
    assert (runs[0] != runs[2]).any()  # the same learning rate as round 0, another order


def test_one_step_by_hand(encoder, images):
    # One batch, one epoch: p - lr * (grad + weight_decay * p), the first step of SGD with momentum.
    plain = {"step": "plain", "decay_to": "zero", "clip_norm": 0}
    learner = learner_of(encoder, images, config=config_of(epochs=1, batch=64, lr=0.05, weight_decay=0.1, **plain))
    start = {name: torch.tensor(value).requires_grad_() for name, value in learner.initial().items()}
    features = F.normalize(encoder.clip.vision(images.tokens(CHOSEN.index), tuple(start["visual"])), dim=-1)
    texts = F.normalize(encoder.clip.text(encoder.clip.sentences([f"{n}." for n in CLASSES]), start["text"]), dim=-1)
    F.cross_entropy(encoder.clip.logit_scale * features @ texts.T, torch.from_numpy(CHOSEN.label)).backward()
    trained, _ = learner.train(learner.initial(), CHOSEN, round=0)
    for name, value in start.items():
        expected = value - 0.05 * (value.grad + 0.1 * value)
        np.testing.assert_allclose(trained[name], expected.detach().numpy(), atol=2e-6)


@pytest.mark.parametrize("schedule", ["refresh", "run"])
def test_two_steps_by_hand(encoder, images, schedule):
    # An epoch is one batch. v1 = g1, p1 = p0 - lr1 v1; v2 = 0.9 v1 + g2, p2 = p1 - lr2 v2, where g is the gradient plus
    # the decay 0.1 p. Round 1 of 4, two epochs each: e = 2 and 3 of 8, or with a refresh each two rounds 2 and 3 of 4.
    more = {"step": "plain", "decay_to": "zero", "clip_norm": 0, "momentum": 0.9, "schedule": schedule}
    settings = {"epochs": 2, "batch": 64, "lr": 0.05, "weight_decay": 0.1} | more
    config = RunConfig.from_mapping({"rounds": 4, "labels": {"refresh_every": 2}, "train": settings}, "test")
    learner = learner_of(encoder, images, config=config)
    whole = {"refresh": 4, "run": 8}[schedule]
    rates = [0.05 * (1 + np.cos(np.pi * done / whole)) / 2 for done in (2, 3)]
    prompts, speed = learner.initial(), {"visual": 0.0, "text": 0.0}
    for rate in rates:
        slopes = gradients(encoder, images, prompts)
        speed = {name: 0.9 * speed[name] + slopes[name] + 0.1 * value for name, value in prompts.items()}
        prompts = {name: (value - rate * speed[name]).astype(np.float32) for name, value in prompts.items()}
    trained, _ = learner.train(learner.initial(), CHOSEN, round=1)
    for name, expected in prompts.items():
        moved = np.abs(expected - learner.initial()[name]).max()
        np.testing.assert_allclose(trained[name], expected, atol=1e-3 * moved)


def gradients(encoder, images, prompts):
    named = {name: torch.tensor(value).requires_grad_() for name, value in prompts.items()}
    features = F.normalize(encoder.clip.vision(images.tokens(CHOSEN.index), tuple(named["visual"])), dim=-1)
    texts = F.normalize(encoder.clip.text(encoder.clip.sentences([f"{n}." for n in CLASSES]), named["text"]), dim=-1)
    F.cross_entropy(encoder.clip.logit_scale * features @ texts.T, torch.from_numpy(CHOSEN.label)).backward()
    return {name: value.grad.numpy() for name, value in named.items()}


def test_one_relative_step_by_hand(encoder, images):
    # p = start + r q, r the mean length of a level's vectors: q - lr (r grad + decay q).
    learner = learner_of(encoder, images, config=config_of(epochs=1, batch=64, lr=0.05, weight_decay=0.1, clip_norm=0))
    start = learner.initial()
    begin = {name: value + np.float32(0.01) for name, value in start.items()}
    slopes = gradients(encoder, images, begin)
    trained, _ = learner.train(begin, CHOSEN, round=0)
    for name, value in begin.items():
        unit = np.linalg.norm(value, axis=-1, keepdims=True).mean(axis=-2, keepdims=True)
        expected = value - 0.05 * (unit**2 * slopes[name] + 0.1 * (value - start[name]))
        np.testing.assert_allclose(trained[name], expected, atol=2e-6)


def test_gradient_clipping_by_hand(encoder, images):
    # All arrays together: p - lr g 0.01 / |g|.
    plain = {"step": "plain", "decay_to": "zero", "weight_decay": 0, "clip_norm": 0.01}
    learner = learner_of(encoder, images, config=config_of(epochs=1, batch=64, lr=0.05, **plain))
    start = learner.initial()
    slopes = gradients(encoder, images, start)
    length = np.sqrt(sum((slope.astype(np.float64) ** 2).sum() for slope in slopes.values()))
    assert length > 0.01  # so it is clipped
    trained, _ = learner.train(start, CHOSEN, round=0)
    moved = np.sqrt(sum(((trained[name] - value).astype(np.float64) ** 2).sum() for name, value in start.items()))
    assert moved == pytest.approx(0.05 * 0.01, rel=1e-3)
    for name, value in start.items():
        np.testing.assert_allclose(trained[name], value - 0.05 * slopes[name] * 0.01 / length, atol=1e-6)


def test_relative_steps_do_not_depend_on_the_length_of_a_prompt(encoder, images):
    # Before a layer norm only the direction of a prompt counts: ten times as long, it should turn by the same angle.
    learner = learner_of(encoder, images, config=config_of(epochs=1, weight_decay=0))
    start = learner.initial()
    long = start | {"visual": 10 * start["visual"]}
    turned, turned_long = (learner.train(prompts, CHOSEN, round=0)[0]["visual"] for prompts in (start, long))
    moved, moved_long = turned - start["visual"], turned_long - long["visual"]
    assert np.linalg.norm(moved_long) / np.linalg.norm(moved) == pytest.approx(10, rel=0.2)


def test_lr_factor_multiplies_the_learning_rate(encoder, images):
    slow = learner_of(encoder, images, config=config_of(lr=0.1))
    fast = learner_of(encoder, images, config=config_of(lr=0.2))
    one, other = slow.train(slow.initial(), CHOSEN, 0), fast.train(fast.initial(), CHOSEN, 0, lr_factor=0.5)
    assert all(np.array_equal(one[0][name], other[0][name]) for name in one[0])


def test_log_probabilities_of_some_images_equal_those_of_all(encoder, images):
    learner = learner_of(encoder, images)
    index = np.array([3, 50, 7])
    result = learner.log_probabilities_of(learner.initial(), index)
    np.testing.assert_allclose(result, learner.log_probabilities(learner.initial())[index], atol=1e-5)


def test_a_test_set_counts_correct_predictions(encoder, images, digits):
    test_set = labelled_test_set(encoder, images, digits.labels[:100])
    predicted = learner_of(encoder, images).log_probabilities(None).argmax(1)
    assert test_set.score(None) == (int((predicted == digits.labels[:100]).sum()), 100)
    prompts = learner_of(encoder, images).initial()
    predicted = learner_of(encoder, images).log_probabilities(prompts).argmax(1)
    assert test_set.score(prompts) == (int((predicted == digits.labels[:100]).sum()), 100)


def test_a_test_set_uses_the_given_prompts(encoder, images, digits):
    test_set = labelled_test_set(encoder, images, digits.labels[:100])
    start = learner_of(encoder, images).initial()
    scaled = {name: value * 50 for name, value in start.items()}
    fresh = labelled_test_set(encoder, images, digits.labels[:100]).predict(scaled)
    test_set.predict(start)
    assert torch.equal(test_set.predict(scaled), fresh)
    assert not torch.equal(test_set.predict(start), fresh)


def test_score_everywhere_is_the_sum_over_all_test_sets(encoder, images, digits):
    start = learner_of(encoder, images).initial()
    scaled = {name: value * 50 for name, value in start.items()}
    model = PromptedModel(choose_method(config_of()), encoder)
    parts = np.arange(30), np.arange(30, 30), np.arange(30, 100)
    test_sets = [ClipTestSet(model, ClientImages(images.store, part), digits.labels[part]) for part in parts]
    for prompts, (correct, examples) in zip(
        (start, scaled, start), score_everywhere(test_sets, [start, scaled, start]), strict=True
    ):
        assert examples == 100
        assert correct == sum(test_set.score(prompts)[0] for test_set in test_sets)


def test_a_client_without_images(encoder, images):
    learner = learner_of(encoder, ClientImages(images.store, np.arange(0)))
    assert learner.log_probabilities(None).shape == (0, 10)
    assert labelled_test_set(encoder, ClientImages(images.store, np.arange(0)), np.zeros(0, np.int64)).score(
        learner.initial()
    ) == (0, 0)


def test_a_missing_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"model\.device: torch finds no cuda on this machine \(available: cpu"):
        choose_arithmetic("cuda", "fp32")


@pytest.mark.parametrize(("precision", "why"), [("fp16", "no fast float16"), ("bf16", "several times slower")])
def test_a_precision_that_would_be_slower_is_refused(monkeypatch, precision, why):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    with pytest.raises(ConfigError, match=why):
        choose_arithmetic("cpu", precision)


def test_bf16_is_close_where_it_is_allowed(clip, encoder, images, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    low = Encoder(clip, CLASSES, "a photo of a {}", choose_arithmetic("cpu", "bf16"))
    exact, rounded = (learner_of(e, images).log_probabilities(None) for e in (encoder, low))
    assert 0 < np.abs(np.exp(exact) - np.exp(rounded)).max() < 0.05
    trained, loss = learner_of(low, images).train(learner_of(low, images).initial(), CHOSEN, 0)
    assert np.isfinite(loss)
    assert all(np.isfinite(value).all() for value in trained.values())


def test_loss_scaling_does_not_change_the_result(clip, encoder, images, monkeypatch):
    plain, _ = learner_of(encoder, images).train(learner_of(encoder, images).initial(), CHOSEN, 0)
    monkeypatch.setattr(Arithmetic, "loss_scale", 1024.0)
    scaled, _ = learner_of(encoder, images).train(learner_of(encoder, images).initial(), CHOSEN, 0)
    for name in plain:
        np.testing.assert_allclose(scaled[name], plain[name], atol=1e-6)


def test_stored_and_recomputed_tokens_are_bit_identical(clip, digits, images):
    unstored = store_of(clip, digits.images[:100], memory=0)
    assert unstored.tokens is None
    assert images.store.tokens is not None
    some = np.array([7, 3, 99, 3])
    assert torch.equal(unstored[some], images.store[some])


def test_tokens_of_an_image_do_not_depend_on_the_other_images(clip, digits):
    alone = store_of(clip, digits.images[5:6])[np.arange(1)]
    among = store_of(clip, digits.images[:50])[np.arange(50)]
    assert torch.equal(alone[0], among[5])


def test_indices_of_a_subset_are_relative(store):
    part = ClientImages(store, np.array([10, 20, 30]))
    assert torch.equal(part.tokens(np.array([2, 0])), store[np.array([30, 10])])
    assert torch.equal(torch.cat(list(part.batches())), store[np.array([10, 20, 30])])


def test_prompts_of_length_zero_are_zero_shot_bit_for_bit(clip, images):
    # Without context the sentence is "name.", so that is the template to compare with.
    plain = Encoder(clip, CLASSES, "{}.", Arithmetic(CPU))
    nothing = {"visual": np.zeros((3, 0, 128), np.float32), "text": np.zeros((0, 128), np.float32)}
    learner = learner_of(plain, images)
    assert (learner.log_probabilities(nothing) == learner.log_probabilities(None)).all()


def test_class_features_are_cached_up_to_a_size(encoder, monkeypatch):
    model = PromptedModel(choose_method(config_of()), encoder)
    start = model.method.start(encoder.clip, encoder.classes)
    many = [{**start, "text": start["text"] + np.float32(number)} for number in range(4)]
    computed = []
    compute = model.class_features
    monkeypatch.setattr(model, "class_features", lambda named: computed.append(named) or compute(named))
    first = model.cached_class_features(many[0])
    room = first.nbytes + many[0]["text"].nbytes
    monkeypatch.setattr(prompted_model, "_CACHE_BYTES", 3 * room)
    for number in (1, 2, 0, 3, 0, 2):  # 3 evicts 1, the least recently used
        model.cached_class_features(many[number])
    assert len(computed) == 4
    model.cached_class_features(many[1])
    assert len(computed) == 5
    assert torch.equal(model.cached_class_features(many[0]), first)


@pytest.mark.parametrize(("momentum", "decay"), [(0.9, 0.05), (0.0, 0.0)])
def test_steps_equal_those_of_torchs_sgd(momentum, decay):
    generator = torch.Generator().manual_seed(3)
    ours = {name: torch.randn(4, 3, generator=generator).requires_grad_() for name in ("visual", "text", "idle")}
    theirs = {name: value.detach().clone().requires_grad_() for name, value in ours.items()}
    groups = [{"params": [value], "name": name} for name, value in theirs.items()]
    optimiser = torch.optim.SGD(groups, 1.0, momentum=momentum, weight_decay=decay)
    descent = SGD(momentum, decay)
    for step in range(4):
        for group in optimiser.param_groups:
            group["lr"] = descent.rates[group["name"]] = 0.1 / (1 + step) + len(group["name"])
        for arrays in (ours, theirs):
            ((arrays["visual"] * arrays["text"].sin()).sum() + step).backward()
        descent.step(ours)
        optimiser.step()
        optimiser.zero_grad()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(value.grad is None for value in ours.values())


def test_training_does_not_import_torchs_compiler():
    script = "import sys, torch; from fedcopl.methods.trainer import SGD; v = torch.ones(2, requires_grad=True); "
    script += "v.sum().backward(); torch.nn.utils.clip_grad_norm_([v], 1.0); SGD(0.9, 0.1, {'v': 0.1}).step({'v': v}); "
    script += "print('torch._dynamo' in sys.modules, v.tolist())"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.startswith("False [0.9")

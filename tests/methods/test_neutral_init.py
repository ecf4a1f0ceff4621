import numpy as np
import pytest
import torch
from transformers import CLIPModel

from clip.tiny_clip import save_folder, tiny_model
from fedcopl.clip.frozen_clip import Clip, load_clip
from fedcopl.clip.vision_towers import ResNetTower
from fedcopl.config import RunConfig
from fedcopl.methods import METHODS, choose_method
from fedcopl.methods.prompted_model import FeatureExtractor, PromptedModel
from fedcopl.methods.prompts import (
    _blank_image_candidates,
    _interpolated_rows,
    _most_neutral,
    _tile_words,
    first_prompts,
    random_prompts,
    repeat_words,
)
from fedcopl.rng import stream
from methods.toolbox import config_of, encoder, images

RANDOM = "init=random"


@pytest.fixture(scope="module")
def reference() -> CLIPModel:
    return tiny_model()


@pytest.fixture(scope="module")
def tiny(reference, tmp_path_factory) -> Clip:
    return load_clip(save_folder(tmp_path_factory.mktemp("tiny"), reference))


def random_resnet() -> ResNetTower:
    tower = ResNetTower(stem=8, depths=(1, 1, 1, 1), image_size=64, output=40).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for value in (*tower.parameters(), *tower.buffers()):
        value.copy_(torch.rand(value.shape, generator=generator) / 4 + 0.1)
    return tower


def test_spread_interpolates_evenly_spaced_rows():
    # 6 rows, 3 requested: each is the mean of two rows.
    assert _interpolated_rows(np.arange(6.0)[:, None], 3).ravel().tolist() == [0.5, 2.5, 4.5]
    # 25 patches and 5 prompts: the middle of each row of the image.
    assert _interpolated_rows(np.arange(25.0)[:, None], 5).ravel().tolist() == [2, 7, 12, 17, 22]


def test_more_prompts_than_patches_still_differ_where_they_can():
    # 2 rows, 4 requested: places -.25, .25, .75, 1.25; the outer ones are the rows themselves.
    assert _interpolated_rows(np.array([[0.0], [1.0]]), 4).ravel().tolist() == [0, 0.25, 0.75, 1]


def test_spread_of_no_prompts_is_empty():
    assert _interpolated_rows(np.ones((4, 2)), 0).shape == (0, 2)


def test_a_blank_images_patches_are_those_of_the_reference(reference, tiny):
    # transformers' own hidden states of an image that is 0 everywhere, at the input of each block.
    with torch.no_grad():
        blank = torch.zeros(1, 3, tiny.image_size, tiny.image_size)
        states = reference.vision_model(pixel_values=blank, output_hidden_states=True).hidden_states
    patches, _ = _blank_image_candidates(tiny, (3, 16, 64))
    for level in range(3):  # 16 patches, 16 prompts: every patch
        assert np.allclose(patches[level], states[level][0, 1:], rtol=1e-3, atol=1e-3)


def test_the_second_candidate_is_near_the_mean_of_the_patches(tiny):
    patches, near_mean = _blank_image_candidates(tiny, (2, 16, 64))
    mean = patches.mean(axis=1, keepdims=True)
    assert np.allclose(near_mean - mean, 0.05 * (patches - mean), atol=2e-3)
    assert len(np.unique(near_mean[0], axis=0)) == 16


def test_blank_states_of_a_resnet_are_its_last_grid():
    tower = random_resnet()
    (state,) = tower.blank_states()
    with torch.no_grad():
        grid = tower.embed(torch.zeros(1, 3, tower.image_size, tower.image_size))
    assert state.dtype == torch.float64
    assert torch.allclose(state.float(), grid[0, 1:], atol=1e-4)


def test_the_candidate_that_changes_features_least_is_chosen(tiny):
    empty = np.zeros((2, 0, 64), np.float32)  # no prompt changes nothing
    large = stream(1, "loud").normal(0, 50, (2, 5, 64)).astype(np.float32)
    assert _most_neutral(tiny, (large, empty)) is empty
    assert _most_neutral(tiny, (empty, large)) is empty


def test_words_are_repeated_and_end_before_the_class_name(tiny):
    ids = tiny.tokenizer.rows(["a photo of"])[0][1:-1]
    a, photo, of = tiny.text.embedding.weight[ids].numpy()
    assert np.array_equal(_tile_words(tiny, "", (6, 64)), np.stack([of, a, a, photo, of, a]))
    assert np.array_equal(repeat_words(tiny, "", (8, 64)), np.stack([a, a, photo, photo, of, of, a, a]))
    assert np.array_equal(_tile_words(tiny, "photo of {} here", (2, 64)), np.stack([photo, of]))
    assert np.array_equal(_tile_words(tiny, "{}", (2, 64)), np.stack([of, a]))


NEUTRAL = RunConfig.from_mapping({"train": {"init": "neutral"}}, "test")


@pytest.mark.parametrize("count", [0, 1, 16])
def test_any_number_of_prompts(tiny, count):
    assert _tile_words(tiny, "", (count, 64)).shape == (count, 64)
    assert repeat_words(tiny, "", (count, 64)).shape == (count, 64)
    for levels in (0, 2):
        first = first_prompts(tiny, NEUTRAL, {"visual": (levels, count, 64)})
        assert first["visual"].shape == (levels, count, 64)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_starts_in_its_own_shapes_and_the_same_each_time(name):
    method, again = (choose_method(config_of(name)) for _ in range(2))
    clip = encoder().clip
    first = method.start(clip, 10)
    assert {key: value.shape for key, value in first.items()} == method.shapes(clip, 10)
    assert all(value.dtype == np.float32 for value in first.values())
    assert all(np.array_equal(value, again.start(clip, 10)[key]) for key, value in first.items())


@pytest.mark.parametrize("name", METHODS)
def test_random_initialisation_is_normal(name):
    config, clip = config_of(name, RANDOM), encoder().clip
    first = choose_method(config).start(clip, 10)
    prompts = {key: value for key, value in first.items() if key.split()[-1] in ("text", "visual")}
    before = random_prompts({key: value.shape for key, value in prompts.items()}, 0.02, config.seed)
    assert all(np.array_equal(value, before[key]) for key, value in prompts.items())


def test_two_prompts_of_one_method_do_not_start_alike():
    first = choose_method(config_of("fedotp")).start(encoder().clip, encoder().classes)
    assert not np.array_equal(first["global text"], first["local text"])


def test_initial_prompts_do_not_depend_on_the_number_of_threads(tiny):
    before = torch.get_num_threads()
    try:
        starts = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            starts.append(_blank_image_candidates(tiny, (3, 5, 64)))
    finally:
        torch.set_num_threads(before)
    assert all(np.array_equal(one, two) for one, two in zip(*starts, strict=True))


def test_neutral_initialisation_predicts_nearly_as_zero_shot():
    (compared, cosine, unchanged), (_, _, unchanged_by_random) = (
        FeatureExtractor(PromptedModel(method, encoder()), images()).effect_of(
            method.start(encoder().clip, encoder().classes)
        )
        for method in (choose_method(config_of("fedcopl")), choose_method(config_of("fedcopl", RANDOM)))
    )
    assert compared == 60
    assert cosine > 0.98
    assert unchanged >= 0.9 > unchanged_by_random


def test_the_templates_words_as_a_prompt_keep_the_features():
    method = choose_method(config_of("promptfl", "model.text_prompts=4"))
    model = PromptedModel(method, encoder())
    start = method.start(encoder().clip, encoder().classes)  # "a photo of a" is the template itself
    _, cosine, unchanged = FeatureExtractor(model, images()).effect_of(start)
    assert cosine == pytest.approx(1)
    assert unchanged >= 0.98  # the template has no full stop
    assert FeatureExtractor(model, type(images())(images().store, np.arange(0))).effect_of({})[0] == 0


def test_features_of_another_shape_have_no_cosine():
    method = choose_method(config_of("fedotp"))
    extractor = FeatureExtractor(PromptedModel(method, encoder()), images())
    _, cosine, unchanged = extractor.effect_of(method.start(encoder().clip, encoder().classes))
    assert cosine is None
    assert 0 <= unchanged <= 1


def test_initialisation_is_neutral_by_default():
    assert RunConfig().train.init == "neutral"

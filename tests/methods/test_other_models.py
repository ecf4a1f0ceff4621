"""Methods, neutral initialisation and ONNX on models other than CLIP: a SigLIP, and a ViT with a BERT."""

import numpy as np
import pytest
import torch

from clip.tiny_open_clip import save_biomed, tiny_biomed
from clip.tiny_siglip import save_siglip, tiny_siglip
from fedcopl.algorithm.select import Selection
from fedcopl.classifier.onnx_export import export_onnx
from fedcopl.classifier.predict import Predictor
from fedcopl.clip.device import Arithmetic
from fedcopl.clip.encoder import ClientImages, Encoder, TokenStore
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.errors import ConfigError
from fedcopl.methods import METHODS, choose_method
from fedcopl.methods.learner import ClipLearner
from fedcopl.methods.prompted_model import FeatureExtractor, PromptedModel
from fedcopl.methods.prompts import _blank_image_candidates, _tile_words
from methods.toolbox import config_of

CLASSES = ("cat", "small dog", "photo")
CHOSEN = Selection(np.arange(12), np.arange(12) % 3)


def encoder_of(folder) -> Encoder:
    return Encoder(load_clip(folder), CLASSES, "a photo of a {}", Arithmetic(torch.device("cpu")))


def images_of(encoder: Encoder) -> ClientImages:
    side = encoder.clip.image_size
    pixels = np.random.default_rng(0).integers(0, 256, (12, 3, side, side), np.uint8)
    return ClientImages(TokenStore.of(encoder.clip, pixels, 1e9), np.arange(12))


@pytest.fixture(scope="module")
def siglip(tmp_path_factory) -> Encoder:
    return encoder_of(save_siglip(tmp_path_factory.mktemp("siglip"), tiny_siglip()))


@pytest.fixture(scope="module", params=["siglip", "biomed"])
def encoder(request, siglip, tmp_path_factory) -> Encoder:
    if request.param == "siglip":
        return siglip
    return encoder_of(save_biomed(tmp_path_factory.mktemp("biomed"), tiny_biomed()))


@pytest.fixture(scope="module")
def images(encoder) -> ClientImages:
    return images_of(encoder)


@pytest.mark.parametrize("name", [name for name in METHODS if choose_method(config_of(name)).trains])
def test_every_method_trains(name, encoder, images):
    config = config_of(name, "epochs=1", "batch=6", "train.lr=0.01")
    method = choose_method(config)
    start = method.start(encoder.clip, encoder.classes)
    learner = ClipLearner(PromptedModel(method, encoder), images, start, config, 0)
    prompts, loss = learner.train(learner.initial(), CHOSEN, round=0)
    assert np.isfinite(loss)
    for key, shape in method.shapes(encoder.clip, encoder.classes).items():
        assert prompts[key].shape == shape
        assert np.isfinite(prompts[key]).all()
    assert any(not np.array_equal(prompts[key], start[key]) for key in method.shapes(encoder.clip, encoder.classes))
    log_probabilities = learner.log_probabilities(prompts)
    assert np.allclose(np.exp(log_probabilities).sum(axis=1), 1)


def test_neutral_initial_prompts_are_a_blank_image_and_the_templates_words(siglip):
    clip = siglip.clip
    with torch.no_grad():
        blank = torch.zeros(1, 3, clip.image_size, clip.image_size)
        states = tiny_siglip().vision_model(pixel_values=blank, output_hidden_states=True).hidden_states
    patches, _ = _blank_image_candidates(clip, (3, 16, 64))
    for level in range(3):  # 16 patches, 16 prompts: every patch, and the first is one too
        assert np.allclose(patches[level], states[level][0], rtol=1e-3, atol=1e-3)
    ids = clip.tokenizer.rows(["a photo of a"])[0][:-1]
    assert np.array_equal(_tile_words(clip, "", (len(ids), 64)), clip.text.embedding.weight[ids].numpy())


def test_the_words_of_the_template_as_a_prompt_are_the_template(siglip):
    # SigLIP's words lose the full stop, so that "a photo of a" before "cat." is the sentence of the template itself.
    words = len(siglip.clip.tokenizer.words("a photo of a"))
    method = choose_method(config_of("promptfl", f"model.text_prompts={words}"))
    extractor = FeatureExtractor(PromptedModel(method, siglip), images_of(siglip))
    _, cosine, unchanged = extractor.effect_of(method.start(siglip.clip, siglip.classes))
    assert cosine == pytest.approx(1)
    assert unchanged == 1


def test_a_class_name_that_leaves_no_room_is_named(siglip):
    with pytest.raises(ConfigError, match="class 'small dog': its"):
        siglip.refuse_long_names(36)


def test_onnx_agrees_with_torch(encoder, tmp_path):
    method = choose_method(config_of("fedcopl"))
    predictor = Predictor(PromptedModel(method, encoder), method.start(encoder.clip, encoder.classes))
    difference = export_onnx(predictor, CLASSES, tmp_path / "model.onnx")
    assert difference.logits < 1e-3
    assert difference.probabilities < 1e-5

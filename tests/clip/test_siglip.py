"""SigLIP and SigLIP 2 against `transformers`: features, logits, tokens, pixels."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import SiglipConfig, SiglipModel
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from clip.tiny_clip import features, large_model
from clip.tiny_siglip import gemma_file, gemma_pieces, reference_tokenizer, save_siglip, tiny_siglip
from fedcopl.clip.frozen_clip import Clip, load_clip
from fedcopl.errors import ModelError

torch.set_num_threads(1)
CLOSE = 2e-5
SENTENCES = ["a photo of a cat", "A Photo of a very small DOG.", "", "It's a naive cafe, with (quick) foxes!", "x-ray"]


def assert_agrees(clip: Clip, model: SiglipModel) -> None:
    side = model.config.vision_config.image_size
    pixels = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(1))
    ids = clip.tokenize(SENTENCES)
    images, texts, logits = features(model, pixels, ids)
    found_images, found_texts = (F.normalize(x) for x in (clip.encode_image(pixels), clip.encode_text(ids)))
    assert (found_images - F.normalize(images)).abs().max() <= CLOSE
    assert (found_texts - F.normalize(texts)).abs().max() <= CLOSE
    # The bias of the sigmoid is the same for all classes: shares of probability do not depend on it.
    expected = logits.softmax(-1)
    assert ((clip.logit_scale * found_images @ found_texts.T).softmax(-1) - expected).abs().max() <= CLOSE


@pytest.fixture(scope="module")
def model() -> SiglipModel:
    return tiny_siglip()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return save_siglip(tmp_path_factory.mktemp("siglip"), model)


@pytest.fixture(scope="module")
def clip(folder) -> Clip:
    return load_clip(folder)


def test_a_saved_folder_agrees(clip, model):
    assert_agrees(clip, model)
    assert clip.logit_scale == pytest.approx(np.exp(4.7), rel=1e-6)
    assert (clip.feature_size, clip.context_length, clip.tokenizer.start_id, clip.tokenizer.end_id) == (64, 40, None, 1)


@pytest.mark.parametrize(
    ("vision", "text"),
    [
        ({"image_size": 30}, {}),  # as 384 pixels in patches of 14: the last pixels are in no patch
        ({"hidden_act": "gelu", "num_hidden_layers": 1}, {"hidden_act": "gelu", "num_hidden_layers": 1}),
        ({"hidden_size": 32, "num_attention_heads": 2}, {"projection_size": 32, "layer_norm_eps": 1e-3}),
    ],
    ids=["uneven", "shallow", "giant's projection"],
)
def test_any_shape_that_the_config_names_agrees(vision, text, tmp_path):
    model = tiny_siglip(vision=vision, text=text)
    clip = load_clip(save_siglip(tmp_path, model))
    assert clip.image_size == model.config.vision_config.image_size
    assert_agrees(clip, model)


def test_a_config_may_omit_values_of_the_base_model(tmp_path):
    model = tiny_siglip(vision={"hidden_size": 48, "num_attention_heads": 12}, text={"projection_size": 48})
    save_siglip(tmp_path, model)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("num_attention_heads", "hidden_act", "layer_norm_eps"):
        del config["vision_config"][key]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_agrees(load_clip(tmp_path), model)


def test_tokens_equal_those_of_sentencepiece(clip, tmp_path):
    reference = reference_tokenizer(tmp_path)
    expected = reference(SENTENCES, padding="max_length", max_length=40)["input_ids"]
    assert clip.tokenize(SENTENCES).tolist() == expected


def test_siglip_2_uses_gemmas_tokenizer_in_lower_case(tmp_path):
    save_siglip(tmp_path, tiny_siglip())
    gemma_file(tmp_path)
    clip = load_clip(tmp_path)
    expected = gemma_pieces()(SENTENCES, padding="max_length", max_length=40)["input_ids"]
    assert clip.tokenize(SENTENCES).tolist() == expected
    assert clip.tokenizer.pad_id == 0
    assert clip.tokenize(["A CAT."])[0, :5].tolist() == clip.tokenize(["a cat."])[0, :5].tolist()


@pytest.mark.parametrize("size", [(40, 28), (17, 90), (28, 28)])
def test_pixels_equal_those_of_the_reference(clip, size):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8))
    expected = SiglipImageProcessorPil(size={"height": 28, "width": 28})(image, return_tensors="np").pixel_values[0]
    assert np.abs(clip.preprocess(image) - expected).max() <= 1e-6


def test_without_a_preprocessor_the_transform_of_siglip_is_used(folder, model, tmp_path):
    save_siglip(tmp_path, model)
    (tmp_path / "preprocessor_config.json").unlink()
    transform = load_clip(tmp_path).preprocess
    assert (transform.mean, transform.std) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_a_siglip_without_a_tokenizer_is_refused(model, tmp_path):
    save_siglip(tmp_path, model)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        load_clip(tmp_path)


def test_a_siglip_without_its_head_is_refused(model, tmp_path):
    from safetensors.torch import save_file

    save_siglip(tmp_path, model)
    weights = {name: value for name, value in model.state_dict().items() if "head.probe" not in name}
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"the weight vision_model\.head\.probe is missing"):
        load_clip(tmp_path)


@pytest.mark.slow
def test_full_size_agrees(tmp_path):
    """google/siglip-base-patch16-224 in everything but its weights; SigLIP 2 only has more words."""
    model = large_model(SiglipModel, SiglipConfig())
    with torch.no_grad():
        model.logit_scale.fill_(4.7)
    clip = load_clip(save_siglip(tmp_path, model))
    assert (clip.image_size, clip.context_length, clip.feature_size) == (224, 64, 768)
    assert_agrees(clip, model)

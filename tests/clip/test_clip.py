"""Loaded models against `transformers`, in every form that a checkpoint comes in."""

import json
import math

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

from clip.tiny_clip import (
    TEXT,
    clip_bpe,
    features,
    in_openai_layout,
    large_model,
    save_folder,
    save_torchscript,
    tiny_model,
)
from fedcopl.clip.frozen_clip import Clip, load_clip
from fedcopl.clip.known_models import BUILT_IN
from fedcopl.errors import ModelError

torch.set_num_threads(1)
CLOSE = 2e-5
SENTENCES = ["a photo of a cat", "a photo of a very small dog.", "", "naïve café 東京 🙂 it's 42"]
END = 49407


def assert_agrees(clip: Clip, model: CLIPModel, images: int = 3) -> None:
    side = model.config.vision_config.image_size
    pixels = torch.randn(images, 3, side, side, generator=torch.Generator().manual_seed(1))
    ids = clip.tokenize(SENTENCES)
    expected_images, expected_texts, expected_logits = features(model, pixels, ids)
    found_images, found_texts = clip.encode_image(pixels), clip.encode_text(ids)
    cosines = nn.functional.normalize(found_images) @ nn.functional.normalize(found_texts).T
    assert (found_images - expected_images).abs().max() <= CLOSE
    assert (found_texts - expected_texts).abs().max() <= CLOSE
    assert (clip.logit_scale * cosines - expected_logits).abs().max() <= CLOSE


@pytest.fixture(scope="module")
def model() -> CLIPModel:
    return tiny_model()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("hugging_face"), model)


@pytest.fixture(scope="module")
def clip(folder) -> Clip:
    return load_clip(folder)


def test_a_saved_folder_agrees(clip, model):
    assert_agrees(clip, model)
    assert clip.logit_scale == pytest.approx(model.logit_scale.exp().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("vision", "text"),
    [
        ({"hidden_act": "gelu"}, {"hidden_act": "gelu"}),
        ({"layer_norm_eps": 1e-2}, {"layer_norm_eps": 1e-3}),
        ({"num_hidden_layers": 1, "patch_size": 14, "num_attention_heads": 1}, {"num_hidden_layers": 1}),
        ({"hidden_size": 96, "intermediate_size": 32}, {"num_attention_heads": 8, "max_position_embeddings": 17}),
    ],
    ids=["gelu", "epsilon", "shallow", "narrow"],
)
def test_any_shape_that_the_config_names_agrees(vision, text, tmp_path):
    model = tiny_model(vision=vision, text=text)
    assert_agrees(load_clip(save_folder(tmp_path, model)), model)


def test_without_a_first_norm_and_with_a_patch_bias(tmp_path):
    model = tiny_model()
    patches = model.vision_model.embeddings.patch_embedding
    model.vision_model.embeddings.patch_embedding = nn.Conv2d(3, patches.out_channels, 7, 7, bias=True)
    model.vision_model.pre_layrnorm = nn.Identity()
    clip = load_clip(save_folder(tmp_path, model))
    assert isinstance(clip.vision.norm_first, nn.Identity)
    assert_agrees(clip, model)


def test_the_legacy_end_token_is_the_highest_id(tmp_path):
    model = tiny_model(text={"eos_token_id": 2})
    clip = load_clip(save_folder(tmp_path, model))
    ids = torch.tensor([[5, 30, 2, 49000, 7, 2], [5, 49400, 9, 2, 2, 2]])
    with torch.no_grad():
        expected = model.get_text_features(ids).pooler_output
    assert (clip.encode_text(ids) - expected).abs().max() <= CLOSE
    assert_agrees(clip, model)


def test_half_precision_weights_become_float32(tmp_path):
    model = tiny_model().half()
    clip = load_clip(save_folder(tmp_path, model))
    assert {weight.dtype for weight in clip.state_dict().values()} == {torch.float32}
    assert_agrees(clip, model.float())


def test_pickled_weights_agree(model, tmp_path):
    save_folder(tmp_path, model)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert_agrees(load_clip(tmp_path), model)


def test_weights_in_several_files_agree(model, tmp_path):
    save_folder(tmp_path, model, max_shard_size="2MB")
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_agrees(load_clip(tmp_path), model)


def test_a_folder_without_tokenizer_and_preprocessor_uses_those_of_clip(model, tmp_path):
    model.save_pretrained(tmp_path)
    clip = load_clip(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert clip.tokenize(["a cat"])[0].tolist() == [49406, 320, 2368] + [END] * 21
    assert_agrees(clip, model)


def test_the_built_in_model_agrees():
    clip = load_clip("glyph-clip")
    folder = BUILT_IN["glyph-clip"]
    model = CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    assert clip.name == "glyph-clip"
    assert_agrees(clip, model)
    expected = CLIPTokenizer.from_pretrained(folder)(SENTENCES, padding="max_length", max_length=clip.context_length)
    assert clip.tokenize(SENTENCES).tolist() == expected.input_ids


@pytest.fixture(scope="module")
def openai_model() -> CLIPModel:
    """A reference model with width / 64 heads, as OpenAI's models have."""
    return tiny_model(vision={"hidden_size": 128, "num_attention_heads": 2}, text={"num_attention_heads": 1})


@pytest.mark.parametrize("form", ["model.pt", "model.safetensors", "model.bin", "script.pt", "training.pt", "old.pt"])
def test_openais_layout_gives_the_same_bits(form, openai_model, tmp_path):
    weights = in_openai_layout(openai_model)
    extras = {
        "input_resolution": torch.tensor(28),
        "context_length": torch.tensor(24),
        "vocab_size": torch.tensor(49408),
    }
    file = tmp_path / form
    if form == "script.pt":
        save_torchscript(weights, file)
    elif form == "model.safetensors":
        save_file(weights, file)
    elif form == "training.pt":
        torch.save({"epoch": 3, "state_dict": {f"module.{name}": value for name, value in weights.items()}}, file)
    else:
        torch.save(weights | extras, file, _use_new_zipfile_serialization=form != "old.pt")
    clip = load_clip(file)
    reference = load_clip(save_folder(tmp_path / "folder", openai_model))
    ours, theirs = clip.state_dict(), reference.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert clip.tokenize(SENTENCES)[0].tolist() == [49406, 320, 1125, 539, 320, 2368, END] + [0] * 17
    assert_agrees(clip, openai_model)


def test_half_precision_torchscript_agrees(openai_model, tmp_path):
    halved = {name: value.half() for name, value in in_openai_layout(openai_model).items()}
    clip = load_clip(save_torchscript(halved, tmp_path / "half.pt"))
    assert torch.equal(clip.text.positions, halved["positional_embedding"].float())


def open_clip_folder(folder, model, **model_settings):
    config = {
        "model_cfg": {
            "embed_dim": 40,
            "vision_cfg": {"image_size": 28, "layers": 3, "width": 64, "head_width": 16, "patch_size": 7},
            "text_cfg": {"context_length": 24, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
            **model_settings,
        },
        "preprocess_cfg": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
    }
    folder.mkdir(exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    save_file(in_openai_layout(model), folder / "open_clip_model.safetensors")
    return folder


@pytest.mark.parametrize(("settings", "activation"), [({}, "gelu"), ({"quick_gelu": True}, "quick_gelu")])
def test_open_clip_folders_name_their_activation(settings, activation, tmp_path):
    model = tiny_model(vision={"hidden_act": activation}, text={"hidden_act": activation})
    clip = load_clip(open_clip_folder(tmp_path, model, **settings))
    assert_agrees(clip, model)
    assert clip.preprocess.mean == (0.5, 0.4, 0.3)


def test_a_bare_file_has_quick_gelu_by_default(openai_model, tmp_path):
    torch.save(in_openai_layout(openai_model), tmp_path / "model.pt")
    assert load_clip(tmp_path / "model.pt").text.shape.activation == "quick_gelu"
    assert load_clip(tmp_path / "model.pt", activation="gelu").text.shape.activation == "gelu"
    with pytest.raises(ModelError, match="sets the activation"):
        load_clip(tmp_path, activation="gelu")


@pytest.mark.parametrize(
    ("preprocess", "message"),
    [
        ({"resize_mode": "longest"}, "resize_mode 'longest'"),
        ({"interpolation": "random"}, "with interpolation 'random'"),
        ({"mean": 0.5}, "must be three numbers"),
        ([1], "not a JSON object"),
    ],
)
def test_open_clip_images_of_other_kinds_are_refused(preprocess, message, model, tmp_path):
    file = open_clip_folder(tmp_path, model) / "open_clip_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"preprocess_cfg": preprocess}))
    with pytest.raises(ModelError, match=message):
        load_clip(tmp_path)


def test_open_clip_models_may_change_the_aspect_ratio(model, tmp_path):
    file = open_clip_folder(tmp_path, model) / "open_clip_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"preprocess_cfg": {"resize_mode": "squash"}}))
    assert load_clip(tmp_path).preprocess.squash


def test_an_open_clip_config_must_fit_its_weights(model, tmp_path):
    with pytest.raises(ModelError, match=r"open_clip_config\.json: embed_dim is 512, but the weights have 40"):
        load_clip(open_clip_folder(tmp_path, model, embed_dim=512))


def test_open_clip_models_of_other_kinds_are_refused_by_name(model, tmp_path):
    text = {"context_length": 24, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2, "no_causal_mask": True}
    with pytest.raises(ModelError, match=r"text_cfg\.no_causal_mask is True"):
        load_clip(open_clip_folder(tmp_path, model, text_cfg=text))


def test_no_weight_is_trainable(clip):
    clip.train()
    assert not any(parameter.requires_grad for parameter in clip.parameters())
    clip.eval()


def test_sizes_come_from_the_checkpoint(clip, folder):
    assert (clip.image_size, clip.context_length, clip.tokenizer.start_id, clip.tokenizer.end_id) == (
        28,
        24,
        49406,
        END,
    )
    assert clip.name == str(folder)


def test_tokens_equal_those_of_transformers(clip):
    expected = clip_bpe()(SENTENCES, padding="max_length", max_length=24, return_tensors="pt").input_ids
    assert torch.equal(clip.tokenize(SENTENCES), expected)
    assert clip.tokenize([]).shape == (0, 24)


def test_a_sentence_too_long_is_named(clip):
    long = "a " * 22 + "zebra"
    with pytest.raises(ModelError, match=r"reads at most 24 tokens; this sentence has 25: 'a a .* zebra'"):
        clip.tokenize(["a cat", long])
    with pytest.raises(ModelError, match="zebra"):
        clip.sentences([long])


def test_sentences_give_the_same_features_as_padded_ids(clip):
    texts = [*SENTENCES, "ends here <|endoftext|> and goes on"]
    assert torch.equal(clip.text(clip.sentences(texts)), clip.encode_text(clip.tokenize(texts)))
    assert clip.sentences(["a cat", "a small dog"]).rest.shape[1] < TEXT["max_position_embeddings"]


def test_preprocess_fits_the_model(clip):
    pixels = clip.preprocess(Image.new("RGB", (50, 31), "red"))
    assert clip.encode_image(torch.from_numpy(pixels)[None]).shape == (1, 40)


def test_images_of_another_size_are_refused(clip):
    with pytest.raises(ValueError, match=r"\(3, 28, 28\), not \(1, 3, 32, 32\)"):
        clip.encode_image(torch.zeros(1, 3, 32, 32))


def test_ids_without_an_end_are_refused(clip):
    with pytest.raises(ValueError, match="needs an end token"):
        clip.encode_text(torch.tensor([[49406, 320, 0]]))


FULL = {
    "ViT-B/32": ({"patch_size": 32}, {}, 512),
    "ViT-B/16": ({"patch_size": 16}, {}, 512),
    "ViT-L/14": (
        {
            "patch_size": 14,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
        {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
        768,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_full_size_agrees(name, tmp_path):
    vision, text, projection = FULL[name]
    model = large_model(CLIPModel, CLIPConfig(vision_config=vision, text_config=text, projection_dim=projection))
    torch.nn.init.constant_(model.logit_scale, math.log(100))  # as in OpenAI's: logits show the errors a hundredfold
    clip = load_clip(save_folder(tmp_path, model))
    assert_agrees(clip, model, images=1)

"""The built-in model: a real Hugging Face CLIP folder that has never seen handwriting."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import CLIPImageProcessor, CLIPModel

import fedcopl.clip
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.data.catalog import CLASSES, load_digits

FOLDER = Path(fedcopl.clip.__file__).parent / "glyph_clip"


@pytest.fixture(scope="module")
def clip():
    return load_clip("glyph-clip")


def test_the_built_in_model_is_small_and_complete():
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert set(files) == {"config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"}
    assert sum(files.values()) < 4_000_000


def test_transformers_reads_the_same_model(clip):
    theirs = CLIPModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    processor = CLIPImageProcessor.from_pretrained(FOLDER)
    images = [image.convert("RGB") for image in load_digits().test.images[:20]]
    pixels = processor(images, return_tensors="pt").pixel_values
    ours = torch.from_numpy(np.stack([clip.preprocess(image) for image in images]))
    torch.testing.assert_close(ours, pixels, atol=1e-5, rtol=0)
    ids = clip.tokenize([f"a photo of a {name}" for name in CLASSES])
    with torch.inference_mode():
        expected = theirs(input_ids=ids, pixel_values=pixels).logits_per_image
        images, texts = F.normalize(clip.encode_image(ours), dim=-1), F.normalize(clip.encode_text(ids), dim=-1)
        logits = clip.logit_scale * images @ texts.T
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-4)


def test_weights_are_stored_in_half_precision():
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["torch_dtype"] == "float16"
    from safetensors import safe_open

    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.float16}  # noqa: SIM118


def test_zero_shot_on_handwriting_is_far_from_chance_and_from_perfect(clip):
    # A band, not a golden number: the demo needs a real domain gap with a real class bias.
    test = load_digits().test
    pixels = torch.from_numpy(np.stack([clip.preprocess(image) for image in test.images]))
    with torch.inference_mode():
        images = F.normalize(clip.encode_image(pixels), dim=-1)
        texts = F.normalize(clip.encode_text(clip.tokenize([f"a photo of a {name}" for name in CLASSES])), dim=-1)
    predicted = (images @ texts.T).argmax(1).numpy()
    assert 0.7 < (predicted == test.labels).mean() < 0.95
    recall = [(predicted[test.labels == c] == c).mean() for c in range(10)]
    assert max(recall) - min(recall) > 0.15


def test_class_names_of_digits_are_single_tokens_and_any_text_is_tokenized(clip):
    assert all(len(row) == 3 for row in clip.tokenizer.rows(list(CLASSES)))
    [row] = clip.tokenizer.rows(["Ünï ☃ xylophone"])
    assert row[0] == clip.tokenizer.start_id
    assert row[-1] == clip.tokenizer.end_id
    assert clip.tokenizer.end_id not in row[1:-1]

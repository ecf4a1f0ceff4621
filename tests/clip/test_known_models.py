"""The table of models states correctly which published configurations can be loaded."""

import json
import re

import pytest

from fedcopl.clip.frozen_clip import load_clip
from fedcopl.clip.known_models import KNOWN_MODELS, MEASURED, RELEASES, known_model, measured
from fedcopl.errors import ModelError
from published_configs import CONFIGS

LOADABLE = [model for model in KNOWN_MODELS if model.loads]
REFUSED = [model for model in KNOWN_MODELS if not model.loads]


def write_config(model, folder):
    if model.layout == "hugging face":
        (folder / "config.json").write_text(json.dumps(CONFIGS[model.name]))
        (folder / "model.safetensors").write_bytes(b"")
    else:
        (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": CONFIGS[model.name]}))


@pytest.mark.parametrize("model", REFUSED, ids=lambda model: model.name)
def test_an_unsupported_model_is_refused_with_the_most_similar_supported_one(model, tmp_path):
    write_config(model, tmp_path)
    with pytest.raises(ModelError, match="The most similar supported model is") as refused:
        load_clip(tmp_path)
    (nearest,) = re.findall(r"The most similar supported model is ([\w./-]+)", str(refused.value))
    assert known_model(nearest).loads


@pytest.mark.parametrize("model", [m for m in LOADABLE if m.layout != "bare file"], ids=lambda model: model.name)
def test_a_supported_model_without_weights_is_refused(model, tmp_path):
    """Weights of the true sizes take gigabytes; `tools/measure_models.py` loads them."""
    write_config(model, tmp_path)
    wanting = r"model\.safetensors: is damaged|has neither open_clip_model\.safetensors"
    with pytest.raises(ModelError, match=wanting):
        load_clip(tmp_path)


def test_every_model_is_listed_once_with_purpose_licence_and_commit():
    assert len({model.name for model in KNOWN_MODELS}) == len(KNOWN_MODELS)
    assert all(model.purpose and model.licence for model in KNOWN_MODELS)
    assert all(re.fullmatch(r"[0-9a-f]{40}|", model.revision) for model in KNOWN_MODELS)
    assert all(model.revision for model in RELEASES.values())


def test_only_supported_models_were_measured():
    assert set(json.loads(MEASURED.read_text())) <= {model.name for model in LOADABLE}
    assert all(found.parameters > 1e6 and found.seconds > 0 and found.images > 0 for found in measured().values())


def test_an_unknown_model_name_gets_a_suggestion():
    with pytest.raises(ModelError, match="did you mean microsoft/BiomedCLIP"):
        known_model("biomedclip")
    with pytest.raises(ModelError, match="did you mean imageomics/bioclip"):
        known_model("imageomix/bioclip")

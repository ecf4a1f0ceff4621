"""Damaged, mismatched and malicious checkpoints give one clear line, and no code in them is run."""

import io
import json
import os
import pickle
import re
import shutil
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file

from clip.tiny_clip import in_openai_layout, save_folder, save_torchscript, tiny_model
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.errors import ModelError
from hugging_face_export import to_hugging_face

torch.set_num_threads(1)
VISION_NORM = "vision_model.post_layernorm.weight"


@pytest.fixture(scope="module")
def valid_folder(tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("valid_folder"), tiny_model())


@pytest.fixture
def folder(valid_folder, tmp_path):
    """A copy to break."""
    return shutil.copytree(valid_folder, tmp_path / "broken")


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def change_config(folder, change, name="config.json"):
    config = json.loads((folder / name).read_text())
    change(config)
    (folder / name).write_text(json.dumps(config))


def error_message(path) -> str:
    """Return the error message, which must be one line that names a file below `path`."""
    with pytest.raises(ModelError) as caught:
        load_clip(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


def test_exporting_a_loaded_model_gives_the_same_weights(valid_folder):
    clip = load_clip(valid_folder)
    exported = to_hugging_face(clip.vision, clip.text, torch.tensor(clip.logit_scale).log())
    original = load_file(valid_folder / "model.safetensors")
    assert exported.keys() == original.keys()
    assert all(torch.equal(exported[name], original[name]) for name in original if name != "logit_scale")
    assert exported["logit_scale"].item() == pytest.approx(original["logit_scale"].item(), rel=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        VISION_NORM,
        "logit_scale",
        "visual_projection.weight",
        "text_model.embeddings.token_embedding.weight",
        "vision_model.encoder.layers.1.self_attn.k_proj.bias",
        "text_model.encoder.layers.0.mlp.fc1.weight",
    ],
)
def test_a_missing_weight_is_named(name, folder):
    change_weights(folder, lambda weights: weights.pop(name))
    assert f"the weight {name} is missing" in error_message(folder)


def test_a_wrong_shape_is_named_with_the_right_one(folder):
    change_weights(folder, lambda weights: weights.update({VISION_NORM: torch.zeros(63)}))
    assert f"{VISION_NORM} has the shape (63,), not (64,)" in error_message(folder)


def test_a_wrong_number_of_dimensions_is_named(folder):
    name = "vision_model.embeddings.position_embedding.weight"
    change_weights(folder, lambda weights: weights.update({name: torch.zeros(17)}))
    assert f"{name} has the shape (17,); it must have 2 dimensions" in error_message(folder)


def test_a_bias_without_dimensions_is_refused(folder):
    change_weights(folder, lambda weights: weights.update({VISION_NORM: torch.tensor(1.0)}))
    assert f"{VISION_NORM} has the shape (), not (64,)" in error_message(folder)


def test_positions_that_make_no_square_are_named(folder):
    name = "vision_model.embeddings.position_embedding.weight"
    change_weights(folder, lambda weights: weights.update({name: torch.zeros(19, 64)}))
    assert f"{name} has 19 rows" in error_message(folder)


def test_an_unused_weight_is_named(folder):
    change_weights(folder, lambda weights: weights.update({"logit_bias": torch.zeros(())}))
    assert "the weight logit_bias is not part of this kind of CLIP" in error_message(folder)


def test_constants_that_older_versions_stored_are_ignored(folder):
    ids = {"text_model.embeddings.position_ids": torch.arange(24)[None]}
    change_weights(folder, lambda weights: weights.update(ids))
    assert load_clip(folder).context_length == 24


@pytest.mark.parametrize(
    ("section", "name", "value", "message"),
    [
        (
            "vision_config",
            "hidden_act",
            "gelu_new",
            "hidden_act is 'gelu_new'; supported: quick_gelu, gelu, gelu_pytorch_tanh",
        ),
        ("vision_config", "hidden_size", 32, "vision_config.hidden_size is 32, but the weights have 64"),
        ("vision_config", "num_hidden_layers", 4, "vision_config.num_hidden_layers is 4, but"),
        ("vision_config", "num_attention_heads", 5, "a width of 64 cannot be split among 5 attention heads"),
        ("vision_config", "num_attention_heads", "many", "num_attention_heads must be a positive number, not 'many'"),
        ("text_config", "layer_norm_eps", None, "layer_norm_eps must be a positive number, not None"),
        ("vision_config", "image_size", 224, "vision_config.image_size is 224, but"),
        ("text_config", "max_position_embeddings", 77, "text_config.max_position_embeddings is 77, but"),
        ("text_config", "eos_token_id", 7, "eos_token_id is 7, but the tokenizer's is 49407"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(section, name, value, message, folder):
    change_config(folder, lambda config: config[section].update({name: value}))
    assert message in error_message(folder)


def test_the_section_that_old_configs_repeat_takes_precedence(folder):
    change_config(folder, lambda config: config.update(vision_config_dict={"hidden_act": "gelu"}))
    assert load_clip(folder).vision.shape.activation == "gelu"


def test_another_model_type_is_refused(folder):
    change_config(folder, lambda config: config.update(model_type="blip"))
    assert "config.json: model_type is 'blip'; only 'clip' and 'siglip' are supported" in error_message(folder)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"model_type": "clip"}', "\x00\xff"])
def test_a_config_that_is_no_json_object_is_refused(content, folder):
    (folder / "config.json").write_text(content)
    assert "config.json" in error_message(folder)


def test_a_preprocessor_for_another_size_is_refused(folder):
    change_config(
        folder, lambda config: config.update(crop_size={"height": 32, "width": 32}, size=32), "preprocessor_config.json"
    )
    assert "the model needs 28" in error_message(folder)


def test_a_tokenizer_with_too_many_tokens_is_refused(folder):
    def shrink(weights):
        name = "text_model.embeddings.token_embedding.weight"
        weights[name] = weights[name][:49000].clone()

    change_weights(folder, shrink)
    change_config(folder, lambda config: config["text_config"].update(vocab_size=49000))
    assert "the tokenizer has 49408 tokens, the weights only 49000" in error_message(folder)


def test_a_broken_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").write_text('{"model": 3}')
    assert "tokenizer.json: cannot be read as a tokenizer" in error_message(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 100_000])
def test_truncated_safetensors_are_refused(keep, folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "model.safetensors: is damaged or not a weights file" in error_message(folder)


def test_an_empty_folder_is_refused_with_the_files_it_needs(tmp_path):
    message = error_message(tmp_path)
    assert "config.json" in message
    assert "model.safetensors" in message
    assert "open_clip_config.json" in message


def test_weights_without_a_shard_are_refused(tmp_path):
    save_folder(tmp_path, tiny_model(), max_shard_size="2MB")
    next(tmp_path.glob("model-00001*")).unlink()
    assert "model-00001" in error_message(tmp_path)


def test_an_index_cannot_lead_out_of_its_folder(tmp_path):
    (tmp_path / "inside").mkdir()
    save_file({"logit_scale": torch.zeros(())}, tmp_path / "outside.safetensors")
    index = {"weight_map": {"logit_scale": "../outside.safetensors"}}
    (tmp_path / "inside/model.safetensors.index.json").write_text(json.dumps(index))
    config = {"model_type": "clip", "vision_config": {}, "text_config": {}}
    (tmp_path / "inside/config.json").write_text(json.dumps(config))
    assert "inside/outside.safetensors" in error_message(tmp_path / "inside")


# Files


@pytest.fixture(scope="module")
def openai_weights():
    return in_openai_layout(tiny_model(vision={"num_attention_heads": 1}, text={"num_attention_heads": 1}))


@pytest.mark.parametrize("name", ["notes.pt", "notes.bin", "notes.safetensors"])
def test_a_text_file_is_refused(name, tmp_path):
    (tmp_path / name).write_text("this is not a model\n" * 50)
    assert re.search("damaged or not a weights file|contains more than weights", error_message(tmp_path / name))


def test_an_unknown_extension_is_refused(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    assert "the extension of a weights file must be one of" in error_message(tmp_path / "model.onnx")


def test_part_of_a_hugging_face_folder_is_recognised(valid_folder):
    assert "give the folder" in error_message(valid_folder / "model.safetensors")


@pytest.mark.parametrize("keep", [0, 30, 5_000, -200])
@pytest.mark.parametrize("script", [False, True])
def test_truncated_archives_are_refused(script, keep, openai_weights, tmp_path):
    file = tmp_path / "model.pt"
    if script:
        save_torchscript(openai_weights, file)
    else:
        torch.save(openai_weights, file)
    file.write_bytes(file.read_bytes()[:keep])
    assert "damaged or not a weights file" in error_message(file)


def test_a_flipped_byte_in_a_torchscript_archive_is_refused(openai_weights, tmp_path):
    file = save_torchscript(openai_weights, tmp_path / "model.pt")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert "is damaged or not a weights file (Bad CRC-32" in error_message(file)


def test_a_missing_weight_of_a_file_is_named(openai_weights, tmp_path):
    kept = {name: value for name, value in openai_weights.items() if name != "ln_final.bias"}
    torch.save(kept, tmp_path / "model.pt")
    assert "the weight ln_final.bias is missing" in error_message(tmp_path / "model.pt")


def test_a_file_without_a_state_dict_is_refused(tmp_path):
    torch.save([torch.zeros(3)], tmp_path / "list.pt")
    assert "contains a list, not a state dict" in error_message(tmp_path / "list.pt")


def test_another_vocabulary_requires_its_tokenizer(openai_weights, tmp_path):
    name = "token_embedding.weight"
    torch.save(openai_weights | {name: openai_weights[name][:100].clone()}, tmp_path / "model.pt")
    assert "has a vocabulary of 100 tokens; put the matching tokenizer.json" in error_message(tmp_path / "model.pt")


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("form", ["zip", "old", "bare"])
def test_a_hostile_pickle_is_not_run(form, tmp_path, openai_weights):
    mark, file = tmp_path / "harm", tmp_path / "model.pt"
    content = {**openai_weights, "evil": Evil(mark)}
    if form == "bare":
        file.write_bytes(pickle.dumps(Evil(mark)))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=form == "zip")
    assert "contains more than weights" in error_message(file)
    assert not mark.exists()
    if form == "bare":
        pickle.loads(file.read_bytes())
    else:
        torch.load(file, weights_only=False)
    assert mark.exists(), "the file is not as bad as it is meant to be"


def malicious_archive(file, pickled: bytes):
    """Write a TorchScript archive with `pickled` as its tree of modules."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("evil/data.pkl", pickled)
        archive.writestr("evil/constants.pkl", pickle.dumps(()))
        archive.writestr("evil/data/0", bytes(64))
    return file


def test_a_hostile_torchscript_archive_is_not_run(tmp_path):
    mark = tmp_path / "harm"
    file = malicious_archive(tmp_path / "model.pt", pickle.dumps(Evil(mark)))
    assert "calls posix.mkdir, which a CLIP checkpoint does not need" in error_message(file)
    assert not mark.exists()


def test_cyclic_references_in_a_torchscript_archive_end(tmp_path):
    # Thirty levels, each with two references to the next: a billion paths to the last.
    stream = io.BytesIO()
    stream.write(b"\x80\x02")
    for level in range(30):
        stream.write(b"c__torch__\nM\n)\x81}(X\x01\x00\x00\x00a")
        stream.write(f"h{chr(level)}".encode("latin-1") if level else b"K\x01")
        stream.write(b"X\x01\x00\x00\x00b")
        stream.write(f"h{chr(level)}".encode("latin-1") if level else b"K\x01")
        stream.write(b"ubq" + bytes([level + 1]) + (b"0" if level < 29 else b"."))
    file = malicious_archive(tmp_path / "model.pt", stream.getvalue())
    assert "contains no CLIP in OpenAI's layout" in error_message(file)


def test_a_tensor_beyond_its_storage_is_refused(tmp_path):
    storage = b"(X\x07\x00\x00\x00storageq\x01ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x10tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00(M\xe8\x03t(K\x01t\x89}tR"
    tree = b"\x80\x02c__torch__\nM\n)\x81}X\x0b\x00\x00\x00logit_scale" + tensor + b"sb."
    file = malicious_archive(tmp_path / "model.pt", tree)
    assert "damaged or not a weights file" in error_message(file)


def test_an_exported_classifier_is_not_a_clip_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "fedcopl-classifier"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "is an exported classifier, not a CLIP model; use it with: fedcopl predict" in error_message(tmp_path)

"""Exported classifiers: the same predictions, a card that cannot be broken out of, ONNX that agrees with torch."""

import json
import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import yaml
from PIL import Image, ImageOps

from classifier.small import digits, small_run
from fedcopl.classifier import Classifier, onnx_export
from fedcopl.classifier.export import _render_card, export
from fedcopl.classifier.onnx_export import export_onnx
from fedcopl.clip.preprocess import ImageTransform
from fedcopl.errors import FedCoPLError, ModelError, RunFolderError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("small") / "run")


@pytest.fixture(scope="module")
def north(run):
    own, _ = digits("train", 0, 40)
    return Classifier.load(run, client="north", device="cpu").with_abstention(own)


@pytest.fixture
def exported(north, tmp_path):
    return north.export(tmp_path / "classifier")


def test_an_exported_classifier_predicts_alike(north, exported):
    images, _ = digits("test", 0, 20)
    loaded = Classifier.load(exported, device="cpu")
    assert np.array_equal(loaded.predict_log_proba(images), north.predict_log_proba(images))
    assert loaded.threshold == north.threshold
    assert loaded.fingerprint == north.fingerprint


def test_nothing_is_overwritten(north, exported):
    before = {file: file.read_bytes() for file in exported.iterdir()}
    with pytest.raises(RunFolderError, match="already exists"):
        north.export(exported)
    assert {file: file.read_bytes() for file in exported.iterdir()} == before


def test_the_current_folder_is_no_new_folder(north, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFolderError, match="is the current folder; choose another name"):
        north.export(".")
    assert list(tmp_path.iterdir()) == []


def test_an_export_contains_no_path_of_this_machine(run, exported):
    for file in exported.iterdir():
        assert str(run.parent).encode() not in file.read_bytes()


def test_a_failed_export_leaves_nothing(north, tmp_path, monkeypatch):
    monkeypatch.setattr("fedcopl.classifier.export._render_card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        north.export(tmp_path / "classifier")
    assert list(tmp_path.iterdir()) == []


def test_an_export_with_the_clip_model_needs_no_other_file(north, tmp_path):
    folder = north.export(tmp_path / "classifier", with_backbone=True)
    assert {file.name for file in (folder / "backbone").iterdir()} >= {"config.json", "model.safetensors"}
    images, _ = digits("test", 0, 3)
    loaded = Classifier.load(folder, device="cpu")
    assert np.array_equal(loaded.predict_log_proba(images), north.predict_log_proba(images))


def test_the_card_asks_for_the_path_of_a_private_model(north):
    recipe = replace(north.recipe, backbone=replace(north.recipe.backbone, name="photo-clip"))
    card = " ".join(_render_card(recipe, {}, None).split())
    assert "give its path with `--backbone`" in card and 'backbone="MODEL"' in card
    assert "PHOTOS -o predictions.csv --backbone MODEL" in card
    assert "it is found by its name" in _render_card(north.recipe, {}, None)


def damage(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def backbone(name):
    return {"name": name, "fingerprint": "0", "included": False}


DAMAGES = {
    "another model": ({"backbone": backbone("glyph-clip")}, "is not the CLIP model"),
    "a path for a model": ({"backbone": backbone("/etc")}, "give its path with"),
    "another format": ({"format": 3}, "has the format 3"),
    "no classes": ({"classes": []}, "'classes' cannot be used: it must be a list of at least one name"),
    "classes twice": ({"classes": ["a", "a"]}, "'classes' cannot be used"),
    "no such method": ({"method": "magic"}, "unknown method 'magic'"),
    "other sizes": (
        {"model": {"visual_prompts": 3, "visual_depth": 1, "text_prompts": 16, "activation": "auto"}},
        "has the shape",
    ),
    "a share of 2": ({"abstain": {"share": 2}}, "between 0 and 1"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_export_is_one_clear_line(exported, changes, message):
    damage(exported, **changes)
    with pytest.raises(FedCoPLError, match=message) as caught:
        Classifier.load(exported, device="cpu")
    assert "\n" not in str(caught.value)


def test_damaged_arrays(exported):
    (exported / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(ModelError, match=r"model\.safetensors: cannot be read"):
        Classifier.load(exported, device="cpu")


def test_the_card_states_the_facts_of_the_run(exported):
    card = (exported / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "fedcopl"
    assert head["pipeline_tag"] == "image-classification"
    assert "# Classifier of north" in card
    assert "labelled test images" in card
    assert "    seven\n" in card
    assert re.search(r"^\| `?method`? \| `?FedCoPL", card, re.M)


def test_names_cannot_break_out_of_the_card(north):
    odd = replace(
        north.recipe,
        classes=("</pre><script>", "# Title", "---"),
        about={"client": "x](http://evil) <script> `a`\n# b", "accuracy": None},
    )
    card = _render_card(odd, (), None)
    assert yaml.safe_load(card.split("\n---\n")[0].removeprefix("---"))["library_name"] == "fedcopl"
    title = next(line for line in card.splitlines() if line.startswith("# "))
    assert not set("<>`[]()") & set(title)
    assert all(line.startswith("    ") for line in card.splitlines() if "<script>" in line)
    assert "accuracy is unknown" in card


def test_the_card_warns_of_stored_image_features(north):
    assert "Features of some of the site's own images" in _render_card(north.recipe, ["memory keys"], None)
    assert "Features of some" not in _render_card(north.recipe, ["visual"], None)


@pytest.fixture(scope="module")
def as_onnx(north, tmp_path_factory):
    """Return its exported folder, the difference from torch, and the model that torch exported, which takes long."""
    convert, made = onnx_export._convert, []

    def converted(predictor):
        made.append(convert(predictor))
        return deepcopy(made[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_export, "_convert", converted)
        folder = tmp_path_factory.mktemp("onnx") / "classifier"
        return folder, export(north, folder, onnx=True), made[0]


@pytest.mark.slow
def test_onnx_agrees_with_torch_and_needs_neither_torch_nor_fedcopl(north, as_onnx, tmp_path):
    folder, difference, _ = as_onnx
    assert difference.logits < 1e-3 and difference.probabilities < 1e-5
    images, _ = digits("test", 0, 3)
    for place, image in enumerate(images):
        image.save(tmp_path / f"{place}.png")
    example = (folder / "example_onnx.py").as_posix()
    code = (
        "import sys, runpy\n"
        "for name in ('torch', 'fedcopl'): sys.modules[name] = None\n"
        f"sys.argv = ['x', *[f'{tmp_path}/{{n}}.png' for n in range(3)]]\n"
        f"runpy.run_path({example!r})"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    shares = north.predict_proba(images)
    expected = [f"{north.classes_[row.argmax()]} ({row.max():.1%})" for row in shares]
    assert [line.split(": ")[1] for line in output.splitlines()] == expected


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
def test_the_onnx_example_transforms_images_as_the_classifier(tmp_path, mode, squash):
    """Rounding must not lose a pixel (98 x 49 becomes 16 x 8), and transparency becomes white."""
    source = files("fedcopl.classifier").joinpath("onnx_example.txt").read_text("utf-8")
    metadata = {"squash": json.dumps(squash), "resample": "bicubic"}
    example = {"json": json, "np": np, "Image": Image, "ImageOps": ImageOps, "metadata": metadata}
    example |= {"short_side": 8, "crop": 8}
    exec(source[source.index("def pixels") : source.index("for path in")], example)
    noise = np.random.default_rng(0).integers(0, 256, (49, 98, 4), np.uint8)
    image = Image.fromarray(noise, "RGBA").convert(mode)
    image.save(tmp_path / "image.png")
    expected = ImageTransform(8, 8, squash=squash).resize_and_crop(image)
    assert np.array_equal(example["pixels"](tmp_path / "image.png"), expected)


def test_a_method_that_computes_outside_torch_is_refused(tmp_path):
    folder = small_run(tmp_path / "run", method="fedotp")
    otp = Classifier.load(folder, client="north", device="cpu")
    with pytest.raises(ModelError, match="fedotp with its options cannot be written as ONNX: part of it is computed"):
        export_onnx(otp.predictor, otp.recipe.classes, tmp_path / "x.onnx")
    assert not (tmp_path / "x.onnx").exists()


@pytest.mark.slow
def test_an_onnx_file_that_differs_from_torch_is_not_written(north, as_onnx, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "_convert", lambda predictor: deepcopy(as_onnx[2]))
    monkeypatch.setattr("fedcopl.classifier.onnx_export._MAX_LOGIT_DIFFERENCE", 0.0)
    with pytest.raises(ModelError, match="is not written: its logits differ"):
        export_onnx(north.predictor, north.recipe.classes, tmp_path / "x.onnx")
    assert not (tmp_path / "x.onnx").exists()

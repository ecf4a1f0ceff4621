"""`fedcopl export`, as a user types it."""

import json
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from classifier.small import SITES, small_run
from fedcopl.classifier import Classifier
from fedcopl.cli import app
from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError, ModelError, RunFolderError
from fedcopl.simulation.simulate import simulate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Of a data set that can be read again, so that thresholds can be measured."""
    settings = {"rounds": 1, "train": {"epochs": 1}, "model": {"threads": 1}, "data": {"clients": 2}}
    folder = tmp_path_factory.mktemp("export") / "run"
    simulate(RunConfig.from_mapping(settings, "test"), folder)
    return folder


def fedcopl(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_one_client(run, tmp_path):
    out = tmp_path / "classifier"
    assert fedcopl("export", run, "--client", "client-1", "-o", out, "--abstain-share", "0.1").stdout == f"{out}\n"
    told = json.loads((out / "config.json").read_text())
    assert told["about"]["client"] == "client-1" and told["abstain"]["share"] == 0.1
    assert told["confidence"]["images"] == json.loads((run / "results.json").read_text())["clients"][1]["train"]
    assert Classifier.load(out, device="cpu").threshold == told["abstain"]["below"]


def test_the_printed_lines_of_python_load_the_classifier(run, tmp_path, monkeypatch):
    image = np.zeros((8, 8), np.uint8)
    monkeypatch.chdir(tmp_path)
    said = fedcopl("export", run, "--client", "client-0", "-o", "it's mine").stderr
    lines = said.split("in Python:\n")[1].split("\nnext:")[0]
    (tmp_path / "PHOTOS").mkdir()
    Image.fromarray(image).save(tmp_path / "PHOTOS" / "a.png")
    names = {}
    exec(textwrap.dedent(lines), names)
    assert list(names["labels"]) == list(Classifier.load("it's mine", device="cpu").predict(image[None]))


def test_export_of_all_clients(run, tmp_path):
    said = fedcopl("export", run, "--all", "-o", tmp_path / "all").stdout
    assert said.splitlines() == [str(tmp_path / "all" / name) for name in ("client-0", "client-1")]


def test_invalid_arguments_are_refused_before_the_model_is_loaded(run, tmp_path, monkeypatch):
    monkeypatch.setattr("fedcopl.classifier.loading.build_clip", lambda *_: pytest.fail("loaded"))
    (tmp_path / "client-1").mkdir()
    (tmp_path / "client-1" / "classifier.safetensors").touch()
    with pytest.raises(RunFolderError, match=r"client-1: already exists and is not empty"):
        fedcopl("export", run, "--all", "-o", tmp_path)
    with pytest.raises(ConfigError, match="has no client 'client-7'"):
        fedcopl("export", run, "--client", "client-7", "-o", tmp_path / "new")
    assert not (tmp_path / "client-0").exists()


def test_without_images_no_threshold_is_exported(tmp_path):
    run = small_run(tmp_path / "run")
    said = fedcopl("export", run, "--all", "-o", tmp_path / "all")
    assert "no threshold, because the images of the run cannot be read" in said.stderr
    folders = sorted(path.name for path in (tmp_path / "all").iterdir())
    assert len(folders) == len(SITES) and not any("/" in name for name in folders)
    assert Classifier.load(tmp_path / "all" / "north", device="cpu").threshold is None


def test_the_class_prior_of_its_predictions(run, tmp_path):
    shares = tmp_path / "mix.json"
    classes = json.loads((run / "results.json").read_text())["classes"]
    shares.write_text(json.dumps({name: number + 1 for number, name in enumerate(classes)}))
    for prior, words in ((shares, "given by the user"), ("none", "of all sites together")):
        fedcopl("export", run, "--client", "client-0", "--prior", prior, "-o", tmp_path / words)
        card = (tmp_path / words / "README.md").read_text()
        assert f"**{words}**" in " ".join(card.split())
        assert "measured with the class prior of its site" in " ".join(card.split())
    given = Classifier.load(tmp_path / "given by the user", device="cpu").prior.class_prior
    np.testing.assert_allclose(given, np.arange(1, 11) / 55)  # 1 + ... + 10 = 55
    shared = Classifier.load(tmp_path / "of all sites together", device="cpu").prior
    np.testing.assert_array_equal(shared.class_prior, shared.model.class_prior)
    fedcopl("export", run, "--client", "client-0", "-o", tmp_path / "site")
    own = Classifier.load(tmp_path / "site", device="cpu")
    assert not np.allclose(own.prior.class_prior, shared.class_prior)
    card = " ".join((tmp_path / "site" / "README.md").read_text().split())
    assert "estimated without labels at its site" in card and "with the class prior of its site" not in card


def test_a_missing_package_is_reported_first(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ModelError, match="ONNX needs onnxscript"):
        fedcopl("export", tmp_path / "no-run", "-o", tmp_path / "x", "--onnx")


def test_invalid_arguments_are_refused(run, tmp_path):
    for prior in ("images", "nowhere.csv"):
        with pytest.raises(ConfigError, match=f"--prior: '{prior}' is neither site, none nor a file"):
            fedcopl("export", run, "--client", "client-0", "-o", tmp_path / "x", "--prior", prior)
    with pytest.raises(RunFolderError, match="nowhere: there is no such folder; name the folder of a finished run"):
        fedcopl("export", tmp_path / "nowhere", "-o", tmp_path / "x")
    with pytest.raises(ConfigError, match="name one with --client"):
        fedcopl("export", run, "-o", tmp_path / "x")
    with pytest.raises(ConfigError, match="leave out --client"):
        fedcopl("export", run, "-o", tmp_path / "x", "--all", "--client", "client-0")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("precious")
    with pytest.raises(RunFolderError, match="already exists"):
        fedcopl("export", run, "-o", tmp_path / "taken", "--client", "client-0")

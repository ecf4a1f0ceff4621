"""`fedcopl predict`, as a user types it: many images, odd names, interruptions."""

import csv
import io
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from classifier.small import digits, small_run
from fedcopl.classifier import Classifier
from fedcopl.cli import app
from fedcopl.clip.encoder import ENCODE_BATCH as BATCH
from fedcopl.data.catalog import CLASSES
from fedcopl.errors import ConfigError, DataError, ModelError, RunFolderError
from preloaded_processes import PreloadedProcess, run_preloaded
from waiting import WAIT_LIMIT

COLUMNS = ["image", "label", "probability", "abstain", "problem"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    home = tmp_path_factory.mktemp("predict")
    own, _ = digits("train", 0, 40)
    loaded = Classifier.load(small_run(home / "run"), client="north", device="cpu").with_abstention(own)
    return loaded.export(home / "classifier")


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "=cmd").mkdir(parents=True)
    for place, image in enumerate(digits("test", 0, 5)[0]):
        image.save(folder / f"{place}.png")
    Image.new("L", (8, 8)).save(folder / 'a\n"b",c.png')
    Image.new("L", (8, 8)).save(folder / "=cmd" / "x.png")
    (folder / "broken.png").write_bytes(b"?")
    (folder / "notes.txt").write_text("passed over")
    (folder / "odd.xyz").write_text("passed over and counted")
    return folder


def fedcopl(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_predictions_of_a_folder_as_csv(classifier, photos, tmp_path):
    out = tmp_path / "out.csv"
    said = fedcopl("predict", "-c", classifier, photos, "-o", out)
    rows = table(out.read_text())
    assert list(rows[0])[:5] == COLUMNS
    names = [row["image"].removeprefix(f"{photos.as_posix()}/") for row in rows]
    assert names == ["0.png", "1.png", "2.png", "3.png", "4.png", 'a\\n"b",c.png', "broken.png", "=cmd/x.png"]
    assert [row["problem"] != "" for row in rows] == [name == "broken.png" for name in names]
    wanted = (
        Classifier.load(classifier, device="cpu").predict_proba([photos / f"{n}.png" for n in range(5)]).max(axis=1)
    )
    assert [float(row["probability"]) for row in rows[:5]] == pytest.approx(wanted.tolist(), abs=1e-5)
    assert "8 images" in said.stderr and "1 unreadable" in said.stderr and "'odd.xyz'" in said.stderr
    assert [file.name for file in tmp_path.glob("out*")] == ["out.csv"]


def test_abstaining_leaves_the_label_empty_and_the_guess_named(classifier, photos):
    rows = table(fedcopl("predict", "-c", classifier, photos / "0.png", "--abstain-below", "1").stdout)
    assert rows[0]["label"] == "" and rows[0]["abstain"] == "yes" and rows[0]["top_1"]
    rows = table(fedcopl("predict", "-c", classifier, photos / "0.png", "--abstain-share", "0").stdout)
    assert rows[0]["abstain"] in ("yes", "no")


def test_a_run_and_json_lines(classifier, photos):
    run = classifier.parent / "run"
    said = fedcopl(
        "predict", "-c", run, "--client", "north", photos / "0.png", "--format", "jsonl", "--top", "1"
    ).stdout
    told = json.loads(said)
    assert told["abstain"] is None and len(told["top"]) == 1 and told["label"] == told["top"][0]["label"]


def test_a_file_name_like_a_formula_is_escaped(classifier, photos, monkeypatch):
    monkeypatch.chdir(photos)
    assert table(fedcopl("predict", "-c", classifier, "=cmd").stdout)[0]["image"] == "./=cmd/x.png"


def test_zero_shot_needs_a_list_of_classes_and_no_run(tmp_path):
    images, truth = digits("test", 0, 60)
    (tmp_path / "photos").mkdir()
    for place, image in enumerate(images):
        image.save(tmp_path / "photos" / f"{place:02}.png")
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    said = fedcopl(
        "predict", "--zero-shot", "--classes", tmp_path / "classes.txt", tmp_path / "photos", "--backbone", "glyph-clip"
    )
    rows = table(said.stdout)
    labels = [row["label"] for row in rows]
    right = np.mean([label == CLASSES[number] for label, number in zip(labels, truth, strict=True)])
    assert right > 0.5  # by chance: 0.1
    unsure = sum(float(row["probability"]) < 0.5 for row in rows)
    summary, counts, _ = said.stderr.splitlines()
    assert summary == f"60 images, {unsure} unsure (no class reaches 50 %)"
    assert {part.split(": ")[0]: int(part.split(": ")[1]) for part in counts.split(", ")} == Counter(labels)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--zero-shot"], "--zero-shot: needs --classes FILE"),
        (["--zero-shot", "--classes", "c.txt", "-c", "run"], "and no --classifier"),
        (["-c", "run", "--classes", "c.txt"], "--classes: is for --zero-shot"),
        ([], "--classifier: is missing"),
    ],
)
def test_zero_shot_and_a_classifier_exclude_each_other(photos, words, message):
    with pytest.raises(ConfigError, match=message):
        fedcopl("predict", photos, *words)


def test_invalid_arguments_are_refused(classifier, photos, tmp_path):
    with pytest.raises(DataError, match=r"nix\.png: there is no such file"):
        fedcopl("predict", "-c", classifier, photos / "nix.png")
    with pytest.raises(ConfigError, match=r"should end in \.csv"):
        fedcopl("predict", "-c", classifier, photos, "-o", tmp_path / "out.xls")
    with pytest.raises(ModelError, match="there is no such folder"):
        fedcopl("predict", "-c", tmp_path / "nowhere", photos)
    (tmp_path / "out.csv").write_text("precious")
    with pytest.raises(RunFolderError, match="--overwrite"):
        fedcopl("predict", "-c", classifier, photos, "-o", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "precious"
    fedcopl("predict", "-c", classifier, photos, "-o", tmp_path / "out.csv", "--overwrite")
    assert (tmp_path / "out.csv").read_text().startswith("image,")
    with pytest.raises(ConfigError, match="use one of them"):
        fedcopl("predict", "-c", classifier, photos, "--abstain-share", "0.1", "--abstain-below", "0.1")


def many(folder, count):
    """So many files, made of a hundred images: links inside a folder are followed."""
    folder.mkdir()
    for number, image in enumerate(digits("test", 0, 100)[0]):
        image.save(folder / f"{number:05}.png")
    for number in range(100, count):
        (folder / f"{number:05}.png").symlink_to(folder / f"{number % 100:05}.png")
    return folder


@pytest.mark.slow
def test_a_killed_prediction_continues_with_the_same_bytes(classifier, tmp_path):
    photos = many(tmp_path / "photos", 3 * BATCH + 10)
    words = ["predict", "-c", str(classifier), str(photos), "-o"]
    whole = run_preloaded(*words, str(tmp_path / "whole.csv"))
    assert whole.returncode == 0, whole.stderr
    killed = PreloadedProcess(
        [*words, str(tmp_path / "out.csv")], tmp_path, Path(__file__).with_name("killed_predict.py")
    )
    assert killed.wait(WAIT_LIMIT) == -signal.SIGKILL, killed.stdout.read()
    with (tmp_path / "out.csv.part").open("ab") as file:  # and a row by half, as a full disk leaves it
        file.write(b"photos/0")
    said = run_preloaded(*words, str(tmp_path / "out.csv")).stderr
    assert f"{3 * BATCH + 10} images" in said and f"{2 * BATCH} of them before the interruption" in said
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        after = Counter(row["label"] for row in list(csv.DictReader(file))[2 * BATCH :])
    label, count = after.most_common(1)[0]
    assert f"in the {BATCH + 10} after it" in said and f"after the interruption: {label}: {count}" in said


@pytest.mark.slow
def test_a_closed_pipe_gives_no_traceback(classifier, photos):
    command = [sys.executable, "-m", "fedcopl", "predict", "-c", str(classifier), str(photos)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == 1
    assert said == ""


def probabilities(*arguments):
    """One row for each image, in the order of the classes."""
    lines = map(json.loads, fedcopl("predict", *arguments, "--format", "jsonl", "--top", "10").stdout.splitlines())
    by_name = [{one["label"]: one["probability"] for one in line["top"]} for line in lines]
    return np.array([[row[name] for name in CLASSES] for row in by_name])


def test_predictions_with_another_class_prior(classifier, photos, tmp_path):
    known = Classifier.load(classifier, device="cpu")
    images = [photos / f"{number}.png" for number in range(5)]
    only = {name: float(name in ("one", "two")) for name in CLASSES}
    (tmp_path / "mix.csv").write_text("class,share\n" + "".join(f"{name},{share}\n" for name, share in only.items()))
    wanted = {
        "site": known,
        "none": known.with_prior("none"),
        "images": known.with_prior("images", images),
        str(tmp_path / "mix.csv"): known.with_prior(only),
    }
    for prior, same in wanted.items():
        said = probabilities("-c", classifier, *images, "--prior", prior)
        assert said == pytest.approx(same.predict_proba(images), abs=1e-6)
    assert said[:, [1, 2]].sum(axis=1) == pytest.approx(np.ones(5))
    by_itself = probabilities("-c", classifier, *images)
    assert by_itself.tolist() == probabilities("-c", classifier, *images, "--prior", "site").tolist()


def test_an_invalid_class_prior_is_refused(classifier, photos, tmp_path):
    with pytest.raises(ConfigError, match="'sight' is neither site, none, images nor a file"):
        fedcopl("predict", "-c", classifier, photos, "--prior", "sight")
    (tmp_path / "mix.csv").write_text("class,share\nten,1\n")
    with pytest.raises(DataError, match=r"mix\.csv: 'ten' is not one of the classes"):
        fedcopl("predict", "-c", classifier, photos, "--prior", tmp_path / "mix.csv")


def test_continuing_with_another_class_prior_is_refused(classifier, photos, tmp_path):
    out = tmp_path / "out.csv"
    even = dict.fromkeys(CLASSES, 1) | {"one": 2}
    (tmp_path / "mix.json").write_text(json.dumps(even))
    fedcopl("predict", "-c", classifier, photos, "-o", out)
    out.rename(tmp_path / "out.csv.part")
    asked = {"classifier": Classifier.load(classifier, device="cpu").fingerprint}
    (tmp_path / "out.csv.part.json").write_text(json.dumps(asked))
    with pytest.raises(RunFolderError, match="was started with another classifier"):
        fedcopl("predict", "-c", classifier, photos, "-o", out, "--prior", tmp_path / "mix.json")

"""A classifier says what the exam of its run measured, from whatever form images come in."""

import json

import numpy as np
import pytest
from PIL import Image

from fedcopl.data.catalog import CLASSES
from fedcopl.errors import ConfigError, DataError, ModelError, RunFolderError
from fedcopl.methods import METHODS
from fedcopl.predict import Classifier
from fedcopl.predict.loading import FinishedRun, OwnImages
from predict.small import SITES, digits, holdings, small_dataset, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("small") / "run")


@pytest.fixture(scope="module")
def north(run):
    return Classifier.load(run, client="north", device="cpu")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_scores_as_in_its_exam(tmp_path, method):
    folder = small_run(tmp_path / "run", method=method)
    opened = FinishedRun(folder, device="cpu")
    measured = {client.name: client.final for client in opened.outcome.clients}
    if method == "central":
        images = [image for holding in holdings() for image in holding.test.items]
        truth = np.concatenate([holding.truth for holding in holdings()])
        assert opened.classifier("central").score(images, truth) == measured["central"]
        return
    for holding in holdings():
        assert opened.classifier(holding.name).score(holding.test.items, holding.truth) == measured[holding.name]


def test_scikit_learns_words(north):
    images, truth = digits("test", 0, 5)
    assert north.classes_.tolist() == list(CLASSES)
    shares, logs = north.predict_proba(images), north.predict_log_proba(images)
    assert shares.shape == (5, 10)
    assert shares.sum(axis=1) == pytest.approx(np.ones(5))
    assert np.exp(logs) == pytest.approx(shares)
    assert north.predict(images).tolist() == [CLASSES[place] for place in shares.argmax(axis=1)]
    names = [CLASSES[number] for number in truth]
    assert north.score(images, truth) == north.score(images, names) == np.mean(north.predict(images) == names)


def test_no_images_are_no_rows(north):
    assert north.predict_proba([]).shape == (0, 10)
    assert north.predict([]).tolist() == []


def test_all_forms_of_images_agree(north, tmp_path):
    images, _ = digits("test", 0, 4)
    for place, image in enumerate(images):
        image.save(tmp_path / f"{place}.png")
    grey = np.stack([np.asarray(image) for image in images])
    colour = np.repeat(grey[..., None], 3, axis=-1)
    wanted = north.predict_log_proba(images)
    paths = sorted(tmp_path.glob("*.png"))
    for same in (tmp_path, str(tmp_path), paths, list(map(str, paths)), grey, colour, list(colour)):
        assert np.array_equal(north.predict_log_proba(same), wanted)
    assert np.array_equal(north.predict_log_proba(paths[2]), north.predict_log_proba(images[2]))


WRONG = {
    "floats": (np.zeros((2, 8, 8, 3)), "must be uint8"),
    "one image": (np.zeros((8, 8, 3), np.uint8), r"image\[None\]"),
    "no such file": ("nowhere", "there is no such folder or file"),
    "a number": ([3], "image 0 is a int"),
}


@pytest.mark.parametrize(("images", "message"), WRONG.values(), ids=WRONG)
def test_what_is_no_image_is_said(north, images, message):
    with pytest.raises(DataError, match=message):
        north.predict(images)


def test_a_broken_image_is_an_error_to_predict_and_an_answer_to_answers(north, tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    Image.new("L", (8, 8)).save(tmp_path / "b.png")
    with pytest.raises(DataError, match=r"a\.png: not an image of a known format"):
        north.predict(tmp_path)
    broken, good = north.answers(tmp_path)
    assert broken.problem and broken.label is None and broken.top == ()
    assert good.problem is None and good.label in CLASSES and good.abstains is None


def test_abstaining_by_hand(north):
    images, _ = digits("test", 0, 20)
    highest = north.predict_proba(images).max(axis=1)
    limit = float(np.median(highest))
    said = list(north.answers(images, threshold=limit, top=2))
    assert [answer.abstains for answer in said] == (highest < limit).tolist()
    assert all((answer.label is None) == answer.abstains for answer in said)
    assert all(len(answer.top) == 2 and answer.top[0][1] == answer.probability for answer in said)


def test_the_threshold_is_that_quantile_of_its_own_images(run, north):
    own, _ = digits("train", 0, 40)
    highest = north.predict_proba(own).max(axis=1)
    measured = OwnImages(FinishedRun(run, device="cpu"), small_dataset()).classifier("north", share=0.2)
    assert measured.threshold == pytest.approx(np.quantile(highest, 0.2, method="lower"))
    assert north.calibrated(own, share=0.2).threshold == measured.threshold
    assert (
        sum(answer.abstains for answer in measured.answers(own)) == 7
    )  # the eighth of forty is the threshold: seven lie below it


def test_labels_that_are_no_classes(north):
    images, _ = digits("test", 0, 2)
    with pytest.raises(DataError, match="'ten' is not among the classes"):
        north.score(images, ["one", "ten"])
    with pytest.raises(DataError, match="the label 10 is none of the 10 classes"):
        north.score(images, [1, 10])
    with pytest.raises(DataError, match="1 for 2 images"):
        north.score(images, [1])


def test_a_run_needs_a_client(run):
    with pytest.raises(ConfigError, match="name one with --client"):
        Classifier.load(run)
    with pytest.raises(ConfigError, match="did you mean north"):
        Classifier.load(run, client="nort")
    assert Classifier.load(run, client=SITES[1], device="cpu").recipe.about["client"] == SITES[1]


def test_a_device_that_is_none(run):
    with pytest.raises(ConfigError, match=r"model\.device"):
        Classifier.load(run, client="north", device="toaster")


def test_folders_that_are_none(tmp_path, run):
    with pytest.raises(ModelError, match="there is no such folder"):
        Classifier.load(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="neither an exported classifier"):
        Classifier.load(tmp_path)
    (tmp_path / "settings.toml").write_text((run / "settings.toml").read_text())
    with pytest.raises(RunFolderError, match="not finished"):
        Classifier.load(tmp_path, client="north")


def test_how_it_shows_itself(north):
    assert repr(north) == "<Classifier of north: 10 classes, fedcopl on glyph-clip>"
    assert "<th>classes</th><td>zero, one" in north._repr_html_()
    odd = Classifier(north.predictor, north.recipe.__class__(**{**vars(north.recipe), "classes": ("<b>", "x")}))
    assert "<b>" not in odd._repr_html_()


def test_the_files_of_a_run_hold_what_is_loaded(run, north):
    results = json.loads((run / "results.json").read_text())
    assert [client["name"] for client in results["clients"]] == list(SITES)
    assert set(north.predictor.prompts) == {"visual", "text"}

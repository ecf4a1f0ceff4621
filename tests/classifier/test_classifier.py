"""A classifier reproduces the accuracy of its run, for all forms of images."""

import copy
import gc
import json
import pickle
import shutil
from pathlib import Path

import joblib
import numpy as np
import pytest
from PIL import Image
from sklearn.base import is_classifier, is_regressor
from sklearn.metrics import ConfusionMatrixDisplay, get_scorer
from sklearn.utils.validation import check_is_fitted

from classifier.small import SITES, digits, images_of_sites, small_dataset, small_run
from fedcopl.classifier import Classifier
from fedcopl.classifier.loading import FinishedRun, TrainingImages
from fedcopl.clip.known_models import BUILT_IN
from fedcopl.data.catalog import CLASSES
from fedcopl.errors import ConfigError, DataError, ModelError, RunFolderError
from fedcopl.methods import METHODS


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("small") / "run")


@pytest.fixture(scope="module")
def north(run):
    return Classifier.load(run, client="north", device="cpu")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_scores_as_in_its_run(tmp_path, method):
    folder = small_run(tmp_path / "run", method=method)
    opened = FinishedRun(folder, device="cpu")
    measured = {client.name: client.final for client in opened.outcome.clients}
    if method == "central":
        images = [image for site in images_of_sites() for image in site.test.items]
        truth = np.concatenate([site.truth for site in images_of_sites()])
        assert opened.classifier("central").score(images, truth) == measured["central"]
        return
    for site in images_of_sites():
        assert opened.classifier(site.name).score(site.test.items, site.truth) == measured[site.name]


@pytest.mark.parametrize(("name", "reason"), [("nowhere", "there is no such folder"), (".", "has no settings.toml")])
def test_a_folder_without_a_run_is_named(tmp_path, monkeypatch, name, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFolderError, match=f"{reason}.*; name the folder of a finished run"):
        FinishedRun(Path(name))


def test_the_interface_of_scikit_learn(north):
    images, truth = digits("test", 0, 5)
    assert north.classes_.tolist() == list(CLASSES)
    shares, logs = north.predict_proba(images), north.predict_log_proba(images)
    assert shares.shape == (5, 10)
    assert shares.sum(axis=1) == pytest.approx(np.ones(5))
    assert np.exp(logs) == pytest.approx(shares)
    assert north.predict(images).tolist() == [CLASSES[place] for place in shares.argmax(axis=1)]
    names = [CLASSES[number] for number in truth]
    assert north.score(images, truth) == north.score(images, names) == np.mean(north.predict(images) == names)


def test_scikit_learn_accepts_it_as_a_fitted_classifier(north):
    images, truth = digits("test", 0, 30)
    names = [CLASSES[number] for number in truth]
    assert is_classifier(north) and not is_regressor(north)
    check_is_fitted(north)
    shown = ConfusionMatrixDisplay.from_estimator(north, images, names, labels=CLASSES)
    assert np.trace(shown.confusion_matrix) == (north.predict(images) == names).sum()
    assert get_scorer("accuracy")(north, images, names) == north.score(images, names)
    with pytest.raises(ConfigError, match="fit: a classifier is fitted by a federation"):
        north.fit(images, y=names)


def by_joblib(classifier, folder):
    joblib.dump(classifier, folder / "classifier.joblib")
    return joblib.load(folder / "classifier.joblib")


COPIES = {
    "pickle": lambda classifier, _: pickle.loads(pickle.dumps(classifier)),
    "joblib": by_joblib,
    "copy": lambda classifier, _: copy.copy(classifier),
    "deepcopy": lambda classifier, _: copy.deepcopy(classifier),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_predicts_alike(run, north, tmp_path, copied):
    images, _ = digits("test", 0, 5)
    for one in (
        north.with_abstention(images),
        north.with_prior({name: 1.0 + number for number, name in enumerate(CLASSES)}),
    ):
        again = copied(one, tmp_path)
        assert np.array_equal(again.predict_log_proba(images), one.predict_log_proba(images))
        assert (again.fingerprint, again.threshold, repr(again)) == (one.fingerprint, one.threshold, repr(one))


def test_pickles_contain_no_clip_model_and_share_one_when_loaded(run):
    opened = FinishedRun(run, device="cpu")
    pickled = pickle.dumps([opened.classifier(name) for name in SITES])
    assert len(pickled) < 600_000  # the built-in model has 5.6 MB in memory
    assert str(run.parent).encode() not in pickled
    one, other = pickle.loads(pickled)
    assert one.predictor.model.encoder.clip is other.predictor.model.encoder.clip


def test_a_pickle_finds_a_private_model_by_its_absolute_path_or_names_it(tmp_path, monkeypatch):
    shutil.copytree(BUILT_IN["glyph-clip"], tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    folder = small_run(tmp_path / "run", model={"threads": 1, "backbone": "model"})
    pickled = pickle.dumps(Classifier.load(folder, client="north"))
    monkeypatch.chdir("/")
    images, _ = digits("test", 0, 3)
    assert pickle.loads(pickled).predict(images).shape == (3,)
    gc.collect()  # or the model would still be known
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(
        ModelError, match=r"the CLIP model of a pickled classifier was not found: .*model: no such file"
    ):
        pickle.loads(pickled)


def test_no_images_give_no_rows(north):
    assert north.predict_proba([]).shape == (0, 10)
    assert north.predict([]).tolist() == []


def test_all_forms_of_images_agree(north, tmp_path):
    images, _ = digits("test", 0, 4)
    for place, image in enumerate(images):
        image.save(tmp_path / f"{place}.png")
    grey = np.stack([np.asarray(image) for image in images])
    colour = np.repeat(grey[..., None], 3, axis=-1)
    expected = north.predict_log_proba(images)
    paths = sorted(tmp_path.glob("*.png"))
    for same in (tmp_path, str(tmp_path), paths, list(map(str, paths)), grey, colour, list(colour)):
        assert np.array_equal(north.predict_log_proba(same), expected)
    assert np.array_equal(north.predict_log_proba(paths[2]), north.predict_log_proba(images[2]))


WRONG = {
    "floats": (np.zeros((2, 8, 8, 3)), "must be uint8"),
    "one image": (np.zeros((8, 8, 3), np.uint8), r"image\[None\]"),
    "no such file": ("nowhere", "there is no such folder or file"),
    "a number": ([3], "image 0 is a int"),
}


@pytest.mark.parametrize(("images", "message"), WRONG.values(), ids=WRONG)
def test_a_file_that_is_no_image_is_named(north, images, message):
    with pytest.raises(DataError, match=message):
        north.predict(images)


def test_a_broken_image_is_an_error_to_predict_and_a_prediction_with_a_problem(north, tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    Image.new("L", (8, 8)).save(tmp_path / "b.png")
    with pytest.raises(DataError, match=r"a\.png: not an image of a known format"):
        north.predict(tmp_path)
    broken, good = north.predictions(tmp_path)
    assert broken.problem and broken.label is None and broken.top == ()
    assert good.problem is None and good.label in CLASSES and good.abstains is None


def test_abstaining_by_hand(north):
    images, _ = digits("test", 0, 20)
    highest = north.predict_proba(images).max(axis=1)
    limit = float(np.median(highest))
    predictions = list(north.predictions(images, threshold=limit, top=2))
    assert [answer.abstains for answer in predictions] == (highest < limit).tolist()
    assert all((answer.label is None) == answer.abstains for answer in predictions)
    assert all(len(answer.top) == 2 and answer.top[0][1] == answer.probability for answer in predictions)


def test_the_threshold_is_the_quantile_of_the_sites_images(run, north):
    own, _ = digits("train", 0, 40)
    highest = north.predict_proba(own).max(axis=1)
    measured = TrainingImages(FinishedRun(run, device="cpu"), small_dataset()).classifier("north", share=0.2)
    assert measured.threshold == pytest.approx(np.quantile(highest, 0.2, method="lower"))
    assert north.with_abstention(own, share=0.2).threshold == measured.threshold
    assert (
        sum(answer.abstains for answer in measured.predictions(own)) == 7
    )  # the eighth of forty is the threshold: seven lie below it


def test_unknown_labels_are_refused(north):
    images, _ = digits("test", 0, 2)
    with pytest.raises(DataError, match="'ten' is not among the classes"):
        north.score(images, ["one", "ten"])
    with pytest.raises(DataError, match="the label 10 is not one of the 10 classes"):
        north.score(images, [1, 10])
    with pytest.raises(DataError, match="1 for 2 images"):
        north.score(images, [1])


def test_a_run_needs_a_client(run):
    with pytest.raises(ConfigError, match=r"name one with client=\.\.\. \(north"):
        Classifier.load(run)
    with pytest.raises(ConfigError, match="did you mean north"):
        Classifier.load(run, client="nort")
    assert Classifier.load(run, client=SITES[1], device="cpu").recipe.about["client"] == SITES[1]


def test_an_unknown_device_is_refused(run):
    with pytest.raises(ConfigError, match=r"model\.device"):
        Classifier.load(run, client="north", device="toaster")


def test_folders_without_a_classifier_are_refused(tmp_path, run):
    with pytest.raises(ModelError, match="there is no such folder"):
        Classifier.load(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="neither an exported classifier"):
        Classifier.load(tmp_path)
    (tmp_path / "settings.toml").write_text((run / "settings.toml").read_text())
    with pytest.raises(RunFolderError, match="not finished"):
        Classifier.load(tmp_path, client="north")


def test_repr_and_html(north):
    assert repr(north) == "<Classifier of north: 10 classes, fedcopl on glyph-clip>"
    assert "<th>classes</th><td>zero, one" in north._repr_html_()
    odd = Classifier(north.predictor, north.recipe.__class__(**{**vars(north.recipe), "classes": ("<b>", "x")}))
    assert "<b>" not in odd._repr_html_()


def test_a_classifier_has_the_arrays_of_the_runs_files(run, north):
    results = json.loads((run / "results.json").read_text())
    assert [client["name"] for client in results["clients"]] == list(SITES)
    assert set(north.predictor.prompts) == {"visual", "text"}

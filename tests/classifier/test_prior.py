"""Predictions with the priors of a run, in every form of a classifier, and for any class prior given by the user."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from classifier.small import QUICK, SITES, digits, pictures, small_run
from fedcopl.classifier import Classifier
from fedcopl.classifier.export import _render_card
from fedcopl.classifier.loading import FinishedRun
from fedcopl.classifier.predict import Predictor
from fedcopl.classifier.prior import Prior
from fedcopl.config import RunConfig
from fedcopl.data.catalog import CLASSES
from fedcopl.data.in_memory import SiteImages, dataset_of_sites
from fedcopl.data.label_files import parse_class_prior, read_class_prior
from fedcopl.errors import ConfigError, DataError, ModelError
from fedcopl.federation.client_state import ClientState
from fedcopl.federation.prior_estimation import PriorState
from fedcopl.federation.server import ServerState
from fedcopl.priors.posterior import PosteriorModel, Prototypes
from fedcopl.run.folder import PRIORS, RunFolder, class_prior_file
from fedcopl.run.pseudo_labels import read_labels
from fedcopl.simulation.simulate import simulate

EVEN, SKEWED = np.array([0.5, 0.5]), np.array([0.75, 0.25])
BALANCED = PosteriorModel(EVEN, np.array([0.2, -0.2]))
LOOKING = Prototypes(np.array([3.0, 5.0]), np.array([[3.0, 0.0], [0.0, 5.0]]), np.eye(2))
RNG = np.random.default_rng(5)
SIGHT = RNG.normal(size=(128, 128))
LOOKS = Prototypes(RNG.uniform(3, 90, 10), 3 * RNG.normal(size=(10, 128)), SIGHT @ SIGHT.T / 128)
FULL = PosteriorModel(EVEN, np.array([0.2, -0.2]), 0.7, 0.2, LOOKING, 0.3)


def skewed_site_images(name, labels):
    """A site with images of few classes."""
    parts = []
    for split, many in (("train", 60), ("test", 30)):
        images, truth = digits(split, 0, 400)
        chosen = [place for place, label in enumerate(truth) if label in labels][:many]
        parts.append(([images[place] for place in chosen], truth[chosen]))
    (train, _), (test, truth) = parts
    return SiteImages(name, pictures(train), pictures(test), truth)


def simulated(folder, **settings):
    config = RunConfig.from_mapping({**QUICK, **settings}, "test")
    simulate(config, folder, dataset=dataset_of_sites(SITES_IMAGES, CLASSES))
    return folder


NO_PRIORS = {"logit_bias": False, "label_shift": False, "prototypes": False}
SITES_IMAGES = [skewed_site_images(SITES[0], (1, 4, 7)), skewed_site_images(SITES[1], (0, 2, 3, 5, 6, 8, 9))]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return simulated(tmp_path_factory.mktemp("skewed") / "run")


@pytest.fixture(scope="module")
def north(run):
    return Classifier.load(run, client="north", device="cpu")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without priors."""
    folder = small_run(tmp_path_factory.mktemp("small") / "run", method="promptfl", priors=NO_PRIORS)
    assert not (folder / PRIORS).exists() and not class_prior_file(folder, "north").exists()
    return Classifier.load(folder, client="north", device="cpu")


# By hand: log p = log(1/2, 1/2), logit bias (0, 0), mix (3/4, 1/4): the mix itself.
def test_an_uninformative_image_gets_the_class_prior():
    prior = Prior(PosteriorModel(EVEN, np.zeros(2)), SKEWED)
    assert np.exp(prior.log_posteriors(np.log([[0.5, 0.5]]), np.zeros((1, 2))))[0] == pytest.approx([0.75, 0.25])
    pooled = prior.with_class_prior(prior.model.class_prior)
    assert np.exp(pooled.log_posteriors(np.log([[0.5, 0.5]]), np.zeros((1, 2))))[0] == pytest.approx([0.5, 0.5])


# By hand: f = (1, 0) lies at the first mean. D^2 = (0 + 2 log 4/3, 2 * 5/6 + 2 log 6/5), with the determinants of the
# predictive covariances (1 + 1/3) I and (1 + 1/5) I; 0.7 log 1/2 - 0.1 D^2 + b + log mix.
def test_all_parts_by_hand():
    prior = Prior(FULL, SKEWED)
    apart = 0.1 * (2 * 5 / 6 + 2 * np.log(6 / 5) - 2 * np.log(4 / 3)) + 0.4 + np.log(3)
    expected = 1 / (1 + np.exp(-apart))
    assert np.exp(prior.log_posteriors(np.log([[0.5, 0.5]]), np.array([[1.0, 0.0]])))[0, 0] == pytest.approx(expected)


@pytest.mark.parametrize("model", [BALANCED, FULL])
def test_a_posterior_model_is_restored_from_its_arrays(model):
    back = Prior.from_arrays(Prior(model, SKEWED).to_arrays(), 2, 2)
    assert back.class_prior.tolist() == SKEWED.tolist()
    assert back.model.strength == model.strength
    assert (back.model.text_scale, back.model.feature_scale) == (model.text_scale, model.feature_scale)
    assert (back.model.prototypes is None) == (model.prototypes is None)
    for name, array in model.to_arrays().items():
        assert np.array_equal(back.model.to_arrays()[name], array), name


WRONG_ARRAYS = {
    "no mix": ({"site_class_prior": None}, "the array 'site_class_prior' of the priors is missing"),
    "another number of classes": (
        {"logit_bias": np.zeros(3)},
        r"'logit_bias' of the priors has the shape \(3,\), not \(2,\)",
    ),
    "other features": ({"totals": np.zeros((2, 7))}, r"'totals' of the priors has the shape \(2, 7\), not \(2, 2\)"),
    "two strengths": ({"strength": np.ones(2)}, r"'strength' of the priors has the shape \(2,\), not \(1,\)"),
    "no shares": ({"site_class_prior": np.array([1.5, -0.5])}, "must be positive shares that sum to 1"),
    "not all": ({"class_prior": np.array([0.5, 0.4])}, "must be positive shares that sum to 1"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG_ARRAYS.values(), ids=WRONG_ARRAYS)
def test_invalid_arrays_are_refused(changes, message):
    arrays = {name: array for name, array in (Prior(FULL, SKEWED).to_arrays() | changes).items() if array is not None}
    with pytest.raises(ModelError, match=message):
        Prior.from_arrays(arrays, 2, 2)


def test_a_run_stores_the_common_priors_once_and_each_class_prior(tmp_path):
    knows = ClientState(prior=PriorState(model=FULL, class_prior=SKEWED))
    late = ClientState(prior=PriorState(model=BALANCED, class_prior=EVEN))
    server = ServerState(1, {"visual": np.zeros(1, np.float32)}, 2, prior_model=FULL)
    RunFolder(tmp_path).write_prompts(server, {"a": knows, "../b": late, "c": ClientState()})
    assert set(load_file(tmp_path / PRIORS)) == set(FULL.to_arrays())
    assert {name: class_prior.tolist() for name, class_prior in load_file(class_prior_file(tmp_path, "a")).items()} == {
        "site_class_prior": [0.75, 0.25]
    }
    own = load_file(class_prior_file(tmp_path, "../b"))  # it missed the last common model and keeps its posterior model
    assert Prior.from_arrays(own, 2, 2).model.text_scale == 1.0
    assert not class_prior_file(tmp_path, "c").exists()


def test_classifiers_of_a_run_use_its_priors(run, north):
    images, _ = digits("test", 0, 20)
    pixels = np.stack([north.predictor.transform.resize_and_crop(image.convert("RGB")) for image in images])
    known = load_file(run / PRIORS)
    class_prior = load_file(class_prior_file(run, "north"))["site_class_prior"]
    expected = PosteriorModel.from_arrays(known).log_posteriors(*north.predictor.model_outputs(pixels), class_prior)
    assert north.predict_log_proba(images) == pytest.approx(expected, abs=1e-9)
    assert north.prior.class_prior.tolist() == class_prior.tolist()
    assert class_prior[[1, 4, 7]].sum() > 0.8  # its classes
    other = Classifier.load(run, client=SITES[1], device="cpu")
    assert other.prior.class_prior[[1, 4, 7]].sum() < 0.2
    assert other.fingerprint != north.fingerprint


def test_classifiers_of_different_sites_score_as_in_their_run(run):
    opened = FinishedRun(run, device="cpu")
    measured = {client.name: client.final for client in opened.outcome.clients}
    for site in SITES_IMAGES:
        assert opened.classifier(site.name).score(site.test.items, site.truth) == measured[site.name]


def test_the_results_have_the_class_prior_of_each_site(run):
    """The run has one round, after which classifiers have these class priors."""
    [refresh] = FinishedRun(run, device="cpu").outcome.refreshes
    assert [list(row) for row in refresh.class_prior] == [
        load_file(class_prior_file(run, site.name))["site_class_prior"].tolist() for site in SITES_IMAGES
    ]


def test_review_shows_the_labels_of_the_adapted_model(run):
    """Where only three classes occur, zero-shot CLIP sees others too; with the mix in mind they are all but gone."""
    [believed] = read_labels(run, "north")
    by_prior = np.isin(believed.classes[:, 0], (1, 4, 7)).mean()
    [plain] = read_labels(simulated(run.parent / "plain", priors=NO_PRIORS), "north")
    assert by_prior > np.isin(plain.classes[:, 0], (1, 4, 7)).mean()
    assert by_prior > 0.9


def test_without_priors_a_classifier_predicts_as_its_model(plain):
    images, _ = digits("test", 0, 5)
    assert plain.prior is None and plain.with_prior("none") is plain
    evenly = plain.with_prior(dict.fromkeys(CLASSES, 7))
    assert evenly.predict_log_proba(images) == pytest.approx(plain.predict_log_proba(images))


def test_a_damaged_prior_is_one_clear_line(tmp_path):
    folder = small_run(tmp_path / "run", method="priors")
    save_file({"site_class_prior": np.full(9, 1 / 9)}, class_prior_file(folder, "north"))
    with pytest.raises(
        ModelError, match=r"north\.safetensors: the array 'site_class_prior' of the priors has the shape"
    ):
        Classifier.load(folder, client="north", device="cpu")


def test_an_exported_classifier_contains_its_prior(north, tmp_path):
    images, _ = digits("test", 0, 20)
    loaded = Classifier.load(north.export(tmp_path / "classifier"), device="cpu")
    assert np.array_equal(loaded.predict_log_proba(images), north.predict_log_proba(images))
    assert loaded.fingerprint == north.fingerprint
    assert set(loaded.predictor.prompts) == set(north.predictor.prompts)
    arrays = load_file(tmp_path / "classifier/model.safetensors")
    model = north.prior.model
    assert arrays["prior/numbers"].tolist() == [model.text_scale, model.feature_scale]


@pytest.mark.parametrize("strength", [0.0, 0.3, math.inf])
def test_an_exported_prior_keeps_its_strength(north, tmp_path, strength):
    """Files contain only finite numbers, also for the infinite strength of a common class prior."""
    prior = replace(north.prior, model=replace(north.prior.model, strength=strength))
    predictor = Predictor(north.predictor.model, north.predictor.prompts, prior)
    folder = Classifier(predictor, north.recipe).export(tmp_path / "classifier")
    assert all(np.isfinite(array).all() for array in load_file(folder / "model.safetensors").values())
    assert Classifier.load(folder, device="cpu").prior.model.strength == strength


def test_a_classifier_without_priors(plain, tmp_path):
    folder = plain.export(tmp_path / "classifier")
    assert not [name for name in load_file(folder / "model.safetensors") if name.startswith("prior/")]
    assert "## Priors" not in (folder / "README.md").read_text()
    assert Classifier.load(folder, device="cpu").prior is None


DAMAGES = {
    "another type": (np.ones(2, np.float32), "the array 'prior/numbers' does not contain finite float64 numbers"),
    "not finite": (np.array([1.0, math.inf]), "the array 'prior/numbers' does not contain finite float64 numbers"),
    "too few": (np.ones(1), r"the array 'numbers' of the priors has the shape \(1,\), not \(2,\)"),
    "none": (None, "the array 'numbers' of the priors is missing"),
}


@pytest.mark.parametrize(("numbers", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_arrays_of_priors_are_refused(north, tmp_path, numbers, message):
    file = north.export(tmp_path / "classifier") / "model.safetensors"
    arrays = {name: array for name, array in load_file(file).items() if name != "prior/numbers"}
    save_file(arrays if numbers is None else arrays | {"prior/numbers": numbers}, file)
    with pytest.raises(ModelError, match=message) as caught:
        Classifier.load(file.parent, device="cpu")
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


def test_the_card_states_the_class_prior_by_name(north):
    shares = dict.fromkeys(CLASSES, 0.0) | {"seven": 3, "two": 1}
    classifier = north.with_prior(shares)
    card = _render_card(classifier.recipe, ["prior/site_class_prior"], None, classifier.prior)
    assert "    seven   75.00%\n" in card and "    two     25.00%\n" in card and "    one      0.00%\n" in card
    assert "So are the class prior above" in card.replace("\n", " ")


def test_another_class_prior_changes_predictions_by_the_ratio_of_the_shares(north):
    """p~ is proportional to the class prior times a factor that two predictions determine."""
    images, _ = digits("test", 0, 20)
    doubled = north.prior.named_class_prior(CLASSES) | {"three": 2 * north.prior.class_prior[3]}
    before, after = north.predict_log_proba(images), north.with_prior(doubled).predict_log_proba(images)
    gained = (after - before) - (after - before)[:, :1]
    expected = np.where(np.arange(10) == 3, np.log(2), 0.0)
    assert gained == pytest.approx(np.tile(expected, (20, 1)), abs=1e-9)


def test_prior_none_is_the_class_prior_of_all_sites(north):
    assert north.with_prior("none").prior.class_prior.tolist() == north.prior.model.class_prior.tolist()


def test_prior_images_estimates_the_class_prior_of_the_images(north, plain, tmp_path):
    images, truth = digits("test", 0, 300)
    ones = [image for image, label in zip(images, truth, strict=True) if label in (1, 4)]
    for classifier in (north, plain):
        class_prior = classifier.with_prior("images", ones).prior.named_class_prior(CLASSES)
        assert class_prior["one"] + class_prior["four"] > 0.6
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    ones[0].save(tmp_path / "one.png")
    assert north.with_prior("images", tmp_path).prior is not None
    with pytest.raises(DataError, match="there is no image to estimate the class prior"):
        north.with_prior("images", [broken])


def test_unknown_priors_are_refused(north):
    with pytest.raises(ConfigError, match='must be "none", "images" or a share for each class'):
        north.with_prior("sight")
    with pytest.raises(ConfigError, match="also needs the argument images"):
        north.with_prior("images")


@given(st.lists(st.floats(0, 1e300), min_size=2, max_size=5).filter(any))
def test_shares_of_any_scale_are_normalised(shares):
    classes = [str(number) for number in range(len(shares))]
    class_prior = parse_class_prior(dict(zip(classes, shares, strict=True)), classes, "test")
    assert (class_prior > 0).all() and class_prior.sum() == pytest.approx(1)
    assert np.argmax(shares) in np.flatnonzero(class_prior == class_prior.max())


def test_shares_by_hand(tmp_path):
    (tmp_path / "mix.csv").write_text("class,share\nsea_lion,30\ncat,10\n")
    (tmp_path / "mix.json").write_text('{"cat": 0.1, "sea lion": 0.3}')
    for name in ("mix.csv", "mix.json"):
        class_prior = parse_class_prior(read_class_prior(tmp_path / name), ["cat", "sea lion"], name)
        assert class_prior == pytest.approx([0.25, 0.75])


WRONG_FILES = {
    "a wrong name": ("class,share\ncat,1\ndig,1\n", "'dig' is not one of the classes; did you mean dog"),
    "a missing class": ("class,share\ncat,1\n", "has no share for 'dog'; every class needs one"),
    "a negative share": ("class,share\ncat,1\ndog,-1\n", "the share of 'dog' is '-1'; it must be a number, 0 or more"),
    "no number": ("class,share\ncat,1\ndog,many\n", "the share of 'dog' is 'many'"),
    "a missing number": ("class,share\ncat,1\ndog\n", "the share of 'dog' is None"),
    "not finite": ("class,share\ncat,1\ndog,inf\n", "the share of 'dog' is 'inf'"),
    "all zero": ("class,share\ncat,0\ndog,0\n", "all shares are 0"),
    "twice": ("class,share\ncat,1\ncat,1\ndog,1\n", "it names 'cat' twice"),
    "no columns": ("cat,1\ndog,1\n", "its first line must be class,share"),
    "nothing": ("", "its first line must be class,share"),
}
WRONG_JSON = {
    "NaN": ('{"cat": NaN, "dog": 1}', "the share of 'cat' is nan"),
    "a list": ("[1, 2]", "write it as"),
    "a number": ("3", "write it as"),
    "no JSON": ('{"cat"', "cannot be read as a class prior"),
    "twice": ('{"cat": 1, "cat": 2, "dog": 1}', "it names 'cat' twice"),
    "true": ('{"cat": true, "dog": 1}', "the share of 'cat' is True"),
    "a list for a number": ('{"cat": [1], "dog": 1}', r"the share of 'cat' is \[1\]"),
    "huge": ('{"cat": 1' + 400 * "0" + ', "dog": 1}', "the share of 'cat' is 1000"),
}


@pytest.mark.parametrize(
    ("ending", "text", "message"),
    [("csv", *case) for case in WRONG_FILES.values()] + [("json", *case) for case in WRONG_JSON.values()],
)
def test_a_wrong_file_is_one_clear_line(tmp_path, ending, text, message):
    file = tmp_path / f"mix.{ending}"
    file.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        parse_class_prior(read_class_prior(file), ["cat", "dog"], str(file))
    assert str(caught.value).startswith(str(file)) and "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("prototypes", [True, False])
def test_the_prior_in_onnx_can_be_set(north, tmp_path, prototypes):
    """A run of skewed sites, whose class prior is not uniform, with and without prototypes."""
    import onnxruntime

    model = replace(north.prior.model, prototypes=LOOKS if prototypes else None, text_scale=0.7, feature_scale=0.1)
    predictor = Predictor(north.predictor.model, north.predictor.prompts, Prior(model, north.prior.class_prior))
    classifier = Classifier(predictor, north.recipe)
    file = classifier.export(tmp_path / "classifier", onnx=True) / "classifier.onnx"
    assert "`log_prior`" in (tmp_path / "classifier/README.md").read_text()
    images, _ = digits("test", 0, 7)
    pixels = np.stack([predictor.transform.resize_and_crop(image.convert("RGB")) for image in images])
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    asked = {"pixels": pixels}
    assert [one.name for one in session.get_overridable_initializers()] == ["log_prior"]
    logits, shares = session.run(["logits", "probabilities"], asked)
    assert shares == pytest.approx(classifier.predict_proba(images), abs=1e-5)
    assert logits == pytest.approx(classifier.predict_log_proba(images), abs=1e-3)
    class_prior = np.arange(1.0, 11.0) / 55
    log_prior = np.log(class_prior).astype(np.float32)
    _, shares = session.run(["logits", "probabilities"], asked | {"log_prior": log_prior})
    other = classifier.with_prior(dict(zip(CLASSES, class_prior, strict=True)))
    assert shares == pytest.approx(other.predict_proba(images), abs=1e-5)

"""What a run writes down about its images at each refresh, and how it is found again."""

import json

import numpy as np
import pytest

from fedcopl.classifier import Classifier
from fedcopl.config import RunConfig, override
from fedcopl.data.catalog import load_digits
from fedcopl.errors import DataError, RunFolderError
from fedcopl.review.expert_answers import Answers
from fedcopl.review.images import NOT_TRAINED, open_gallery, with_final_labels
from fedcopl.review.page import _detail
from fedcopl.review.sample_survey import SampleSurvey
from fedcopl.run.build import partition_dataset
from fedcopl.run.checkpoint import load_checkpoint
from fedcopl.run.pseudo_labels import read_images, read_labels, read_last_labels, write_labels
from fedcopl.simulation.simulate import simulate
from local_page.run_folder import CLASSES, log_probs, make_run


def test_the_most_probable_classes_are_stored_in_order(tmp_path):
    log_p = np.log(np.array([[0.1, 0.2, 0.05, 0.25, 0.15, 0.25], [0.5, 0.3, 0.1, 0.05, 0.03, 0.02]]))
    write_labels(tmp_path, 4, {"a": log_p})
    [labels] = read_labels(tmp_path, "a")
    assert labels.round == 4
    assert labels.classes.tolist() == [[3, 5, 1, 4, 0], [0, 1, 2, 3, 4]]  # of equals the lower class
    assert np.exp(labels.log_probability[0]) == pytest.approx([0.25, 0.25, 0.2, 0.15, 0.1])


def test_many_images_are_ranked_as_by_sorting(tmp_path):
    log_p = log_probs(9000, 7)  # more than are looked at together
    write_labels(tmp_path, 0, {"a": log_p})
    [labels] = read_labels(tmp_path, "a")
    assert np.array_equal(labels.classes, np.argsort(-log_p, axis=1, kind="stable")[:, :5])


def test_the_last_labels_have_the_share_of_each_class_and_its_expected_error(tmp_path):
    probabilities = [[0.9, 0.1, 0.0], [0.3, 0.6, 0.1]]
    write_labels(tmp_path, 0, {"a": np.log(np.maximum(probabilities, 1e-30)), "empty": np.zeros((0, 3))}, {"a": 0.5})
    last = read_last_labels(tmp_path)
    assert last["a"].agreement == 0.5
    np.testing.assert_allclose(last["a"].class_share, [0.6, 0.35, 0.05], atol=1e-6)
    np.testing.assert_allclose(last["a"].class_error, [(0.1 + 0.3) / 2, (0.1 + 0.4) / 2, 0.1 / 2], atol=1e-6)
    assert not last["empty"].class_share.any()


def test_fewer_classes_than_are_kept(tmp_path):
    write_labels(tmp_path, 0, {"a": np.array([[0.0, -np.inf]]), "empty": np.zeros((0, 2))})
    [labels] = read_labels(tmp_path, "a")
    assert labels.classes[0, 0] == 0
    assert labels.log_probability.tolist() == [[0.0, -np.inf]]
    assert read_labels(tmp_path, "empty")[0].classes.shape == (0, 2)


def test_an_absent_client_has_no_labels_of_that_round(tmp_path):
    for round, clients in ((0, ["a", "b"]), (5, ["b"]), (10, ["b", "a"])):
        write_labels(tmp_path, round, {name: log_probs(3, 4, seed=len(name) + round) for name in clients})
    assert [labels.round for labels in read_labels(tmp_path, "a")] == [0, 10]
    assert [labels.round for labels in read_labels(tmp_path, "b")] == [0, 5, 10]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    quick = ["labeler=fpl", "per_class=3", "evaluation.every=9", "everywhere=false", "epochs=1", "threads=1"]
    pairs = ["rounds=2", "clients=2", "refresh_every=1", *quick]
    config = RunConfig.from_mapping(override({}, pairs), "test")
    simulate(config, folder)
    return folder, config


def test_the_labels_of_the_finished_classifier_are_shown(run):
    folder, _ = run
    gallery = open_gallery(folder, "client-0")
    final = with_final_labels(gallery, folder)
    assert final.predictions.is_final and final.predictions.origin == "of the finished classifier"
    assert final.predictions.rounds == (0, 1, 2)
    answers = Classifier.load(folder, client="client-0").predict(list(gallery.images))
    assert [final.classes[label] for label in final.predictions.label] == answers.tolist()
    assert np.array_equal(final.predictions.labels[:2], gallery.predictions.labels)
    survey = SampleSurvey(final, Answers(folder, "client-0"))
    assert [when for when, _, _ in _detail(survey, 0, 0, {}).history] == ["1", "2", "end"]
    kept = folder / "labels/final/client-0.safetensors"
    before = kept.stat().st_mtime_ns
    again = with_final_labels(gallery, folder)
    assert kept.stat().st_mtime_ns == before and np.array_equal(again.predictions.top, final.predictions.top)


def test_a_simulation_writes_them_at_each_refresh(run):
    folder, config = run
    classes, clients = read_images(folder)
    digits = load_digits()
    assert classes == digits.classes
    for part, (client, held) in zip(
        partition_dataset(digits, config.data, config.seed).train, clients.items(), strict=True
    ):
        assert held.names == [digits.train.names[place] for place in part]
        assert held.files is None
        assert [labels.round for labels in read_labels(folder, client)] == [0, 1]


def test_stored_labels_are_those_of_the_selection(run):
    folder, _ = run
    for client, state in load_checkpoint(folder).clients.items():
        last = read_labels(folder, client)[-1]
        # this rule chooses among the images predicted as a class
        assert last.classes[state.selection.index, 0].tolist() == state.selection.label.tolist()
        assert last.log_probability[state.selection.index, 0] == pytest.approx(state.confidence, rel=1e-6)


def test_the_gallery_of_a_simulated_client(run):
    folder, config = run
    gallery = open_gallery(folder, "client-1")
    digits = load_digits()
    part = partition_dataset(digits, config.data, config.seed).train[1]
    assert gallery.image(3).tobytes() == digits.train.images[part[3]].tobytes()
    assert gallery.predictions.rounds == (0, 1)
    assert gallery.file(3) is None
    assert gallery.digest(3) != gallery.digest(4)
    state = load_checkpoint(folder).clients["client-1"]
    trained = gallery.predictions.trained_as
    assert sorted(np.flatnonzero(trained != NOT_TRAINED)) == sorted(state.selection.index)


def test_the_gallery_of_files_needs_no_settings(tmp_path):
    log_p = make_run(tmp_path / "run")
    (tmp_path / "run" / "settings.toml").unlink()  # as a site's own folder
    gallery = open_gallery(tmp_path / "run", None)
    assert gallery.client == "site"
    assert gallery.classes == list(CLASSES)
    assert gallery.predictions.label.tolist() == log_p.argmax(axis=1).tolist()
    assert gallery.image(2).size == (16, 12)
    assert gallery.predictions.trained_as is None
    changed = log_probs(12, 4, 0).argmax(axis=1) != log_probs(12, 4, 1).argmax(axis=1)
    assert gallery.predictions.changes.tolist() == changed.astype(int).tolist()


def test_labels_of_another_number_of_images_are_not_mixed_in(tmp_path):
    # somebody added images between a stop and a resume
    make_run(tmp_path / "run")
    write_labels(tmp_path / "run", 0, {"site": log_probs(11, 4)})
    assert open_gallery(tmp_path / "run", None).predictions.rounds == (2,)


def test_errors_are_one_sentence(tmp_path):
    make_run(tmp_path / "run")
    cases = {
        "there is no such folder": (tmp_path / "nowhere", None),
        "has no labels": (tmp_path, None),
        "has no client other; its clients are: site": (tmp_path / "run", "other"),
    }
    for message, (folder, client) in cases.items():
        with pytest.raises(RunFolderError, match=message):
            open_gallery(folder, client)


def test_several_clients_need_a_name(run):
    with pytest.raises(RunFolderError, match=r"has 2 clients; name one with --client \(client-0, client-1\)"):
        open_gallery(run[0], None)


def test_a_client_before_its_first_refresh_and_one_without_images(tmp_path):
    make_run(tmp_path / "run", refreshes=())
    with pytest.raises(RunFolderError, match="has no labels yet"):
        open_gallery(tmp_path / "run", "site")
    file = tmp_path / "run" / "labels" / "images.json"
    file.write_text(json.dumps({"classes": ["a"], "clients": {"site": {"names": [], "files": []}}}))
    with pytest.raises(RunFolderError, match="holds no image"):
        open_gallery(tmp_path / "run", "site")


@pytest.mark.parametrize(
    "damage", ["", "[]", "{", '{"classes": 3, "clients": {}}', '{"classes": [], "clients": {"a": 1}}']
)
def test_a_damaged_list_of_images_is_named(tmp_path, damage):
    make_run(tmp_path / "run")
    (tmp_path / "run" / "labels" / "images.json").write_text(damage)
    with pytest.raises(RunFolderError, match=r"images\.json: is damaged"):
        open_gallery(tmp_path / "run", "site")


def test_a_damaged_file_of_labels_is_named(tmp_path):
    make_run(tmp_path / "run")
    (tmp_path / "run" / "labels" / "round-000002.safetensors").write_bytes(b"nothing")
    with pytest.raises(RunFolderError, match=r"round-000002\.safetensors: is damaged"):
        open_gallery(tmp_path / "run", "site")


def test_labels_that_do_not_fit_the_classes_are_refused(tmp_path):
    make_run(tmp_path / "run")
    write_labels(tmp_path / "run", 2, {"site": log_probs(12, 5)})
    with pytest.raises(RunFolderError, match="do not fit its 4 classes"):
        open_gallery(tmp_path / "run", "site")


def test_images_given_in_memory_cannot_be_opened(tmp_path):
    make_run(tmp_path / "run")
    file = tmp_path / "run" / "labels" / "images.json"
    stored = json.loads(file.read_text())
    stored["clients"]["site"]["files"] = None
    file.write_text(json.dumps(stored))
    (tmp_path / "run" / "settings.toml").write_text(RunConfig(data={"source": "sites"}).to_toml())
    with pytest.raises(DataError, match="given in memory"):
        open_gallery(tmp_path / "run", "site")

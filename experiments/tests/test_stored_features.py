"""Runs on stored features have the logits of the file."""

import numpy as np
import pytest
import torch

from fedcopl.config import RunConfig, as_published
from fedcopl.errors import DataError, ModelError
from fedcopl.run.record import Outcome
from fedcopl.simulation.simulate import simulate
from fedcopl_experiments.grid_plan import missing
from fedcopl_experiments.grid_runner import run_grid
from fedcopl_experiments.run_key import run_key
from fedcopl_experiments.stored_features import load_features, with_unit_texts
from grid_tools import RecordingWatcher, store_of

CLASSES, WIDTH, SCALE = 3, 6, 20.0


def write(path, text_length=0.25, **changes):
    """Write 60 training and 30 test features around three directions, and class embeddings near these directions."""
    rng = np.random.default_rng(5)
    directions = np.eye(WIDTH)[:CLASSES]
    arrays = {"scale": np.array(SCALE)}
    for part, each in (("train", 20), ("test", 10)):
        labels = np.repeat(np.arange(CLASSES), each)
        features = directions[labels] + 0.3 * rng.standard_normal((len(labels), WIDTH))
        arrays |= {part: features / np.linalg.norm(features, axis=1, keepdims=True), f"{part}_y": labels}
    text = directions + 0.5 * rng.standard_normal((CLASSES, WIDTH))
    arrays["text"] = text_length * text / np.linalg.norm(text, axis=1, keepdims=True)
    arrays = {name: value for name, value in (arrays | changes).items() if value is not None}
    np.savez(path, **arrays)
    return arrays


def config_of(path, method):
    settings = {"method": method, "rounds": 1, "train": {"epochs": 1}, "priors": as_published()["priors"]}
    settings |= {"data": {"source": "features", "path": str(path), "clients": 2}, "model": {"backbone": str(path)}}
    return RunConfig.from_mapping(settings, "test")


def run(path, folder, method) -> Outcome:
    dataset, clip = load_features(path)
    return simulate(config_of(path, method), folder, dataset=dataset, clip=clip, workers=1)


def test_texts_get_length_one_and_logits_stay():
    rng = np.random.default_rng(3)
    train, test, texts = rng.standard_normal((4, WIDTH)), rng.standard_normal((2, WIDTH)), rng.random((3, WIDTH)) / 9
    images, unit = with_unit_texts(train, test, texts)
    assert images.shape == (6, WIDTH + 1)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(images, axis=1), 1, atol=1e-6)
    features = np.concatenate([train, test])
    logits = features / np.linalg.norm(features, axis=1)[:, None] @ texts.T
    np.testing.assert_allclose(images @ unit.T, logits, atol=1e-6)
    assert np.all(images.std(axis=0) > 0)  # no coordinate in which all images are equal


def test_texts_of_length_one_are_kept():
    texts = np.eye(WIDTH)[:2]
    images, unit = with_unit_texts(np.eye(WIDTH), np.eye(WIDTH), texts)
    np.testing.assert_array_equal(unit, texts.astype(np.float32))
    assert images.shape == (2 * WIDTH, WIDTH)


@pytest.mark.parametrize("text_length", [0.25, 1.0])
def test_zero_shot_accuracy_is_that_of_the_arrays(tmp_path, text_length):
    arrays = write(tmp_path / "some.npz", text_length)
    correct = (arrays["test"] @ arrays["text"].T).argmax(axis=1) == arrays["test_y"]
    assert 0 < correct.mean() < 1
    outcome = run(tmp_path / "some.npz", tmp_path / "run", "zeroshot")
    assert outcome.zero_shot.weighted == pytest.approx(correct.mean())


@pytest.mark.parametrize("method", ["transclip", "stata", "bca", "fst", "fedclip"])
def test_methods_on_features_run(tmp_path, method):
    write(tmp_path / "some.npz")
    outcome = run(tmp_path / "some.npz", tmp_path / "run", method)
    assert outcome.final.macro is not None
    assert outcome.classes == ("class 0", "class 1", "class 2")


@pytest.mark.parametrize("method", ["fedcopl", "promptfl", "fedotp"])
def test_methods_with_prompts_or_patches_are_refused(tmp_path, method):
    write(tmp_path / "some.npz")
    with pytest.raises(ModelError, match="stored"):
        run(tmp_path / "some.npz", tmp_path / "run", method)


def test_class_names_of_the_file_are_used(tmp_path):
    write(tmp_path / "some.npz", classes=np.array(["cat", "dog", "Mr."]))
    dataset, clip = load_features(tmp_path / "some.npz")
    assert dataset.classes == ("cat", "dog", "Mr.")
    assert clip.sentences(["Mr.", "dog."]).rest.tolist() == [[2], [1]]


def test_a_large_row_number_fits_into_one_pixel(tmp_path):
    many = np.eye(WIDTH)[np.arange(70_000) % WIDTH]
    write(tmp_path / "some.npz", train=many, train_y=np.zeros(70_000, int))
    dataset, clip = load_features(tmp_path / "some.npz")
    cut = np.stack([clip.preprocess(dataset.train.images[row]) for row in (0, 255, 256, 65_537, 69_999)])
    tokens = clip.vision.embed(torch.from_numpy(cut))
    expected = clip.vision.features[[0, 255, 256, 65_537, 69_999]]
    assert (tokens[:, 0] == expected).all()


def test_unusable_files_are_one_line(tmp_path):
    (tmp_path / "text.npz").write_text("no arrays")
    with pytest.raises(DataError, match=r"text\.npz: cannot be read as features"):
        load_features(tmp_path / "text.npz")
    write(tmp_path / "less.npz", scale=None)
    with pytest.raises(DataError, match=r"less\.npz: has no array 'scale'"):
        load_features(tmp_path / "less.npz")
    write(tmp_path / "odd.npz", text=np.eye(4)[:3])
    with pytest.raises(DataError, match=r"odd\.npz: train, test and text have different numbers of features"):
        load_features(tmp_path / "odd.npz")
    write(tmp_path / "long.npz", text_length=2.0)
    with pytest.raises(DataError, match="at most length 1"):
        load_features(tmp_path / "long.npz")


@pytest.mark.slow
def test_a_grid_runs_on_stored_features(tmp_path):
    write(tmp_path / "some.npz")
    config, watcher = config_of(tmp_path / "some.npz", "bca"), RecordingWatcher()
    outcome = run_grid([config], tmp_path / "grid", watcher=watcher)
    assert outcome.done == (run_key(config),), outcome.failed
    alone = run(tmp_path / "some.npz", tmp_path / "alone", "bca")
    stored = store_of(tmp_path / "grid").find(run_key(config)).outcome
    assert stored.final.clients == alone.final.clients != alone.zero_shot.clients


def test_a_plan_names_missing_features_and_needs_no_model(tmp_path):
    write(tmp_path / "some.npz")
    assert list(missing([config_of(tmp_path / "some.npz", "bca")])) == []
    [line] = missing([config_of(tmp_path / "other.npz", "bca")])
    assert line.startswith(f"data: {tmp_path / 'other.npz'}: cannot be read as features")

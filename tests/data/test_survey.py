"""Counting a data set, and drawing it."""

import numpy as np
from PIL import Image

from data.pictures import encoded, load, make_images, noise, put
from fedcopl.data.catalog import load_digits
from fedcopl.data.dataset import Dataset, ImageSet
from fedcopl.data.images import PillowImages
from fedcopl.data.overview import contact_sheet, heat_map, survey


def test_counts_and_broken_images(tmp_path):
    make_images(tmp_path, "train/cat/0.png", "train/cat/1.png", "train/dog/2.png", "test/cat/3.png")
    put(tmp_path, "train/cat/broken.png", b"")
    (tmp_path / "train" / "owl").mkdir()
    progress = []
    found = survey(load("folder", tmp_path), lambda *done: progress.append(done))
    assert found.counts() == {"cat": (2, 1), "dog": (1, 0), "owl": (0, 0)}
    assert found.dataset.skipped == [("train/cat/broken.png", "the file is empty")]
    assert found.notes == ("no training image of owl",)
    assert progress[-1] == (5, 5)


def test_without_labels_there_are_no_counts(tmp_path):
    put(make_images(tmp_path, "a.png", "b.png"), "classes.txt", "cat\ndog")
    assert survey(load("folder", tmp_path)).counts() == {"cat": (None, None), "dog": (None, None)}


def test_copies_and_small_clients_are_noted(tmp_path):
    make_images(
        tmp_path,
        *(f"clients/{name}.png" for name in ("a/train/cat/0", "a/train/cat/1", "b/train/cat/2", "c/test/cat/3")),
    )
    put(tmp_path, "clients/a/test/cat/leak.png", encoded(noise(0)))
    put(tmp_path, "clients/a/train/cat/copy.png", encoded(noise(1)))
    assert survey(load("folder", tmp_path)).notes == (
        "1 training image is an exact copy of another",
        "1 test image is also a training image",
        "the client b has 1 training image",
        "the client c has no training image",
    )


def test_a_file_that_disappeared_is_unusable(tmp_path):
    dataset = load("folder", make_images(tmp_path, "cat/0.png", "cat/1.png"))
    (tmp_path / "cat" / "1.png").unlink()
    assert survey(dataset).dataset.skipped == [("cat/1.png", "unreadable: No such file or directory")]


def test_the_digits():
    found = survey(load_digits())
    assert sum(train for train, _ in found.counts().values()) == 1198
    assert found.notes == ()


def test_the_contact_sheet_shows_each_class(tmp_path):
    red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (30, 10), "blue")
    images = ImageSet(PillowImages([red, blue, red]), np.array([0, 1, 0]))
    contact_sheet(Dataset("x", ("[$red_$", "a long name " * 5), "{}", images, images), tmp_path / "new" / "sheet.png")
    pixels = np.asarray(Image.open(tmp_path / "new" / "sheet.png").convert("RGB"))
    red_dots, blue_dots = (np.argwhere((pixels == colour).all(axis=2)) for colour in ((255, 0, 0), (0, 0, 255)))
    assert red_dots[:, 0].max() < blue_dots[:, 0].min()  # the first class is above
    assert 1.9 < len(red_dots) / len(blue_dots) < 2.1  # two squares, one square


def test_the_contact_sheet_of_unlabelled_and_unusable_images(tmp_path):
    put(make_images(tmp_path, *(f"{n}.png" for n in range(12))), "classes.txt", "cat")
    put(tmp_path, "broken.png", b"")
    contact_sheet(load("folder", tmp_path), tmp_path / "out" / "sheet.png")
    width, height = Image.open(tmp_path / "out" / "sheet.png").size
    assert width > height > 100  # two rows


def test_the_heat_map_has_a_circle_for_each_client_and_class(tmp_path):
    counts = np.array([[5, 0], [0, 50], [3, 0]])
    heat_map(counts, ["cat", "dog_$"], ["a", "b", "c"], tmp_path / "heat.png")
    heat_map(np.zeros((2, 2), np.int64), ["cat", "dog"], ["a", "b"], tmp_path / "none.png")
    full, empty = (np.asarray(Image.open(tmp_path / name).convert("RGB")) for name in ("heat.png", "none.png"))
    assert (full != 255).sum() > (empty != 255).sum()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heat.png", "none.png"]

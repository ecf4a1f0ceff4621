"""The source `folder`: layouts, order, links and skipped files."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.pictures import encoded, load, make_images, noise, put
from fedcopl.config import Data
from fedcopl.data.partitioning import partition_dataset
from fedcopl.errors import DataError

NATURAL = Data(partition="natural")


def test_train_and_test_by_class(tmp_path):
    make_images(tmp_path, "train/dog/2.png", "train/dog/10.png", "train/tabby_cat/1.png", "test/dog/3.png")
    dataset = load("folder", tmp_path)
    assert dataset.classes == ("dog", "tabby cat")
    assert dataset.template == "a photo of a {}"
    assert dataset.train.names == ["train/dog/10.png", "train/dog/2.png", "train/tabby_cat/1.png"]
    assert dataset.train.labels.tolist() == [0, 0, 1]
    assert dataset.test.labels.tolist() == [0]
    assert dataset.train.images[2].size == (24, 20)
    assert (list(dataset.skipped), dataset.clients) == ([], ())


def test_classes_without_splits_are_all_train(tmp_path):
    dataset = load("folder", make_images(tmp_path, "dog/a.png", "cat/deep/down/b.png"))
    assert (len(dataset.train), len(dataset.test)) == (2, 0)
    assert dataset.train.labels.tolist() == [0, 1]
    assert dataset.classes == ("cat", "dog")


def test_a_flat_folder_has_no_labels(tmp_path):
    put(make_images(tmp_path, "a.png", "b.png"), "classes.txt", "cat\n\n sea_lion \n")
    dataset = load("folder", tmp_path)
    assert dataset.classes == ("cat", "sea lion")
    assert (len(dataset.train), dataset.train.labels, dataset.test.labels) == (2, None, None)


def test_unlabelled_train_images_with_labelled_test_images(tmp_path):
    dataset = load("folder", make_images(tmp_path, "train/a.png", "train/b.png", "test/cat/c.png", "test/dog/d.png"))
    assert dataset.train.labels is None
    assert dataset.test.labels.tolist() == [0, 1]


def test_the_list_of_classes_gives_the_order(tmp_path):
    put(make_images(tmp_path, "cat/a.png", "sea_lion/b.png"), "classes.txt", "sea lion\ncat\nunicorn\n")
    dataset = load("folder", tmp_path)
    assert dataset.classes == ("sea lion", "cat", "unicorn")
    assert dataset.train.labels.tolist() == [1, 0]


def test_a_class_without_images_remains_a_class(tmp_path):
    (make_images(tmp_path, "train/cat/a.png") / "train" / "dog").mkdir()
    assert load("folder", tmp_path).classes == ("cat", "dog")


def test_clients_have_folders(tmp_path):
    names = ["north/train/cat/1.png", "north/test/dog/2.png", "south/train/dog/3.png", "south/train/cat/4.png"]
    dataset = load("folder", make_images(tmp_path, *(f"clients/{name}" for name in names)))
    assert dataset.clients == ("north", "south")
    parts = partition_dataset(dataset, NATURAL, 0)
    assert [part.tolist() for part in parts.train] == [[0], [1, 2]]
    assert [part.tolist() for part in parts.test] == [[0], []]
    assert dataset.train.labels.tolist() == [0, 0, 1]


def test_a_client_may_have_one_image_and_another_none(tmp_path):
    put(make_images(tmp_path, "clients/a/1.png", "clients/a/2.png", "clients/b/3.png"), "classes.txt", "cat")
    (tmp_path / "clients" / "c").mkdir()
    parts = partition_dataset(load("folder", tmp_path), NATURAL, 0)
    assert [len(part) for part in parts.train] == [2, 1]  # a folder without images is not a client


def test_no_natural_partition_without_clients(tmp_path):
    with pytest.raises(DataError, match="does not name the clients"):
        partition_dataset(load("folder", make_images(tmp_path, "cat/a.png")), NATURAL, 0)


def test_skipped_files_are_listed(tmp_path):
    root, elsewhere = tmp_path / "root", make_images(tmp_path / "elsewhere", "x.png")
    make_images(root, "cat/good.png", "stray.png")
    put(root, "cat/notes.doc", "text")
    put(root, "cat/.hidden.png", "ignored")
    put(root, "cat/Thumbs.db", "ignored")
    put(root, "cat/labels.txt", "ignored")
    (root / "cat" / "out.png").symlink_to(elsewhere / "x.png")
    (root / "cat" / "inside.png").symlink_to(root / "cat" / "good.png")
    (root / "cat" / "loop.png").symlink_to(root / "cat" / "loop.png")
    (root / "cat" / "gone.png").symlink_to(root / "nothing.png")
    (root / "cat" / "up").symlink_to(root)
    (root / "dogs").symlink_to(elsewhere)
    os.mkfifo(root / "cat" / "pipe.png")
    dataset = load("folder", root)
    assert dataset.train.names == ["cat/good.png", "cat/inside.png"]
    assert list(dataset.skipped) == [
        ("cat/gone.png", "a broken link"),
        ("cat/loop.png", "a broken link"),
        ("cat/notes.doc", "its extension is not that of an image format"),
        ("cat/out.png", "a link to a file outside the folder"),
        ("cat/pipe.png", "not a file"),
        ("cat/up", "a link to a folder, which is not followed"),
        ("dogs", "a link to a folder, which is not followed"),
        ("stray.png", "is next to the class folders, so its class is unknown"),
    ]


def test_the_configured_folder_may_be_a_link(tmp_path):
    (tmp_path / "link").symlink_to(make_images(tmp_path / "real", "cat/a.png"))
    assert load("folder", tmp_path / "link").train.names == ["cat/a.png"]


def test_any_file_name_is_read(tmp_path):
    long = "x" * 251 + ".png"
    names = ["cat/日本 語'\"\n.PNG", f"cat/{'d' * 200}/{long}", "cat/ e\u0301.png"]
    make_images(tmp_path, *names)
    odd = os.fsdecode(b"cat/\xff\xfe.png")
    (tmp_path / odd).write_bytes(encoded(noise(9)))
    dataset = load("folder", tmp_path)
    assert len(dataset.train) == 4
    assert "cat/\\udcff\\udcfe.png" in dataset.train.names
    assert all(image.size == (24, 20) for image in dataset.train.images)
    "".join(dataset.train.names).encode()  # can be printed and written


ONE, TWO = "b/\u00e9.png", "b/e\u0301.png"  # one letter, encoded as on Linux and as on macOS


@given(st.permutations([ONE, "b/z.png", TWO, "a/10.png", "a/9.png", "B/1.png"]))
def test_the_order_of_files_does_not_matter(tmp_path_factory, names):
    root = tmp_path_factory.mktemp("any")
    for name in names:
        put(root, name, encoded(noise(len(name))))
    dataset = load("folder", root)
    assert dataset.train.names == ["B/1.png", "a/10.png", "a/9.png", "b/z.png", TWO, ONE]
    assert dataset.classes == ("B", "a", "b")


MISTAKES = {
    "no path": ([], "", "data.path: data.source=folder needs the folder of the images"),
    "nowhere": ([], "nowhere", "there is no such folder"),
    "nothing": ([], ".", "contains no training images"),
    "only test": (["test/cat/a.png"], ".", "contains no training images"),
    "flat without classes": (["a.png"], ".", "has neither labels nor a list of classes; write classes.txt"),
    "one cleaned name": (["sea_lion/a.png", "sea lion/b.png"], ".", "all become 'sea lion'"),
    "only spaces": (["_/a.png"], ".", "a class has an empty name ('_')"),
}


@pytest.mark.parametrize(("names", "path", "message"), MISTAKES.values(), ids=MISTAKES)
def test_an_unusable_data_set_gives_one_clear_error(tmp_path, monkeypatch, names, path, message):
    make_images(tmp_path, *names)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as error:
        load("folder", path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dog\n", "the class 'cat' is not in the list of classes"),
        ("\n \n", "contains no class names"),
        ("cat\ndog\ncat\n", r"classes\.txt: lists the class 'cat' 2 times; keep one of them"),
        (b"\xff\xfe\x00", "cannot be read as a list of class names"),
    ],
)
def test_a_wrong_list_of_classes(tmp_path, content, message):
    put(make_images(tmp_path, "cat/a.png"), "classes.txt", content)
    with pytest.raises(DataError, match=message):
        load("folder", tmp_path)


def test_the_list_of_classes_may_be_in_another_folder(tmp_path):
    make_images(tmp_path / "images", "a.png")
    listed = put(tmp_path, "names.txt", "cat\ndog\n")
    assert load("folder", tmp_path / "images", classes_file=str(listed)).classes == ("cat", "dog")
    with pytest.raises(DataError, match="there is no such list of classes"):
        load("folder", tmp_path / "images", classes_file=str(tmp_path / "none.txt"))


def test_nothing_is_written_into_the_folder(tmp_path):
    make_images(tmp_path, "train/cat/a.png", "test/cat/b.png")
    before = snapshot(tmp_path)
    dataset = load("folder", tmp_path)
    assert [np.asarray(image).shape for image in dataset.train.images] == [(20, 24, 3)]
    assert snapshot(tmp_path) == before


def snapshot(root: Path) -> list:
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*"))


def test_flat_images_next_to_an_unlisted_folder_are_used(tmp_path):
    put(
        make_images(tmp_path, "train/0.png", "train/1.png", "train/old/2.png", "tests/cat/3.png"),
        "classes.txt",
        "cat\ndog",
    )
    dataset = load("folder", tmp_path)
    assert dataset.train.names == ["train/0.png", "train/1.png"]
    assert dataset.train.labels is None
    assert dataset.skipped == [
        ("tests/", "a folder next to train/ and test/, which is not read; was it meant as test/?"),
        ("train/old/2.png", "in a subfolder not named after a class; the images next to old/ are used"),
    ]

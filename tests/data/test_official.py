"""DTD, RESISC45, CUB-200-2011 and UCF101 as their publishers lay them out, in small."""

import json
from dataclasses import replace
from unittest.mock import patch

import pytest

from data.pictures import load, make_images, put
from fedcopl.config import Data
from fedcopl.data.official import _LAYOUTS, read_dataset_with_lists
from fedcopl.errors import DataError


def read(source, path, *sizes):
    """Read a data set that is complete with these numbers of classes, train and test images."""
    small = replace(_LAYOUTS[source], sizes=sizes or _LAYOUTS[source].sizes)
    with patch.dict(_LAYOUTS, {source: small}):
        return read_dataset_with_lists(Data(source=source, path=str(path)))


def make_dtd(root):
    lists = {
        "train1": ["banded/banded_0002.jpg", "zigzagged/zigzagged_0001.jpg"],
        "val1": ["banded/banded_0005.jpg", "zigzagged/zigzagged_0003.jpg"],
        "test1": ["banded/banded_0004.jpg", "zigzagged/zigzagged_0002.jpg"],
        "train2": ["banded/banded_0004.jpg"],
    }
    for name, lines in lists.items():
        put(root, f"dtd/labels/{name}.txt", "\n".join(lines) + "\n")
        make_images(root, *(f"dtd/images/{line}" for line in lines))
    return root


def test_dtd_takes_train_and_val_of_split_1(tmp_path):
    make_dtd(tmp_path)
    for path in (tmp_path, tmp_path / "dtd"):
        dataset = read("dtd", path, 2, 4, 2)
        assert dataset.classes == ("banded", "zigzagged")
        assert dataset.template == "a photo of a {}"
        assert dataset.train.names[:2] == ["banded/banded_0002.jpg", "banded/banded_0005.jpg"]
        assert dataset.train.labels.tolist() == [0, 0, 1, 1]
        assert dataset.test.labels.tolist() == [0, 1]
        assert dataset.test.images[1].size == (24, 20)


def test_the_published_sizes_are_required(tmp_path):
    with pytest.raises(DataError) as error:
        load("dtd", make_dtd(tmp_path))
    assert "dtd has 3,760 train and 1,880 test images in 47 classes" in str(error.value)
    assert "found 4 train and 2 test images in 2 classes. For a part of it use data.source=folder" in str(error.value)


def test_missing_images_are_counted_and_the_first_is_named(tmp_path):
    make_dtd(tmp_path)
    for name in ("banded/banded_0005.jpg", "banded/banded_0004.jpg"):
        (tmp_path / "dtd" / "images" / name).unlink()
    with pytest.raises(DataError, match=r"2 of 6 images are missing, the first: .*banded_0005\.jpg"):
        read("dtd", tmp_path, 2, 4, 2)


def test_a_missing_list_is_an_error(tmp_path):
    (make_dtd(tmp_path) / "dtd" / "labels" / "val1.txt").unlink()
    with pytest.raises(DataError, match=r"val1\.txt: cannot be read"):
        read("dtd", tmp_path, 2, 4, 2)


@pytest.mark.parametrize("source", ["dtd", "resisc45", "cub200", "ucf101"])
def test_a_folder_without_the_data_set_is_an_error(tmp_path, source):
    with pytest.raises(DataError, match=f"is not the folder of {source}: there is no "):
        load(source, tmp_path)


CLASSES = ("airplane", "tennis_court")


def make_resisc45(root, per_class=10):
    return make_images(
        root, *(f"{name}/{name}_{number:03}.jpg" for name in CLASSES for number in range(1, per_class + 1))
    )


def test_resisc45_without_lists_gives_a_fifth_of_each_class(tmp_path):
    dataset = read("resisc45", make_resisc45(tmp_path), 2, 4, 16)
    assert dataset.classes == ("airplane", "tennis court")
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    again = read("resisc45", make_resisc45(tmp_path / "NWPU-RESISC45"), 2, 4, 16)
    assert again.train.names == dataset.train.names
    # the smallest of: printf airplane/airplane_001.jpg | b2sum -l 64, and so on
    assert dataset.train.names == [
        "airplane/airplane_004.jpg",
        "airplane/airplane_008.jpg",
        "tennis_court/tennis_court_006.jpg",
        "tennis_court/tennis_court_010.jpg",
    ]


def test_resisc45_with_the_lists_of_elevater(tmp_path):
    make_resisc45(tmp_path, 3)
    for number, split in enumerate(("train", "val", "test"), start=1):
        images = [{"id": number, "file_name": f"{split}.zip@{name}/{name}_{number:03}.jpg"} for name in CLASSES]
        put(tmp_path, f"{split}.json", json.dumps({"images": images, "categories": [], "annotations": []}))
    dataset = read("resisc45", tmp_path, 2, 4, 2)
    assert dataset.test.names == ["airplane/airplane_003.jpg", "tennis_court/tennis_court_003.jpg"]


def test_resisc45_with_plain_lists(tmp_path):
    make_resisc45(tmp_path, 2)
    put(tmp_path, "train.txt", "airplane_001.jpg\ntennis_court/tennis_court_001.jpg 1\n")
    put(tmp_path, "test.txt", "airplane_002.jpg\ntennis_court_002.jpg\n")
    dataset = read("resisc45", tmp_path, 2, 2, 2)
    assert dataset.train.names == ["airplane/airplane_001.jpg", "tennis_court/tennis_court_001.jpg"]
    assert dataset.train.labels.tolist() == [0, 1]


def test_a_damaged_list_of_resisc45_is_an_error(tmp_path):
    put(make_resisc45(tmp_path, 2), "train.json", "[1]")
    with pytest.raises(DataError, match=r"train\.json: is not a list of images"):
        read("resisc45", tmp_path, 2, 2, 2)


def make_cub200(root):
    images = [
        "001.Black_footed_Albatross/Black_Footed_Albatross_0001.jpg",
        "001.Black_footed_Albatross/Black_Footed_Albatross_0002.jpg",
        "002.Laysan_Albatross/Laysan_Albatross_0001.jpg",
    ]
    make_images(root, *(f"CUB_200_2011/images/{name}" for name in images))
    put(root, "CUB_200_2011/images.txt", "".join(f"{place} {name}\n" for place, name in enumerate(images, start=1)))
    put(root, "CUB_200_2011/classes.txt", "1 001.Black_footed_Albatross\n2 002.Laysan_Albatross\n")
    put(root, "CUB_200_2011/image_class_labels.txt", "1 1\n2 1\n3 2\n")
    put(root, "CUB_200_2011/train_test_split.txt", "1 1\n2 0\n3 1\n")
    return root


def test_cub200(tmp_path):
    dataset = read("cub200", make_cub200(tmp_path), 2, 2, 1)
    assert dataset.classes == ("Black footed Albatross", "Laysan Albatross")
    assert dataset.train.labels.tolist() == [0, 1]
    assert dataset.test.names == ["001.Black_footed_Albatross/Black_Footed_Albatross_0002.jpg"]


def test_contradicting_lists_of_cub200_are_an_error(tmp_path):
    put(make_cub200(tmp_path), "CUB_200_2011/train_test_split.txt", "1 1\n2 0\n")
    with pytest.raises(DataError, match=r"image 3 of images\.txt is not in the other lists"):
        read("cub200", tmp_path, 2, 2, 1)


def make_ucf101(root):
    rows = {
        "train": [["Apply_Eye_Makeup/v_ApplyEyeMakeup_g08_c01.jpg", 0, "Apply_Eye_Makeup"]],
        "val": [["Yo_Yo/v_YoYo_g09_c01.jpg", 1, "Yo_Yo"]],
        "test": [["Yo_Yo/v_YoYo_g01_c01.jpg", 1, "Yo_Yo"]],
    }
    put(root, "split_zhou_UCF101.json", json.dumps(rows))
    return make_images(root, *(f"UCF-101-midframes/{row[0]}" for split in rows.values() for row in split))


def test_ucf101_takes_train_and_test_of_coop(tmp_path):
    dataset = read("ucf101", make_ucf101(tmp_path), 2, 1, 1)
    assert dataset.classes == ("Apply Eye Makeup", "Yo Yo")
    assert dataset.train.labels.tolist() == [0]
    assert dataset.test.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("action", "name"),
    [("BasketballDunk", "Basketball_Dunk"), ("YoYo", "Yo_Yo"), ("Archery", "Archery"), ("archery", "archery")],
)
def test_ucf101_names_are_split_as_coop_does(tmp_path, action, name):
    put(tmp_path, "split_zhou_UCF101.json", json.dumps({"train": [["a/b.jpg", 0, action]], "test": []}))
    make_images(tmp_path, "UCF-101-midframes/a/b.jpg")
    assert read("ucf101", tmp_path, 1, 1, 0).classes == (name.replace("_", " "),)


@pytest.mark.parametrize("text", ["{}", "[]", '{"train": [[1]], "test": []}', "no json"])
def test_a_damaged_split_of_ucf101_is_an_error(tmp_path, text):
    put(make_ucf101(tmp_path), "split_zhou_UCF101.json", text)
    with pytest.raises(DataError, match=r"split_zhou_UCF101\.json: "):
        read("ucf101", tmp_path, 2, 1, 1)

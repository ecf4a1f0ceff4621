"""The source `huggingface`, with a stand-in for the package: it is large, and optional."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from data.pictures import TRANSFORM, decoded, encoded, load, noise, put
from fedcopl.data.cache import PixelCache
from fedcopl.errors import DataError


class Image:
    def __init__(self, decode=True):
        self.decode = decode


class ClassLabel:
    def __init__(self, names):
        self.names = names


class Table:
    """As much of datasets.Dataset as we use."""

    def __init__(self, columns, features):
        self.columns, self.features = columns, features

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, place):
        if isinstance(place, slice):
            return {name: values[place] for name, values in self.columns.items()}
        return {name: values[place] for name, values in self.columns.items()}

    def select(self, places):
        return Table({name: [values[i] for i in places] for name, values in self.columns.items()}, self.features)

    def select_columns(self, names):
        return Table({name: self.columns[name] for name in names}, self.features)

    def cast_column(self, name, feature):
        assert not feature.decode
        return self


def table(folder, seeds, labels, **more_features):
    path = put(folder, "outside.png", encoded(noise(seeds[0])))
    cells = [{"bytes": encoded(noise(seed)), "path": None} for seed in seeds]
    cells[0] = {"bytes": None, "path": str(path)}
    features = {"img": Image(), "label": ClassLabel(["cat", "sea_lion"]), **more_features}
    return Table({"img": cells, "label": labels}, features)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A replacement for the package whose hub contains the data sets of the test."""
    shelf = {}
    package = SimpleNamespace(
        Image=Image, ClassLabel=ClassLabel, load_dataset=shelf.__getitem__, load_from_disk=shelf.__getitem__
    )
    monkeypatch.setitem(sys.modules, "datasets", package)
    return shelf


def test_splits_labels_and_classes(hub, tmp_path):
    hub["some/where"] = {"train": table(tmp_path, [0, 1, 2], [0, 1, 1]), "test": table(tmp_path, [3], [-1])}
    dataset = load("huggingface", "some/where")
    assert dataset.classes == ("cat", "sea lion")
    assert dataset.train.labels.tolist() == [0, 1, 1]
    assert dataset.test.labels is None  # the hub's mark for hidden labels
    assert dataset.train.images[1].tobytes() == noise(1).tobytes()


def test_tables_use_the_cache(hub, tmp_path):
    broken = table(tmp_path, [0, 1, 2, 3], [0, 1, 1, 0])
    broken.columns["img"][2] = {"bytes": b"?", "path": None}
    broken.columns["img"][3] = {"bytes": None, "path": str(tmp_path / "gone.png")}
    hub[str(tmp_path)] = broken
    images = load("huggingface", tmp_path).train
    for _ in range(2):
        pixels, bad, _ = PixelCache(tmp_path / "cache").pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)
        assert list(bad) == [2, 3]
        assert np.array_equal(pixels, decoded(images.without([2, 3])))


def test_a_single_table_is_the_split_train(hub, tmp_path):
    hub[str(tmp_path)] = table(tmp_path, [0, 1], [0, 1])
    dataset = load("huggingface", tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.test.labels) == (2, 0, None)


def test_one_of_several_label_columns_must_be_named(hub, tmp_path):
    hub["x"] = table(tmp_path, [0], [1], fine=ClassLabel(["a"]))
    with pytest.raises(
        DataError, match=r"several columns of ClassLabel \(label, fine\); name one in data.label_column"
    ):
        load("huggingface", "x")
    assert load("huggingface", "x", label_column="label").classes == ("cat", "sea lion")
    with pytest.raises(DataError, match="has no column none of ClassLabel"):
        load("huggingface", "x", label_column="none")


def test_mistakes_are_one_line(hub, tmp_path):
    hub["x"] = {"validation": table(tmp_path, [0], [1])}
    with pytest.raises(DataError, match=r"x: has no split train \(its splits: validation\)"):
        load("huggingface", "x")
    with pytest.raises(DataError, match="y: cannot be loaded: 'y'"):
        load("huggingface", "y")
    with pytest.raises(
        DataError, match=r"data\.source=huggingface needs a folder of save_to_disk, or a name on the hub"
    ):
        load("huggingface", "")


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs: pip install 'fedcopl\[datasets\]'"):
        load("huggingface", "x")

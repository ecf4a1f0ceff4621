"""The source `manifest`: a table of images."""

import sys

import pyarrow
import pytest
from pyarrow import parquet

from data.pictures import encoded, load, make_images, noise, put
from fedcopl.config import Data
from fedcopl.data.partitioning import partition_dataset
from fedcopl.errors import DataError

TABLE = """path,label,split,client,id
b.png,dog,train,south,1
a.png,tabby_cat,,north,2
sub/c.png,dog,test,north,3
"""


@pytest.fixture
def folder(tmp_path):
    return make_images(tmp_path, "a.png", "b.png", "sub/c.png")


def check(dataset):
    assert dataset.classes == ("dog", "tabby cat")
    assert dataset.train.names == ["a.png", "b.png"]
    assert dataset.train.labels.tolist() == [1, 0]
    assert dataset.test.names == ["sub/c.png"]
    assert dataset.clients == ("north", "south")
    parts = partition_dataset(dataset, Data(partition="natural"), 0)
    assert [part.tolist() for part in parts.train] == [[0], [1]]
    assert [part.tolist() for part in parts.test] == [[0], []]
    assert dataset.train.images[0].tobytes() == noise(0).tobytes()


def test_csv(folder):
    check(load("manifest", put(folder, "table.csv", TABLE)))


def test_csv_with_a_byte_order_mark_and_windows_line_ends_is_read(folder):
    check(load("manifest", put(folder, "table.csv", "\ufeff" + TABLE.replace("\n", "\r\n"))))


def test_the_order_of_rows_does_not_matter(folder):
    head, *rows = TABLE.splitlines()
    check(load("manifest", put(folder, "table.csv", "\n".join([head, *reversed(rows)]))))


def test_parquet(folder):
    columns = {
        "path": ["b.png", "a.png", "sub/c.png"],
        "label": ["dog", "tabby_cat", "dog"],
        "split": ["train", None, "test"],
        "client": ["south", "north", "north"],
        "score": [0.1, 0.2, 0.3],
    }
    parquet.write_table(pyarrow.table(columns), folder / "table.parquet")
    check(load("manifest", folder / "table.parquet"))


def test_parquet_without_pyarrow(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs pyarrow: pip install 'fedcopl\[parquet\]'"):
        load("manifest", put(folder, "table.parquet", b"PAR1"))


def test_paths_alone_with_a_list_of_classes(folder):
    put(folder, "classes.txt", "cat\ndog\n")
    dataset = load("manifest", put(folder, "table.csv", "path\na.png\nb.png\n"))
    assert (dataset.classes, dataset.train.labels, dataset.clients) == (("cat", "dog"), None, ())


def test_paths_may_lead_out_of_the_folder_of_the_manifest(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    table = f"path,label\n{folder}/a.png,cat\n../{folder.name}/b.png,cat\n"
    assert len(load("manifest", put(elsewhere, "table.csv", table)).train) >= 1


def test_missing_files_are_skipped_and_listed(folder):
    dataset = load("manifest", put(folder, "table.csv", "path,label\na.png,cat\nnone.png,cat\nsub,cat\n"))
    assert dataset.train.names == ["a.png"]
    assert list(dataset.skipped) == [("none.png", "there is no such file"), ("sub", "there is no such file")]


MISTAKES = {
    "no column path": ("file,label\na.png,cat\n", "has no column path (its columns: file, label)"),
    "nothing": ("", "has no column path (its columns: none)"),
    "misspelt": ("path,lable\na.png,cat\n", "unknown column 'lable'; did you mean label?"),
    "capital": ("Path,label\na.png,cat\n", "unknown column 'Path'; did you mean path?"),
    "no path": ("path,label\n,cat\n", "row 2: has no path"),
    "twice": ("path,label\na.png,cat\na.png,dog\n", "row 3: a.png is listed twice, first in row 2"),
    "split": ("path,label,split\na.png,cat,val\n", "row 2: the split is 'val'; it should be train or test"),
    "half labelled": ("path,label\na.png,cat\nb.png,\n", "has no label for 1 of 2 train images, the first: b.png"),
    "half owned": (
        "path,label,client\na.png,cat,north\nb.png,cat,\n",
        "1 image has no client, the first: b.png; name the client of every image or of none",
    ),
    "unlabelled": ("path\na.png\n", "has neither labels nor a list of classes"),
    "all gone": ("path,label\nx.png,cat\n", "none of its images exists (1 listed), for example x.png"),
    "no text": (b"path\n\xff\xfe\n", "cannot be read as CSV"),
}


@pytest.mark.parametrize(("table", "message"), MISTAKES.values(), ids=MISTAKES)
def test_an_unusable_data_set_gives_one_clear_error(folder, table, message):
    with pytest.raises(DataError) as error:
        load("manifest", put(folder, "table.csv", table))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_parquet(folder):
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        load("manifest", put(folder, "table.parquet", encoded(noise(0))))


@pytest.mark.parametrize("path", ["", "none.csv"])
def test_no_such_manifest(path):
    with pytest.raises(DataError, match="there is no such manifest"):
        load("manifest", path)

"""Reading expert labels; labels of missing or changed images are ignored."""

import pytest

from fedcopl.data.catalog import load_digits
from fedcopl.data.dataset import ImageSet
from fedcopl.data.images import FilePage, ImageList, digest
from fedcopl.data.label_files import corrections_of, read_corrections
from fedcopl.errors import DataError

DIGITS = load_digits()
HEAD = "file,pseudo label,label,when,digest\n"


def read(tmp_path, text):
    file = tmp_path / "answers.csv"
    file.write_text(text)
    return read_corrections(file, DIGITS.train, DIGITS.classes)


def test_corrections_are_rows_and_class_numbers(tmp_path):
    image = DIGITS.train.images[3]
    same = digest(image.mode, image.tobytes())
    lines = f"3,two,nine,x,{same}\n4,two,nine,x,abc\n5,two,(cannot tell),x,\n9,two,three,x,\nnowhere,two,three,x,\n"
    assert read(tmp_path, HEAD + lines) == {3: 9, 9: 3}  # 4 changed since, 5 has no class, "nowhere" is not there


def test_the_label_of_an_unreadable_image_is_ignored(tmp_path):
    images = ImageSet(ImageList([FilePage(tmp_path / "gone.png")]), names=["gone.png"])
    file = tmp_path / "answers.csv"
    file.write_text(HEAD + "gone.png,two,nine,x,abc\n")
    assert read_corrections(file, images, ("two", "nine")) == {}


def test_each_client_gets_the_labels_of_its_images():
    corrections = corrections_of([9, 1, 3], {3: 9, 9: 3, 100: 1})
    assert (corrections.index.tolist(), corrections.label.tolist()) == ([0, 2], [3, 9])
    assert len(corrections_of([1, 2], {3: 9}).index) == 0


def test_a_file_without_expert_labels_is_an_error(tmp_path):
    with pytest.raises(DataError, match="has no columns file and label"):
        read(tmp_path, "a,b\n1,2\n")
    with pytest.raises(DataError, match="cannot be read as a table of expert labels"):
        read_corrections(tmp_path / "none.csv", DIGITS.train, DIGITS.classes)

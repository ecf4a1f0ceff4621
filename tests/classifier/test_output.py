"""Rows of predictions: safe for any name, and the same bytes however often writing is interrupted."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcopl.classifier import prediction_file as output
from fedcopl.classifier.predict import NamedImage, Prediction, pictures_at
from fedcopl.classifier.prediction_file import _FORMULA, _PredictionFile, choose_format
from fedcopl.data.decoding import DecodeOptions
from fedcopl.errors import ConfigError, DataError, RunFolderError

BATCH = 4
OPTIONS = {"classifier": "x", "top": 1}
texts = st.text(st.characters(), max_size=12)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(output, "ENCODE_BATCH", BATCH)


def csv_rows(top):
    return choose_format("-", "csv", top)


def json_rows(top):
    return choose_format("-", "jsonl", top)


def prediction(name, label="cat"):
    return Prediction(name, label, 0.75, False, None, ((label, 0.75),))


def uninterrupted_file(rows, names):
    return (rows.header + "".join(rows.line(prediction(name)) for name in names)).encode()


def write_predictions(path, rows, names, stop_after=None):
    """What `label_images` does, stopped after some batches."""
    file = _PredictionFile(path, rows, OPTIONS)
    pictures = iter([NamedImage(name, path) for name in names])
    with file.locked():
        file.open(overwrite=False)
        file.skip_written(pictures)
        left = list(pictures)
        for number, start in enumerate(range(0, len(left), BATCH)):
            if stop_after is not None and number >= stop_after:
                return
            file.append("".join(file.row_format.line(prediction(named.name)) for named in left[start : start + BATCH]))
        file.finish()


@given(st.lists(texts, max_size=14), st.integers(0, 3), st.integers(0, 10_000), st.sampled_from([csv_rows, json_rows]))
def test_resuming_after_any_interruption_changes_no_byte(tmp_path_factory, names, batches, cut, kind):
    path, rows = tmp_path_factory.mktemp("out") / "out", kind(1)
    write_predictions(path, rows, names, stop_after=batches)
    part = path.with_name("out.part")
    if part.exists():  # as a process that is killed while it writes leaves it
        content = part.read_bytes()
        part.write_bytes(content[: cut % (len(content) + 1)])
    if not path.exists():
        write_predictions(path, rows, names)
    assert path.read_bytes() == uninterrupted_file(rows, names)
    assert [file.name for file in path.parent.iterdir()] == ["out"]


@given(texts, texts)
def test_a_row_is_one_line_and_no_formula(name, label):
    line = csv_rows(1).line(prediction(name, label))
    assert line.splitlines() == [line[:-1]]
    assert not any(ord(sign) < 32 or ord(sign) == 127 for sign in line[:-1])
    [cells] = csv.reader(io.StringIO(line))
    assert not [cell for cell in cells if cell[:1] in _FORMULA and cell]
    assert csv_rows(1).image_name(line) == csv_rows(1).written_name(name)


@given(texts, texts)
def test_json_keeps_names_unchanged(name, label):
    line = json_rows(1).line(prediction(name, label))
    assert line.count("\n") == 1
    assert json.loads(line)["image"] == name and json.loads(line)["top"][0]["label"] == label


def test_names_by_hand():
    rows = csv_rows(0)
    written = {
        name: rows.written_name(name) for name in ("=cmd.png", "a\nb.png", "\x1b[2J.png", "\u202egpj.exe", "\udcff")
    }
    assert list(written.values()) == ["./=cmd.png", "a\\nb.png", "\\x1b[2J.png", "\\u202egpj.exe", "\\udcff"]
    assert rows.line(prediction("x.png", "=1+1")) == "x.png,'=1+1,0.750000,no,\n"


def test_columns():
    assert csv_rows(2).header == "image,label,probability,abstain,problem,top_1,probability_1,top_2,probability_2\n"
    broken = Prediction("x.png", None, None, None, "damaged", ())
    assert csv_rows(1).line(broken) == "x.png,,,,damaged,,\n"


def test_a_part_of_other_images_or_options_is_refused(tmp_path):
    path, names = tmp_path / "out.csv", [str(n) for n in range(10)]
    write_predictions(path, csv_rows(1), names, stop_after=1)
    with pytest.raises(RunFolderError, match="started with another classifier"):
        _PredictionFile(path, csv_rows(1), {**OPTIONS, "classifier": "y"}).open(overwrite=False)
    with pytest.raises(RunFolderError, match="row 2 is for '1', but now it would be 'new'"):
        write_predictions(path, csv_rows(1), ["0", "new", "1", "2", "3"])
    with pytest.raises(RunFolderError, match="this image is missing now"):
        write_predictions(path, csv_rows(1), ["0", "1"])


def test_an_existing_file_is_kept_until_it_is_replaced(tmp_path):
    path = tmp_path / "out.csv"
    write_predictions(path, csv_rows(1), ["a"])
    with pytest.raises(RunFolderError, match="--overwrite"):
        write_predictions(path, csv_rows(1), ["b"])
    before = path.read_bytes()
    _PredictionFile(path, csv_rows(1), OPTIONS).open(overwrite=True)
    assert path.read_bytes() == before


def test_a_second_process_cannot_write_the_same_file(tmp_path):
    file = _PredictionFile(tmp_path / "out.csv", csv_rows(1), OPTIONS)
    with file.locked(), pytest.raises(RunFolderError, match="another process"), file.locked():
        pass


@pytest.mark.parametrize("path", [".", "/"])
def test_a_folder_without_a_name_is_no_output_file(path):
    file = _PredictionFile(Path(path), csv_rows(1), OPTIONS)
    with pytest.raises(RunFolderError, match="is a folder; name a file to write"), file.locked():
        pass


def test_the_format_follows_the_extension():
    assert choose_format("x.CSV", None, 1).header == choose_format("-", "csv", 1).header != ""
    assert choose_format("x.jsonl", None, 1).line(prediction("a")).startswith("{")
    assert choose_format("-", "jsonl", 1).line(prediction("a")).startswith("{")
    with pytest.raises(ConfigError, match=r"should end in \.csv or \.jsonl"):
        choose_format("x.txt", None, 1)


def test_paths_without_any_image_are_an_error(tmp_path):
    (tmp_path / "notes.doc").write_text("no image")
    with pytest.raises(DataError, match="contains no image; name image files, or folders with images"):
        pictures_at([str(tmp_path)], [], DecodeOptions())
    with pytest.raises(DataError, match="there is no such file or folder"):
        pictures_at([str(tmp_path / "nowhere")], [], DecodeOptions())

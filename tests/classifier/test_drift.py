"""Real digits against themselves, against another class prior, and against their negatives."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from classifier.small import small_run
from fedcopl.classifier.drift import _DriftReport, _StreamChange, compare_streams
from fedcopl.classifier.predict import Classifier, NamedImage
from fedcopl.cli import app
from fedcopl.errors import DataError
from small_digits import all_digits


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("small") / "run")


@pytest.fixture(scope="module")
def north(run):
    return Classifier.load(run, client="north", device="cpu")


def pictures(rows, change=lambda image: image):
    digits = all_digits().train
    return [NamedImage(str(row), change(np.asarray(digits.images[row]))) for row in rows]


def rows_of(classes, count, start=0):
    labels = all_digits().train.labels
    return [row for row in range(start, len(labels)) if labels[row] in classes][:count]


ALL = range(10)


def changed(report):
    return {one.statistic for one in report.changes if one.is_change}


def test_images_of_the_same_source_have_not_changed(north):
    report = compare_streams(north, pictures(rows_of(ALL, 100, 300)), pictures(rows_of(ALL, 100, 600)))
    assert changed(report) == set()
    assert "no new run is needed" in report.advice


def test_a_changed_class_prior_is_reported_with_its_classes(north):
    report = compare_streams(north, pictures(rows_of(ALL, 100, 300)), pictures(rows_of({1, 2}, 60, 600)))
    assert "class_prior" in changed(report)
    names = [name for name, share in report.class_changes if share > 0]
    assert set(names) & set(np.array(all_digits().classes)[[1, 2]])


def test_changed_images_recommend_continuing_the_run(north):
    negative = pictures(rows_of(ALL, 100, 600), lambda image: 255 - image)
    report = compare_streams(north, pictures(rows_of(ALL, 100, 300)), negative)
    assert changed(report) & {"confidence", "features"}
    assert "continue this run with the recent images" in report.advice


def test_too_few_images_are_refused(north):
    with pytest.raises(DataError, match="recent: 5 images are too few for a significant change; 30 are needed"):
        compare_streams(north, pictures(range(40)), pictures(range(5)))


def test_the_command_prints_the_changes_and_exits_with_1(run, tmp_path):
    for name, change in (("before", np.asarray), ("recent", lambda image: 255 - np.asarray(image))):
        (tmp_path / name).mkdir()
        for row in rows_of(ALL, 40, 300 if name == "before" else 600):
            Image.fromarray(change(all_digits().train.images[row])).save(tmp_path / name / f"{row}.png")
    given = ["drift", str(tmp_path / "recent"), "--before", str(tmp_path / "before"), "-c", str(run)]
    result = CliRunner().invoke(app, [*given, "--client", "north", "--device", "cpu"])
    assert result.exit_code == 1 and "CHANGED" in result.output, result.output
    plain = CliRunner().invoke(app, [*given, "--client", "north", "--device", "cpu", "--json"])
    assert json.loads(plain.output)["advice"].startswith("the images have changed")


def test_a_changed_class_prior_recommends_estimating_it():
    assert "--prior images" in _DriftReport(50, 50, [_StreamChange("class_prior", 0.4, 0.001)], []).advice

"""The answers as files: a table for people, a manifest for the next run."""

import csv
import io

import pytest

from fedcopl.config import Data
from fedcopl.data.catalog import load_dataset
from fedcopl.errors import DataError
from fedcopl.review.expert_answers import Answers, ExpertAnswer, NewAnswer
from fedcopl.review.images import open_gallery
from fedcopl.review.sample_survey import SAMPLE, SampleSurvey, answers_csv, write_manifest
from local_page.run_folder import CLASSES, NASTY, make_run
from review.fake_gallery import FakeGallery


def table(answers):
    return list(csv.reader(io.StringIO(answers_csv(answers))))


def an_answer(image, kind="class", label="cat", pseudo="dog"):
    return ExpertAnswer(1, image, "d1", pseudo, kind, label, False, "2026-01-02T03:04:05+00:00")


def test_the_table():
    rows = table([an_answer("a.png"), an_answer("b.png", "none", None), an_answer("c.png", "unclear", None)])
    assert rows == [
        ["file", "pseudo label", "label", "when", "digest"],
        ["a.png", "dog", "cat", "2026-01-02T03:04:05+00:00", "d1"],
        ["b.png", "dog", "(none of the classes)", "2026-01-02T03:04:05+00:00", "d1"],
        ["c.png", "dog", "(cannot tell)", "2026-01-02T03:04:05+00:00", "d1"],
    ]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_no_cell_is_a_formula(name):
    [_, row] = table([an_answer(name, label=name, pseudo=name)])
    assert row[:3] == [f"'{name}"] * 3


def test_commas_quotes_and_line_breaks_survive():
    name = 'a,"b"\nc'
    assert table([an_answer(name)])[1][0] == name


def survey_of(folder):
    return SampleSurvey(open_gallery(folder, None), Answers(folder, "site"))


def test_a_manifest_is_a_data_set_with_the_sample_as_test_images(tmp_path):
    make_run(tmp_path / "run", NASTY + [f"{n}.png" for n in range(6)])
    survey = survey_of(tmp_path / "run")
    order = survey.numbers(SAMPLE)
    said = dict(zip(order[:4], ("cat", "small dog", None, "cat"), strict=True))
    for number, label in said.items():
        kind = "class" if label else "unclear"
        survey.answers.add(NewAnswer(survey.gallery.names[number], "", "", kind, label, survey.plan_round))
    survey.answers.add(NewAnswer(survey.gallery.names[order[9]], "", "", "class", "horse"))  # not of the sample
    tested, classes = write_manifest(survey, tmp_path / "out" / "labelled.csv")
    assert tested == 3
    data = Data(source="manifest", path=str(tmp_path / "out" / "labelled.csv"), classes_file=str(classes))
    dataset = load_dataset(data)
    assert dataset.classes == CLASSES
    assert dataset.train.labels is None
    assert (len(dataset.train), len(dataset.test)) == (11, 3)
    files = [dataset.test.images.file(number).path.name for number in range(3)]
    labels = {name: CLASSES[label] for name, label in zip(files, dataset.test.labels, strict=True)}
    assert labels == {survey.gallery.names[number]: label for number, label in said.items() if label}
    assert dataset.skipped == []


def test_without_a_sample_there_is_no_manifest(tmp_path):
    make_run(tmp_path / "run")
    with pytest.raises(DataError, match="no image of the random sample has an answer"):
        write_manifest(survey_of(tmp_path / "run"), tmp_path / "m.csv")
    assert not (tmp_path / "m.csv").exists()


def test_images_that_are_no_files_have_no_manifest(tmp_path):
    survey = SampleSurvey(FakeGallery(5), Answers(tmp_path, "site"))
    first = survey.gallery.names[survey.numbers(SAMPLE)[0]]
    survey.answers.add(NewAnswer(first, "", "", "class", "cat", survey.plan_round))
    with pytest.raises(DataError, match="its images are not separate files"):
        write_manifest(survey, tmp_path / "m.csv")


def test_a_file_name_of_invalid_utf_8_is_named_in_the_error(tmp_path):
    make_run(tmp_path / "run", ["a.png", "b\udcff.png"])
    survey = survey_of(tmp_path / "run")
    for number in survey.numbers(SAMPLE):
        survey.answers.add(NewAnswer(survey.gallery.names[number], "", "", "class", "cat", survey.plan_round))
    with pytest.raises(DataError, match="its name is not valid UTF-8"):
        write_manifest(survey, tmp_path / "m.csv")

"""Which answers count, what they say, and in which order images are shown."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from fedcopl.algorithm.accuracy_from_sample import _wilson
from fedcopl.review.expert_answers import Answers, NewAnswer
from fedcopl.review.sample_survey import SAMPLE, SampleSurvey
from review.fake_gallery import FakeGallery


def answer(survey, number, label, *, sampled=True, kind="class"):
    plan = survey.plan_round if sampled else None
    survey.answers.add(NewAnswer(survey.gallery.names[number], "", "", kind, label, plan))


@pytest.fixture
def survey(tmp_path):
    return SampleSurvey(FakeGallery(100), Answers(tmp_path, "site"))


def predicted(survey, number):
    return survey.gallery.classes[survey.gallery.predictions.label[number]]


def test_without_answers_there_is_no_estimate(survey):
    outcome = survey.outcome({})
    assert not outcome.has_estimate
    assert (outcome.answered, outcome.corrected, outcome.images) == (0, 0, 100)
    assert outcome.images_to_review > 0


def test_the_sample_counts_up_to_its_first_gap(survey):
    order = survey.numbers(SAMPLE)
    for number in (*order[:3], *order[4:9]):
        answer(survey, number, predicted(survey, number))
    assert [number for number, _ in survey.sample(survey.answers.current())] == list(order[:3])
    answer(survey, order[3], predicted(survey, order[3]))
    assert [number for number, _ in survey.sample(survey.answers.current())] == list(order[:9])


def test_an_answer_in_another_order_is_not_in_the_estimate(survey):
    order = survey.numbers(SAMPLE)
    answer(survey, order[0], "cat", sampled=False)
    answer(survey, order[1], "cat")
    assert list(survey.sample(survey.answers.current())) == []
    answer(survey, order[0], "cat")  # seen again in the random order, it does
    assert len(list(survey.sample(survey.answers.current()))) == 2


def test_the_estimate_worked_by_hand(tmp_path):
    # every image is predicted to be a cat; four of ten are looked at, three are right, one is a dog
    survey = SampleSurvey(FakeGallery(10, label=[0] * 10), Answers(tmp_path, "site"))
    order = survey.numbers(SAMPLE)
    for number, label in zip(order, ("cat", "cat", "dog", "cat"), strict=False):
        answer(survey, number, label)
    outcome = survey.outcome(survey.answers.current())
    assert outcome.estimate[:3] == pytest.approx((0.75, *_wilson(0.75, 4 * 9 / 6)))
    assert outcome.corrected == 1
    [cats] = outcome.classes
    assert (cats.name, cats.images, cats.estimate.right, cats.estimate.reviewed) == ("cat", 10, 3, 4)


def test_none_of_the_classes_is_wrong_and_unclear_is_left_out(tmp_path):
    survey = SampleSurvey(FakeGallery(10, label=[0] * 10), Answers(tmp_path, "site"))
    order = survey.numbers(SAMPLE)
    answer(survey, order[0], "cat")
    answer(survey, order[1], None, kind="none")
    answer(survey, order[2], None, kind="unclear")
    outcome = survey.outcome(survey.answers.current())
    assert (outcome.estimate.reviewed, outcome.estimate.right, outcome.unclear) == (2, 1, 1)
    assert (outcome.answered, outcome.corrected) == (3, 1)


def test_after_answers_about_all_images_the_accuracy_is_exact(tmp_path):
    survey = SampleSurvey(FakeGallery(8, label=[0, 1] * 4), Answers(tmp_path, "site"))
    for number in survey.numbers(SAMPLE):
        answer(survey, number, "cat")
    outcome = survey.outcome(survey.answers.current())
    assert outcome.estimate[:3] == pytest.approx((0.5, 0.5, 0.5))
    assert outcome.images_to_review == 0


def test_new_labels_keep_the_answers_and_the_random_order(tmp_path):
    before = SampleSurvey(FakeGallery(50, refreshes=1), Answers(tmp_path, "site"))
    order = before.numbers(SAMPLE)
    for number in order[:10]:
        answer(before, number, predicted(before, number))
    assert before.outcome(before.answers.current()).estimate.share == 1
    after = SampleSurvey(FakeGallery(50, refreshes=3), Answers(tmp_path, "site"))  # the run went on for two refreshes
    assert after.plan_round == 0
    assert after.numbers(SAMPLE).tolist() == order.tolist()
    told = after.outcome(after.answers.current()).estimate
    same = [before.gallery.predictions.label[n] == after.gallery.predictions.label[n] for n in order[:10]]
    assert (told.reviewed, told.right) == (10, sum(same))  # the answers are measured against the labels of today
    assert sum(same) < 10


def test_answers_about_missing_images_are_ignored(survey):
    survey.answers.add(NewAnswer("gone.png", "", "dog", "class", "cat"))
    outcome = survey.outcome(survey.answers.current())
    assert (outcome.answered, outcome.corrected) == (1, 0)


def without_answers(gallery):
    return SampleSurvey(gallery, Answers(Path("no-such-folder"), "site"))


def test_the_orders():
    gallery = FakeGallery(40, refreshes=4)
    survey, predictions = without_answers(gallery), gallery.predictions
    doubtful = predictions.confidence[survey.numbers("doubtful")]
    assert (np.diff(doubtful) >= 0).all()
    assert (np.diff(predictions.confidence[survey.numbers("sure")]) <= 0).all()
    changes = predictions.changes[survey.numbers("changed")]
    assert (np.diff(changes) <= 0).all()
    assert changes[0] > changes[-1]
    for order in (SAMPLE, "doubtful", "sure", "changed"):
        assert sorted(survey.numbers(order)) == list(range(40))


@for_all(st.integers(0, 3), st.sampled_from(["doubtful", "sure", "changed"]))
def test_an_order_can_be_restricted_to_a_class(label, order):
    gallery = FakeGallery(40)
    survey, predictions = without_answers(gallery), gallery.predictions
    expected = [n for n in survey.numbers(order) if predictions.label[n] == label]
    assert survey.numbers(order, label).tolist() == expected

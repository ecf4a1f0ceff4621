"""The expert's answers: nothing lost, nothing mixed up, whoever writes at once."""

import sqlite3
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from fedcopl.errors import RunFolderError
from fedcopl.review.expert_answers import Answers, NewAnswer


def given(image, label="cat", **more):
    return NewAnswer(image, f"digest of {image}", "dog", "class", label, **more)


@pytest.fixture
def answers(tmp_path):
    return Answers(tmp_path, "site")


def test_nothing_is_written_before_the_first_answer(answers, tmp_path):
    assert answers.current() == {}
    assert answers.plan_round() is None
    assert not answers.can_undo("a")
    assert list(tmp_path.iterdir()) == []


def test_the_last_answer_about_an_image_holds(answers):
    answers.add(given("1.png", "cat"))
    answers.add(given("2.png", "cat"))
    answers.add(given("1.png", "horse"))
    current = answers.current()
    assert {name: answer.label for name, answer in current.items()} == {"2.png": "cat", "1.png": "horse"}
    assert list(current) == ["2.png", "1.png"]  # in the order they were given
    answer = current["1.png"]
    assert (answer.digest, answer.pseudo, answer.kind, answer.sampled) == ("digest of 1.png", "dog", "class", False)
    assert datetime.fromisoformat(answer.answered).utcoffset().total_seconds() == 0


def test_answers_without_a_class(answers):
    answers.add(NewAnswer("1.png", "", "dog", "none"))
    answers.add(NewAnswer("2.png", "", "dog", "unclear"))
    assert [(a.kind, a.label) for a in answers.current().values()] == [("none", None), ("unclear", None)]


def test_undo_removes_the_last_answer_of_the_same_tab_only(answers):
    answers.add(given("1.png", "cat", tab="a", page="at=1"))
    answers.add(given("1.png", "horse", tab="a", page="at=1"))
    answers.add(given("2.png", tab="b", page="at=2"))
    assert answers.undo("a") == ("1.png", "at=1")
    assert answers.current()["1.png"].label == "cat"  # what was said before holds again
    assert answers.undo("a") == ("1.png", "at=1")
    assert set(answers.current()) == {"2.png"}
    assert answers.undo("a") is None
    assert answers.can_undo("b")
    assert not answers.can_undo("a")


def test_an_undone_answer_stays_in_the_file(answers):
    answers.add(given("1.png", tab="a"))
    answers.undo("a")
    with sqlite3.connect(answers.path) as database:
        assert database.execute("SELECT image, undone IS NOT NULL FROM answer").fetchall() == [("1.png", 1)]


def test_an_answer_of_the_sample_stays_in_it_after_a_correction_in_another_order(answers):
    answers.add(given("1.png", "cat", plan_round=7))
    answers.add(given("1.png", "horse"))
    assert answers.current()["1.png"].sampled
    assert answers.current()["1.png"].label == "horse"


def test_the_order_of_the_sample_is_fixed_by_the_first_answer(answers):
    answers.add(given("1.png"))
    assert answers.plan_round() is None
    answers.add(given("2.png", plan_round=4))
    answers.add(given("3.png", plan_round=9))
    assert answers.plan_round() == 4


def test_markup_in_names_is_escaped(tmp_path):
    names = ["'); DROP TABLE answer; --", "a\nb", "\u202e", "", "Robert\0", "🐕"]
    answers = Answers(tmp_path, "../../etc/passwd")
    for name in names:
        answers.add(given(name, name))
    assert {answer.image: answer.label for answer in answers.current().values()} == {name: name for name in names}
    assert [path.parent for path in tmp_path.rglob("*.sqlite")] == [tmp_path / "review"]


def test_many_threads_at_once(answers):
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda n: answers.add(given(f"{n}.png", tab=f"{n % 4}")), range(80)))
    assert sorted(numbers) == list(range(1, 81))
    assert len(answers.current()) == 80


def test_several_processes_at_once_make_one_file(tmp_path):
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from fedcopl.review.expert_answers import Answers, NewAnswer
        answers = Answers(Path(sys.argv[1]), "site")
        for n in range(20):
            answers.add(NewAnswer(f"{sys.argv[2]}-{n}", "", "dog", "class", "cat"))
        """
    )
    started = [subprocess.Popen([sys.executable, "-c", program, tmp_path, str(number)]) for number in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    assert len(Answers(tmp_path, "site").current()) == 60


def test_a_file_of_another_format_is_refused_and_not_changed(answers):
    answers.path.parent.mkdir()
    answers.path.write_text("these are my notes, not a database")
    reason = r"site\.sqlite: the answers cannot be read or stored: file is not a database"
    with pytest.raises(RunFolderError, match=reason):
        answers.add(given("1.png"))
    assert answers.path.read_text().startswith("these are my notes")


def test_a_file_of_a_later_version_is_refused_and_not_changed(answers):
    answers.add(given("1.png"))
    with sqlite3.connect(answers.path) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(RunFolderError, match="this version of fedcopl"):
        answers.current()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "review").write_text("in the way")
    with pytest.raises(RunFolderError, match="review"):
        Answers(tmp_path, "site").add(given("1.png"))

"""Messages between a grid and its workers are read back unchanged."""

import pytest

from fedcopl.config import RunConfig
from fedcopl_experiments.worker_messages import (
    Crashed,
    Done,
    Failed,
    Progressed,
    RunsElsewhere,
    RunTask,
    message_from_line,
    message_to_line,
    task_from_line,
    task_to_line,
)
from stored_runs import outcome_of

MESSAGES = (
    Progressed(3, 20),
    Done(outcome_of(RunConfig())),
    RunsElsewhere(),
    Failed("photos: there is no such folder"),
    Crashed("ZeroDivisionError: in the middle\nTraceback: of \udcff.py"),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_one_line(message):
    line = message_to_line(message)
    assert (line.count("\n"), line[-1]) == (1, "\n")
    assert line.isascii()
    assert message_from_line(line) == message


def test_a_task_is_one_line():
    task = RunTask(RunConfig(data={"path": "two\nlines"}).model_dump(), "/runs/k1", "0.1.0+abc")
    line = task_to_line(task)
    assert (line.count("\n"), line[-1]) == (1, "\n")
    assert task_from_line(line) == task


def test_incomplete_line_is_a_value_error():
    with pytest.raises(ValueError):
        message_from_line(message_to_line(MESSAGES[1])[:-20])

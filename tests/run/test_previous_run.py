"""Arrays of a previous run, adapted to other classes; whatever does not match is an error of one line."""

import numpy as np
import pytest

from fedcopl.config import RunConfig
from fedcopl.errors import ConfigError, RunFolderError
from fedcopl.run.previous_run import (
    PreviousRun,
    _ClassRows,
    read_previous_run,
    require_previous_run,
    with_reference,
)
from fedcopl.run.record import Outcome


class RowForEachClass:
    """A method with a row for each class in one array, a column in another, and a prompt without classes."""

    class_memory = ("memory",)

    def shapes(self, clip, classes):
        return {"rows": (classes, 2), "columns": (3, classes), "text": (2, 2)}


START = {"rows": np.zeros((3, 2), np.float32), "columns": np.full((3, 3), 7, np.float32)}


def rows(now=("ape", "bee", "cat"), before=("cat", "ape")):
    return _ClassRows(RowForEachClass(), None, before, now, START, "runs/may")


def test_class_rows_follow_class_names():
    # cat was class 0 and is class 2, ape was class 1 and is class 0; bee is new and as everything starts.
    assert rows().convert("rows", np.array([[1, 2], [3, 4]], np.float32)).tolist() == [[3, 4], [0, 0], [1, 2]]
    columns = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    assert rows().convert("columns", columns).tolist() == [[2, 7, 1], [4, 7, 3], [6, 7, 5]]


def test_classes_in_another_order_are_the_same_classes():
    start = {"rows": np.zeros((2, 2), np.float32)}
    turned = _ClassRows(RowForEachClass(), None, ("a", "b"), ("b", "a"), start, "run")
    assert turned.convert("rows", np.array([[1, 2], [3, 4]], np.float32)).tolist() == [[3, 4], [1, 2]]


def test_arrays_without_classes_are_kept_and_memories_dropped():
    arrays = {"text": np.ones((2, 2), np.float32), "memory": np.ones(5, np.float32), "gate": np.ones(1, np.float32)}
    assert list(rows().convert_all(arrays)) == ["text", "gate"]
    assert list(rows(("a",), ("a",)).convert_all(arrays)) == ["text", "memory", "gate"]


def test_removed_class_is_refused():
    with pytest.raises(ConfigError, match=r"^runs/may: has the class 'cat', which is missing now; classes can be"):
        rows(now=("ape", "bee"))


def test_a_prompt_of_another_shape_is_refused():
    with pytest.raises(ConfigError, match=r"^runs/may: its prompt 'text' has the shape \(4, 2\), and these settings"):
        rows().convert("text", np.ones((4, 2), np.float32))


def previous(tmp_path, **shared):
    arrays = {name: np.asarray(value, np.float32) for name, value in shared.items()}
    return PreviousRun(tmp_path, Outcome(name="may", classes=("a", "b")), arrays, {"north": arrays})


def test_reference_does_not_depend_on_the_folder(tmp_path):
    one, moved = previous(tmp_path / "here", text=[1]), previous(tmp_path / "there", text=[1])
    assert one.reference == moved.reference != previous(tmp_path, text=[2]).reference
    assert one.reference.startswith("may ")


def test_settings_require_their_previous_run(tmp_path):
    one, config = previous(tmp_path, text=[1]), RunConfig()
    continued = with_reference(config, one)
    assert continued.previous_run == one.reference and with_reference(continued, one) == continued
    require_previous_run(config, None)
    with pytest.raises(
        ConfigError, match=r"^previous_run: these settings continue the run may; name its folder with --fr"
    ):
        require_previous_run(continued, None)
    with pytest.raises(
        ConfigError, match=r"^previous_run: these settings continue 'may [0-9a-f]{16}', but .* has 'may "
    ):
        with_reference(continued, previous(tmp_path, text=[2]))


def test_unfinished_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"has no run to continue: there is no settings\.toml in it"):
        read_previous_run(tmp_path)
    (tmp_path / "settings.toml").write_text("rounds = 2")
    with pytest.raises(RunFolderError, match="the run is not finished"):
        read_previous_run(tmp_path)

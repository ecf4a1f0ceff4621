import json

import pytest

from fedcopl.errors import RunFolderError
from fedcopl.report.gallery import Example, as_plain, examples_from
from fedcopl.report.reading import NothingYet, find_runs, read_run
from report.sample_results import sample_results, so_far, write_run

EXAMPLE = Example("data:image/png;base64,AAAA", 8, 8, 1, "dog", 0.9, None, None, "north", 3)
SMALL = sample_results(clients=2, classes=("cat", "dog"), rounds=2)


def test_a_run_is_found_by_any_of_its_files(tmp_path):
    for name in ("results.json", "progress.json", "settings.toml"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).touch()
        assert find_runs(folder) == [folder]


def test_a_folder_of_runs_stands_for_all_of_them(tmp_path):
    for name in ("b/second", "b/first", "a", "deep/er/run", "much/too/deep/run", ".hidden/run"):
        write_run(tmp_path / name, SMALL)
    write_run(tmp_path / "a" / "inner", SMALL)  # a run's folder is not searched
    found = [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)]
    assert found == ["a", "b/first", "b/second", "deep/er/run"]


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda path: None, "there is no such folder"),
        (lambda path: path.touch(), "is a file; name the folder of a run"),
        (lambda path: path.mkdir(), "holds no run: there is no results.json or settings.toml in it or below"),
    ],
)
def test_what_is_no_run_is_named(tmp_path, prepare, why):
    place = tmp_path / "x"
    prepare(place)
    with pytest.raises(RunFolderError) as told:
        find_runs(place)
    assert str(told.value) == f"{place}: {why}"


def test_results_come_before_progress(tmp_path):
    folder = write_run(tmp_path / "run", SMALL)
    (folder / "progress.json").write_text(json.dumps(so_far(SMALL, 1)))
    assert len(read_run(folder).results["rounds"]) == 2
    (folder / "results.json").unlink()
    assert len(read_run(folder).results["rounds"]) == 1


def test_a_run_without_a_finished_round(tmp_path):
    (tmp_path / "settings.toml").touch()
    with pytest.raises(NothingYet, match="no round of this run is finished"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ('{"name": "x"', "Expecting"),
        ("[]", "it is no object"),
        ("{}", "name is missing"),
        ("[" * 100_000, "it is nested too deeply"),
        ("\udcff", "codec can't decode"),
    ],
)
def test_a_damaged_file_is_named_with_a_way_out(tmp_path, text, why):
    (tmp_path / "results.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunFolderError) as told:
        read_run(tmp_path)
    message = str(told.value)
    assert message.startswith(f"{tmp_path / 'results.json'}: is damaged: ")
    assert why in message
    assert "\n" not in message
    assert message.endswith(f"`fedcopl run --out {tmp_path} --resume` writes it anew")


def test_what_is_no_number_was_not_measured(tmp_path):
    folder = write_run(tmp_path / "run", so_far(SMALL, 2))
    text = (folder / "results.json").read_text().replace(json.dumps(SMALL["rounds"][0]["loss"]), "NaN")
    (folder / "results.json").write_text(text)
    assert read_run(folder).results["rounds"][0]["loss"] is None


def test_examples_come_back_as_they_went(tmp_path):
    assert examples_from(json.loads(json.dumps(as_plain([EXAMPLE]))), 2) == [EXAMPLE]
    folder = write_run(tmp_path / "run", SMALL)
    assert read_run(folder).examples == []
    (folder / "examples.json").write_text(json.dumps(as_plain([EXAMPLE])))
    assert read_run(folder).examples == [EXAMPLE]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        [3],
        [as_plain([EXAMPLE])[0] | {"label": 2}],
        [as_plain([EXAMPLE])[0] | {"label": "1"}],
        [as_plain([EXAMPLE])[0] | {"image": "https://example.org/spy.png"}],
        [{"label": 1}],
    ],
)
def test_damaged_examples_are_named(tmp_path, broken):
    folder = write_run(tmp_path / "run", SMALL)
    (folder / "examples.json").write_text(json.dumps(broken))
    with pytest.raises(RunFolderError, match=r"examples\.json: is damaged: .*; without this file there is no gallery"):
        read_run(folder)

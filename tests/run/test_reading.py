import json

import pytest

from fedcopl.errors import RunFolderError
from fedcopl.run.folder import NoFinishedRound, find_runs, read_finished, read_rounds, read_so_far
from report.sample_results import of_sites, outcome_of, sample_results, so_far, write_run

SMALL = sample_results(clients=2, classes=("cat", "dog"), rounds=2)


def test_a_run_is_found_by_any_of_its_files(tmp_path):
    for name in ("results.json", "progress.json", "settings.toml"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).touch()
        assert find_runs(folder) == [folder]


def test_folder_of_runs_means_all_runs(tmp_path):
    for name in ("b/second", "b/first", "a", "deep/er/run", "much/too/deep/run", ".hidden/run"):
        write_run(tmp_path / name, SMALL)
    write_run(tmp_path / "a" / "inner", SMALL)  # a run's folder is not searched
    found = [str(path.relative_to(tmp_path)) for path in find_runs(tmp_path)]
    assert found == ["a", "b/first", "b/second", "deep/er/run"]


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (lambda path: None, "there is no such folder; name the folder of a run"),
        (lambda path: path.touch(), "is a file, not a folder; name the folder of a run"),
        (lambda path: path.mkdir(), "has no run: there is no results.json or settings.toml in it or below"),
    ],
)
def test_folder_without_run_is_named(tmp_path, prepare, why):
    folder = tmp_path / "x"
    prepare(folder)
    with pytest.raises(RunFolderError) as caught:
        find_runs(folder)
    assert str(caught.value) == f"{folder}: {why}"


def test_results_come_before_progress(tmp_path):
    folder = write_run(tmp_path / "run", SMALL)
    (folder / "progress.json").write_text(json.dumps(so_far(SMALL, 1)))
    assert len(read_so_far(folder).rounds) == 2
    assert read_finished(folder) == read_so_far(folder)
    (folder / "results.json").unlink()
    assert len(read_so_far(folder).rounds) == 1
    with pytest.raises(RunFolderError, match="the run is not finished; resume it with: fedcopl run --out"):
        read_finished(folder)


def test_a_run_without_a_finished_round(tmp_path):
    (tmp_path / "settings.toml").touch()
    with pytest.raises(NoFinishedRound, match="no round of this run is finished"):
        read_so_far(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ('{"name": "x"', "Expecting"),
        ("[]", "it is []"),
        ("{}", "name is missing or empty"),
        ("[" * 100_000, "it is nested too deeply"),
        ("\udcff", "codec can't decode"),
    ],
)
def test_damaged_file_is_named_with_a_fix(tmp_path, text, why):
    (tmp_path / "results.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunFolderError) as caught:
        read_so_far(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'results.json'}: is damaged: ")
    assert why in message
    assert "\n" not in message
    assert message.endswith(f"`fedcopl run --out {tmp_path} --resume` writes it again")


def test_nan_is_read_as_not_measured(tmp_path):
    folder = write_run(tmp_path / "run", so_far(SMALL, 2))
    text = (folder / "results.json").read_text().replace(json.dumps(SMALL["rounds"][0]["loss"]), "NaN")
    (folder / "results.json").write_text(text)
    assert read_so_far(folder).rounds[0].loss is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rounds": []}, "rounds is missing or empty"),
        ({"classes": []}, "classes is missing or empty"),
        ({"name": ""}, "name is missing or empty"),
        ({"settings": {}}, "settings is missing or empty"),
        ({"seed": "x"}, "seed is 'x'"),
    ],
)
def test_an_incomplete_outcome_is_refused(tmp_path, changes, why):
    folder = write_run(tmp_path / "run", of_sites(SMALL) | changes)
    with pytest.raises(RunFolderError) as caught:
        read_so_far(folder)
    assert f"results.json: is damaged: {why}; " in str(caught.value)


def test_rounds_are_read_from_their_lines(tmp_path):
    assert read_rounds(tmp_path) == ()
    file = tmp_path / "rounds.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in SMALL["rounds"]))
    assert read_rounds(tmp_path) == outcome_of(SMALL).rounds


@pytest.mark.parametrize("line", ["{", "7", '{"round": "x"}'])
def test_damaged_rounds_are_named(tmp_path, line):
    (tmp_path / "rounds.jsonl").write_text(f"{line}\n")
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl: cannot be read: ") as caught:
        read_rounds(tmp_path)
    assert "\n" not in str(caught.value)

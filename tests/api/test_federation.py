"""A federation in Python: the same bits as on the command line, and a classifier for each site."""

import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from classifier.small import digits
from fedcopl import Classifier, Federation, RunConfig, Site, simulate
from fedcopl.api import Result
from fedcopl.data.catalog import CLASSES
from fedcopl.errors import ConfigError, DataError, RunFolderError
from fedcopl.simulation.simulate import simulate as run_simulation

QUICK = {"rounds": 1, "epochs": 1, "threads": 1}


def array(split, start, stop):
    images, labels = digits(split, start, stop)
    return np.stack([np.asarray(image) for image in images]), labels


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """The folder layout of `fedcopl run`: two sites, the first with labelled test images."""
    root = tmp_path_factory.mktemp("photos")
    for number, site in enumerate(("north", "south")):
        (root / "clients" / site / "train").mkdir(parents=True)
        for place, image in enumerate(digits("train", 40 * number, 40 * number + 40)[0]):
            image.save(root / "clients" / site / "train" / f"{place:03}.png")
    for place, (image, label) in enumerate(zip(*digits("test", 0, 30), strict=True)):
        home = root / "clients" / "north" / "test" / CLASSES[label]
        home.mkdir(parents=True, exist_ok=True)
        image.save(home / f"{place:03}.png")
    (root / "classes.txt").write_text("\n".join(CLASSES))
    return root


def sites(photos):
    clients = photos / "clients"
    north = Site("north", clients / "north" / "train", test=clients / "north" / "test")
    return [north, Site("south", clients / "south" / "train")]


@pytest.fixture(scope="module")
def result(photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("python") / "run"
    return Federation(sites(photos), photos / "classes.txt", **QUICK).fit(folder, progress=False)


def test_the_same_bits_as_the_command_line(photos, result, tmp_path):
    settings = {
        "rounds": 1,
        "train": {"epochs": 1},
        "model": {"threads": 1},
        "data": {"source": "folder", "path": str(photos), "partition": "natural"},
    }
    run_simulation(RunConfig.from_mapping(settings, "test"), tmp_path / "run")
    for name in ("server", "clients/north", "clients/south"):
        ours, theirs = (load_file(home / f"prompts/{name}.safetensors") for home in (result.folder, tmp_path / "run"))
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_labels_are_only_used_for_accuracy(tmp_path):
    images, labels = array("train", 0, 40)
    tests, truth = array("test", 0, 20)
    wrong = {"labels": (labels * 7 + 3) % 10, "test": (tests, (truth * 7 + 3) % 10)}
    handed = {"true": {"labels": labels, "test": (tests, truth)}, "wrong": wrong, "none": {}}
    for name, given in handed.items():  # shared out at random: of other labels other parts would be made
        folder = tmp_path / name
        simulate(images, classes=CLASSES, folder=folder, progress=False, partition="iid", clients=2, **given, **QUICK)
    kept = [
        {file.name: file.read_bytes() for file in (tmp_path / name / "prompts").rglob("*.safetensors")}
        for name in handed
    ]
    assert len(kept[0]) == 4  # the server's, two clients', the priors
    assert kept[0] == kept[1] == kept[2]


def test_the_outcome(result):
    assert list(result) == ["north", "south"]
    assert len(result.rounds) == 1
    assert 0 < result.zero_shot <= 1
    assert result.report.exists()
    images, labels = digits("test", 0, 30)
    assert result["north"].score(images, labels) == result.accuracy == result.outcome.clients[0].final
    with pytest.raises(KeyError):
        result["west"]


def test_each_classifier_has_the_threshold_of_its_site(result):
    own, _ = digits("train", 0, 40)
    assert result["north"].threshold == pytest.approx(result["north"].with_abstention(own).threshold)
    assert result["north"].threshold != result["south"].threshold


def test_load_result(result):
    again = Result.load(result.folder)
    assert again.accuracy == result.accuracy
    assert again["north"].fingerprint == result["north"].fingerprint
    assert again["north"].threshold is None  # its images were handed over, and are gone


def test_repr_and_html(result, photos):
    assert repr(result).startswith("<Result: FedCoPL + priors, 2 sites, 1 round, accuracy ")
    assert "<td>north</td><td>40</td>" in result._repr_html_()
    assert repr(Federation(sites(photos), CLASSES)) == "<Federation of 2 sites, 10 classes, method fedcopl>"
    images, _ = array("train", 0, 3)
    assert repr(Site("x", images)) == "<Site x: 3 images in memory>"
    assert repr(Site("x", "photos")) == "<Site x: photos>"


def test_errors_name_arguments_of_python(result, photos, tmp_path):
    federation = Federation(sites(photos), photos / "classes.txt", **QUICK)
    with pytest.raises(RunFolderError) as taken:
        federation.fit(result.folder, progress=False)
    assert str(taken.value) == (
        f"{result.folder}: already has a run; add resume=True to resume it, or choose another folder"
    )
    with pytest.raises(RunFolderError) as strange:
        federation.fit(photos, progress=False)
    assert str(strange.value).endswith("choose another folder")
    (tmp_path / "settings.toml").write_text((result.folder / "settings.toml").read_text())
    with pytest.raises(RunFolderError) as unfinished:
        Result.load(tmp_path)
    assert str(unfinished.value).endswith(f"resume it with: fit or simulate with folder='{tmp_path}', resume=True")
    with pytest.raises(RunFolderError, match=r"choose another folder"):
        simulate(folder=result.folder, progress=False, **QUICK)
    with pytest.raises(ConfigError, match=r"has no client 'nort' \(north, south\); did you mean north"):
        Classifier.load(result.folder, client="nort")


def test_a_temporary_folder_goes_with_its_result():
    images, _ = array("train", 0, 30)
    passing = Federation([Site("a", images)], CLASSES, **QUICK).fit(progress=False)
    folder = passing.folder
    assert passing.accuracy is None and "accuracy unknown" in repr(passing)
    assert folder.exists()
    passing._temporary.cleanup()
    assert not folder.exists()


def test_simulate_partitions_arrays():
    (images, labels), test = array("train", 0, 80), array("test", 0, 40)
    outcome = simulate(images, labels, classes=CLASSES, test=test, clients=2, beta=5.0, progress=False, **QUICK)
    assert list(outcome) == ["client-0", "client-1"]
    assert sum(client.train for client in outcome.outcome.clients) == 80


@pytest.mark.slow
def test_simulate_a_known_data_set_equals_the_engine(tmp_path):
    outcome = simulate(clients=2, folder=tmp_path / "a", progress=False, **QUICK)
    config = RunConfig.from_mapping(
        {"rounds": 1, "train": {"epochs": 1}, "model": {"threads": 1}, "data": {"clients": 2}}, "test"
    )
    plain = run_simulation(config, tmp_path / "b")
    assert plain.final.macro == outcome.accuracy


MISTAKES = {
    "no sites": (lambda: Federation([], CLASSES), DataError, "at least one"),
    "twice": (lambda: Federation([Site("a", "x"), Site("a", "y")], CLASSES), DataError, "two sites have the name 'a'"),
    "no classes": (lambda: Federation([Site("a", "x")], []), DataError, "classes: is empty"),
    "one name for two": (lambda: Federation([Site("a", "x")], ["sea lion", "sea_lion"]), DataError, "all become"),
    "fixed by the sites": (
        lambda: Federation([Site("a", "x")], CLASSES, clients=3),
        ConfigError,
        "the sites of the federation determine it",
    ),
    "no setting": (lambda: Federation([Site("a", "x")], CLASSES, round=3), ConfigError, "did you mean rounds"),
    "no folder": (lambda: Federation([Site("a", "nowhere")], CLASSES).fit(), DataError, "site a: nowhere: there is no"),
    "no images": (lambda: Federation([Site("a", [])], CLASSES).fit(), DataError, "site a: has no images"),
    "no labels": (lambda: simulate(np.zeros((4, 8, 8), np.uint8), classes=CLASSES, progress=False), DataError, "iid"),
    "names needed": (lambda: simulate(np.zeros((4, 8, 8), np.uint8)), ConfigError, "give the class names"),
}


@pytest.mark.parametrize(("do", "kind", "message"), MISTAKES.values(), ids=MISTAKES)
def test_invalid_arguments_are_refused(do, kind, message):
    with pytest.raises(kind, match=message):
        do()


def test_test_images_without_labels_are_refused():
    images, _ = array("train", 0, 10)
    with pytest.raises(DataError, match="site a, test: needs labels"):
        Federation([Site("a", images, test=images)], CLASSES).fit()
    with pytest.raises(DataError, match="3 labels for 10 images"):
        Federation([Site("a", images, test=(images, [1, 2, 3]))], CLASSES).fit()


@pytest.mark.slow  # mypy reads the whole package
def test_public_names_are_typed(tmp_path):
    code = tmp_path / "use.py"
    code.write_text(
        "from fedcopl import Classifier, Federation, Result, Site, simulate\n"
        "result: Result = Federation([Site('a', 'x')], ['b', 'c'], rounds=3).fit()\n"
        "classifier: Classifier = result['a']\n"
        "other: Result = simulate(rounds=1)\n"
        "wrong: int = result.accuracy\n"
    )
    # What others' packages are made of takes mypy minutes and tells nothing about our names.
    others = "torch scipy sklearn transformers numpy flwr pydantic rich typer PIL safetensors cryptography".split()
    settings = tmp_path / "mypy.ini"
    settings.write_text(f"[mypy]\n\n[mypy-{','.join(f'{name}.*' for name in others)}]\nfollow_imports = skip\n")
    given = ["--cache-dir", str(tmp_path / "cache"), "--config-file", str(settings)]
    said = subprocess.run(
        [sys.executable, "-m", "mypy", *given, str(code)], capture_output=True, text=True, cwd=tmp_path
    )
    assert [line for line in said.stdout.splitlines() if ": error:" in line] == [
        f'{code.name}:5: error: Incompatible types in assignment (expression has type "float | None", variable has '
        'type "int")  [assignment]'
    ]

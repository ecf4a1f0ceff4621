"""`fedcopl data`, as a user types it."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from data.pictures import encoded, make_images, noise, put
from fedcopl.cli import app
from fedcopl.data.catalog import SOURCES
from fedcopl.errors import ConfigError, DataError
from preloaded_processes import run_preloaded


def fedcopl(*words):
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def folder(tmp_path):
    make_images(
        tmp_path / "images",
        *(f"{split}/{name}/{n}.png" for split in ("train", "test") for name in ("cat", "sea_lion") for n in range(6)),
    )
    return tmp_path / "images"


def test_list_has_all_data_sets():
    listed = fedcopl("data", "list").splitlines()[1:]
    assert [line.split()[0] for line in listed] == list(SOURCES)
    assert [line.split()[0] for line in listed if line.rstrip().endswith("yes")] == [
        "cifar10",
        "cifar100",
        "dtd",
        "cub200",
    ]


def test_check_prints_counts_sentences_and_broken_files(folder):
    put(folder, "train/cat/[odd]\nname.png", b"")
    seen = fedcopl("data", "check", "folder", folder)
    assert [line.split() for line in seen.splitlines()[1:3]] == [
        ["cat", "6", "6", "a", "photo", "of", "a", "cat"],
        ["sea", "lion", "6", "6", "a", "photo", "of", "a", "sea", "lion"],
    ]
    assert "folder: 2 classes, 12 train and 12 test images" in seen
    assert "note: 12 test images are also training images" not in seen
    assert "1 skipped:\n  train/cat/[odd]\\nname.png: the file is empty" in seen


def test_check_takes_settings(folder):
    assert "an X-ray of sea lion!" in fedcopl("data", "check", "folder", folder, "template=an X-ray of {}!")


def test_check_as_json(folder):
    put(folder, "test/cat/x.png", b"?")
    seen = json.loads(fedcopl("data", "check", "folder", folder, "--json"))
    assert seen["classes"][1] == {"name": "sea lion", "train": 6, "test": 6, "sentence": "a photo of a sea lion"}
    assert [entry["image"] for entry in seen["skipped"]] == ["test/cat/x.png"]


def test_many_broken_images_are_counted(folder):
    for number in range(30):
        put(folder, f"train/cat/x{number}.png", b"")
    assert "30 skipped:" in fedcopl("data", "check", "folder", folder)
    assert "and 10 more; --all lists every one" in fedcopl("data", "check", "folder", folder)
    listed = fedcopl("data", "check", folder, "--all")
    assert all(f"train/cat/x{number}.png: the file is empty" in listed for number in range(30))


LAYOUTS = {  # of docs/data.md: what lies there, and what is counted of cat and dog in train and test
    "two splits": (["train/cat/1.png", "train/dog/2.png", "test/cat/3.png", "test/dog/4.png"], ["1 1", "1 1"]),
    "unlabelled and labelled": (["train/1.png", "train/2.png", "test/cat/3.png", "test/dog/4.png"], ["? 1", "? 1"]),
    "by class": (["cat/1.png", "dog/2.png", "dog/deeper/3.png"], ["1 ?", "2 ?"]),
    "flat": (["1.png", "2.png", "classes.txt"], ["? ?", "? ?"]),
    "clients": (["clients/north/cat/1.png", "clients/south/dog/2.png"], ["1 ?", "1 ?"]),
    "a study": (["clients/north/train/1.png", "clients/south/train/2.png", "../classes.txt"], ["? ?", "? ?"]),
}


@pytest.mark.parametrize(("names", "counts"), LAYOUTS.values(), ids=LAYOUTS)
def test_check_takes_a_folder_of_images(tmp_path, monkeypatch, names, counts):
    for name in names:
        put(tmp_path / "images", name, "cat\ndog\n" if name.endswith(".txt") else encoded(noise(int(name[-5]))))
    monkeypatch.chdir(tmp_path)
    for where in ("images", "./images/", tmp_path / "images"):
        seen = fedcopl("data", "check", where).splitlines()
        assert [" ".join(line.split()[:3]) for line in seen[1:3]] == [f"cat {counts[0]}", f"dog {counts[1]}"]
        assert seen[3].startswith("folder: 2 classes, ")


def test_check_takes_settings_and_a_table(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    rows = [f"images/{path.relative_to(folder)},{path.parent.name}" for path in sorted(folder.rglob("*.png"))]
    put(folder.parent, "list.csv", "\n".join(["path,label", *rows]))
    assert "manifest: 2 classes, 24 train and 0 test images" in fedcopl("data", "check", "list.csv")
    put(folder.parent, "settings.toml", 'rounds = 3\n[data]\nsource = "folder"\npath = "images"\n')
    assert "folder: 2 classes, 12 train and 12 test images" in fedcopl("data", "check", "settings.toml")
    assert "a scan of cat" in fedcopl("data", "check", "settings.toml", "template=a scan of {}")
    monkeypatch.chdir("/")
    with pytest.raises(
        DataError, match=r"^images: there is no such path; paths are relative to the current folder: cd "
    ):
        fedcopl("data", "check", folder.parent / "settings.toml")


WRONG_PATHS = {
    "nowhere": (["./nowhere"], DataError, r"^\./nowhere: there is no such folder, table or settings file$"),
    "no settings": (["other.toml"], DataError, r"^other\.toml: there is no such folder, table or settings file$"),
    "a picture": (["images/train/cat/0.png"], ConfigError, "is no folder, no table .* and no settings file"),
    "two paths": (
        ["images", "images"],
        ConfigError,
        "^images: is a path, not the name of a data set; leave out images$",
    ),
}


@pytest.mark.parametrize(("words", "kind", "says"), WRONG_PATHS.values(), ids=WRONG_PATHS)
def test_a_wrong_path_is_named(folder, monkeypatch, words, kind, says):
    monkeypatch.chdir(folder.parent)
    with pytest.raises(kind, match=says):
        fedcopl("data", "check", *words)


def test_check_of_settings_names_the_run_that_follows(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    put(folder.parent, "settings.toml", 'rounds = 3\n[data]\nsource = "folder"\npath = "images"\n')
    shown = CliRunner().invoke(app, ["data", "check", "settings.toml"])
    assert shown.stderr == "next: fedcopl run settings.toml method=priors\n"


def test_check_of_the_digits_needs_no_folder():
    assert "digits: 10 classes, 1,198 train and 599 test images" in fedcopl("data", "check", "digits")


def test_show_writes_two_pictures(folder, tmp_path):
    out = tmp_path / "out"
    seen = fedcopl("data", "show", "folder", folder, "clients=3", "partition=iid", "--out", out)
    assert seen.splitlines() == [str(out / "folder-images.png"), str(out / "folder-clients.png")]
    assert all(Image.open(path).format == "PNG" for path in seen.splitlines())


def test_show_a_natural_partition(folder, tmp_path):
    make_images(tmp_path / "sites", *(f"clients/{site}/cat/{n}.png" for site in ("north", "south") for n in range(3)))
    seen = fedcopl("data", "show", "folder", tmp_path / "sites", "partition=natural", "--out", tmp_path / "out")
    assert len(seen.splitlines()) == 2


def test_show_without_labels_is_one_picture(tmp_path):
    put(make_images(tmp_path / "flat", "a.png", "b.png"), "classes.txt", "cat")
    assert len(fedcopl("data", "show", "folder", tmp_path / "flat", "--out", tmp_path / "out").splitlines()) == 1
    assert fedcopl("data", "show", tmp_path / "flat", "--out", tmp_path / "out").splitlines() == [
        str(tmp_path / "out/folder-images.png")
    ]


def test_show_the_digits_with_settings_only(tmp_path):
    assert len(fedcopl("data", "show", "digits", "clients=3", "--out", tmp_path).splitlines()) == 2


def test_invalid_arguments_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="unknown data set 'cifar'"):
        fedcopl("data", "check", "cifar", tmp_path)
    with pytest.raises(ConfigError, match="client: unknown setting"):
        fedcopl("data", "show", "digits", "client=3")
    with pytest.raises(DataError, match="cannot be downloaded by this program"):
        fedcopl("data", "get", "resisc45", tmp_path)


def test_a_data_error_is_one_line_and_exit_code_3(tmp_path):
    process = run_preloaded("data", "check", "cifar10", str(tmp_path), COLUMNS="80")
    assert process.returncode == 3
    assert process.stderr.startswith(
        f"fedcopl: {tmp_path}: contains no cifar-10-batches-py or cifar-10-batches-bin; download"
    )
    assert process.stderr.count("\n") == 1

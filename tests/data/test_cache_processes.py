"""The cache among several processes: killed, racing, out of room."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from data.pictures import TRANSFORM, decoded, load, make_images
from fedcopl.data.cache import PixelCache

BUILD = """
import sys, resource
from fedcopl.config import Data
from fedcopl.data.cache import PixelCache
from fedcopl.data.catalog import load_dataset
from fedcopl.errors import DataError
from fedcopl.clip.preprocess import ImageTransform
from pathlib import Path

root, folder, stop, most = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
transform, calls = ImageTransform(18, 16), 0
def cut(image):
    global calls
    calls += 1
    if calls == stop:
        print("stands still", flush=True)
        sys.stdin.read()
    return transform.resize_and_crop(image)
if most:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
images = load_dataset(Data(source="folder", path=root)).train
print("begins", flush=True)
try:
    pixels = PixelCache(folder).pixels(images, cut, transform.key).array
    print(len(pixels), calls)
except DataError as error:
    print(error)
    sys.exit(3)
"""
IMAGES = 200


@pytest.fixture
def root(tmp_path):
    return make_images(tmp_path / "images", *(f"cat/{n:03}.png" for n in range(IMAGES)))


def build(root, folder, stop=0, most=0):
    """A process that has begun to make pixels of these images, and may write so many bytes into a file."""
    command = [sys.executable, "-c", BUILD, str(root), str(folder), str(stop), str(most)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begins\n"
    return process


def build_up_to(row, root, folder):
    """One that stands still at this row, until it is killed or its `communicate` is called."""
    process = build(root, folder, row + 2)  # the first call is for the shape
    assert process.stdout.readline() == "stands still\n"
    return process


@pytest.mark.parametrize("rows", [0, 50, 150])
def test_a_killed_process_leaves_no_valid_entry(root, tmp_path, rows):
    folder = tmp_path / "cache"
    process = build_up_to(rows, root, folder)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    cache = PixelCache(folder)
    assert cache.entries() == []
    assert len(list(folder.glob("pixels/*.part"))) == 1
    images = load("folder", root).train
    assert np.array_equal(cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array, decoded(images))
    assert not list(folder.glob("pixels/*.part"))


def test_incomplete_entries_of_killed_processes_are_removed(root, tmp_path):
    folder = tmp_path / "cache"
    process = build_up_to(100, root, folder)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    make_images(root, "cat/another.png")  # so that another entry is built
    assert build(root, folder).communicate()[0].split()[0] == str(IMAGES + 1)
    assert not list(folder.glob("pixels/*.part"))


def test_two_processes_build_an_entry_once(root, tmp_path):
    folder = tmp_path / "cache"
    first = build_up_to(100, root, folder)
    second = build(root, folder)
    answers = [process.communicate()[0].split() for process in (first, second)]
    assert answers[0] == [str(IMAGES), str(IMAGES + 1)]  # one more call for the shape
    assert answers[1] == [str(IMAGES), "0"]
    images = load("folder", root).train
    (entry,) = PixelCache(folder).entries()
    assert np.array_equal(entry.array(), decoded(images))


def test_clearing_keeps_entries_that_are_being_built(root, tmp_path):
    folder = tmp_path / "cache"
    process = build_up_to(100, root, folder)
    PixelCache(folder).clear()
    assert process.communicate()[0].split()[0] == str(IMAGES)
    assert len(PixelCache(folder).entries()) == 1


def test_a_failing_write_is_one_line(root, tmp_path):
    folder = tmp_path / "cache"
    process = build(root, folder, most=100 * 768)
    message = process.communicate()[0]
    assert process.returncode == 3
    assert f"{folder}/pixels: cannot be written: File too large" in message
    assert message.count("\n") == 1
    assert PixelCache(folder).entries() == []
    assert not list(folder.glob("pixels/*.part"))

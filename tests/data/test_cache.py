"""The cache gives the same bytes as direct work, whatever happens to it."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.pictures import TRANSFORM, decoded, encoded, load, make_images, noise, put
from fedcopl.clip.preprocess import ImageTransform
from fedcopl.data import cache as cache_module
from fedcopl.data import images as images_module
from fedcopl.data.cache import _ENTRY, _PIXELS, PixelCache, default_folder, prepare
from fedcopl.data.catalog import load_digits
from fedcopl.data.dataset import ImageSet
from fedcopl.data.images import FilePage, ImageArrays, ImageList
from fedcopl.errors import DataError


class CountingCut:
    """A transform that counts its calls."""

    def __init__(self, transform: ImageTransform = TRANSFORM):
        self.transform, self.calls = transform, 0

    def __call__(self, image):
        self.calls += image.size != (1, 1)  # the cache transforms one pixel to get the shape
        return self.transform.resize_and_crop(image)


@pytest.fixture
def images(tmp_path) -> ImageSet:
    return load("folder", make_images(tmp_path / "images", *(f"cat/{n}.png" for n in range(12)))).train


@pytest.fixture
def cache(tmp_path) -> PixelCache:
    return PixelCache(tmp_path / "cache")


def only_entry(cache: PixelCache) -> Path:
    (entry,) = cache.entries()
    return entry.folder


def test_the_cache_gives_the_bytes_of_direct_decoding(images, cache):
    for _ in range(2):
        pixels, bad, digests = cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)
        assert np.array_equal(pixels, decoded(images))
        assert (bad, len(set(digests))) == ({}, 12)
    assert isinstance(pixels, np.memmap)
    assert not pixels.flags.writeable


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30), st.integers(1, 30)), max_size=8))
def test_any_list_of_images(tmp_path_factory, pictures):
    root = tmp_path_factory.mktemp("any")
    for place, (seed, width, height) in enumerate(pictures):
        put(root, f"cat/{place}.png", encoded(noise(seed, (width, height))))
    make_images(root, "cat/x.png")
    images = load("folder", root).train
    cache = PixelCache(root / "cache")
    for _ in range(2):
        assert np.array_equal(cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array, decoded(images))


def test_each_image_is_decoded_once(images, cache):
    cut = CountingCut()
    for _ in range(3):
        cache.pixels(images, cut, TRANSFORM.key)
    assert cut.calls == 12


def test_an_empty_set_of_images(cache, images):
    pixels, bad, _ = cache.pixels(images.without(range(12)), TRANSFORM.resize_and_crop, TRANSFORM.key)
    assert (pixels.shape, bad) == ((0, 3, 16, 16), {})


def test_each_transform_has_an_entry(images, cache):
    other = ImageTransform(20, 16)
    first = cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array
    second = cache.pixels(images, other.resize_and_crop, other.key).array
    assert np.array_equal(first, decoded(images))
    assert np.array_equal(second, decoded(images, other))
    assert len(cache.entries()) == 2


def test_unusable_images_are_excluded_with_a_reason(tmp_path, cache):
    root = make_images(tmp_path / "images", "cat/0.png", "cat/2.png", "dog/5.png")
    put(root, "cat/1.png", b"")
    put(root, "cat/3.png", "no picture")
    put(root, "dog/4.jpg", encoded(noise(4), "JPEG")[:-300])
    images = load("folder", root).train
    for _ in range(2):
        pixels, bad, _ = cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)
        assert {images.names[index] for index in bad} == {"cat/1.png", "cat/3.png", "dog/4.jpg"}
        assert bad[1] == "the file is empty"
        good = images.without(bad)
        assert np.array_equal(pixels, decoded(good))
        assert (good.names, good.labels.tolist()) == (["cat/0.png", "cat/2.png", "dog/5.png"], [0, 0, 1])


def test_a_file_that_cannot_be_read(images, cache, monkeypatch):
    content = type(images.images).content

    def refuse(self, place):
        if self.file(place).path.name == "3.png":
            raise PermissionError(errno.EACCES, "Permission denied")
        return content(self, place)

    monkeypatch.setattr(type(images.images), "content", refuse)
    pixels, bad, _ = cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)
    assert (len(pixels), list(bad.values())) == (11, ["unreadable: Permission denied"])
    monkeypatch.undo()
    assert len(cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array) == 12


def test_relative_and_absolute_paths_in_one_list(cache, tmp_path, monkeypatch):
    paths = [put(tmp_path, f"{number}.png", encoded(noise(number))) for number in range(2)]
    monkeypatch.chdir(tmp_path)
    mixed = ImageSet(ImageList([FilePage(Path(paths[0].name)), FilePage(paths[1])]))
    assert np.array_equal(cache.pixels(mixed, TRANSFORM.resize_and_crop, TRANSFORM.key).array, decoded(mixed))


def settle(monkeypatch):
    """As if all files were old enough for their times to be relied on."""
    monkeypatch.setattr(images_module, "_SETTLING_TIME", -1)


def test_unchanged_files_are_not_read_again(images, cache, monkeypatch):
    settle(monkeypatch)
    cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)
    monkeypatch.setattr(type(images.images), "content", lambda self, place: pytest.fail("was read"))
    assert len(cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array) == 12


def test_recently_changed_files_are_read_again(images, cache):
    cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)
    assert not list(cache.folder.glob("*.index.json"))


def test_only_a_changed_file_is_decoded_again(images, cache, monkeypatch):
    settle(monkeypatch)
    cut = CountingCut()
    cache.pixels(images, cut, TRANSFORM.key)
    path = images.images.file(5).path
    before = path.stat()
    path.write_bytes(encoded(noise(77)).ljust(before.st_size, b"\0")[: before.st_size])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # even if somebody sets the time back
    assert np.array_equal(cache.pixels(images, cut, TRANSFORM.key).array, decoded(images))
    assert cut.calls == 13


def test_a_file_that_is_replaced_by_another(images, cache, monkeypatch):
    settle(monkeypatch)
    cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)
    first, second = (images.images.file(place).path for place in (0, 1))
    first.rename(first.with_suffix(".x"))
    second.rename(first)
    first.with_suffix(".x").rename(second)
    assert np.array_equal(cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array, decoded(images))


def test_a_file_that_changes_while_it_is_read(images, cache):
    def cut(image):
        images.images.file(11).path.write_bytes(encoded(noise(99)))
        return TRANSFORM.resize_and_crop(image)

    with pytest.raises(DataError, match=r"cat/9.png: the file changed while it was read"):
        cache.pixels(images, cut, TRANSFORM.key)
    assert cache.entries() == []
    assert not list(cache.folder.glob("*.part"))


SPOILERS = {
    "pixels cut short": lambda entry: os.truncate(entry / _PIXELS, 1000),
    "pixels gone": lambda entry: (entry / _PIXELS).unlink(),
    "pixels too long": lambda entry: (entry / _PIXELS).open("ab").write(b"x"),
    "description cut short": lambda entry: os.truncate(entry / _ENTRY, 20),
    "description empty": lambda entry: os.truncate(entry / _ENTRY, 0),
    "description gone": lambda entry: (entry / _ENTRY).unlink(),
    "description of another kind": lambda entry: (entry / _ENTRY).write_text("[1, 2]"),
    "another format": lambda entry: (entry / _ENTRY).write_text(
        json.dumps(json.loads((entry / _ENTRY).read_text()) | {"format": 0})
    ),
}


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS)
def test_a_damaged_entry_is_rebuilt(images, cache, spoil):
    cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)
    spoil(only_entry(cache))
    assert cache.entries() == []
    assert np.array_equal(cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array, decoded(images))
    assert len(cache.entries()) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 3}', '{"x": [[1], 2, 3]}'])
def test_a_damaged_index_is_rebuilt(images, cache, monkeypatch, text):
    settle(monkeypatch)
    cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)
    (index,) = cache.folder.glob("*.index.json")
    index.write_text(text)
    assert np.array_equal(cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array, decoded(images))
    assert len(json.loads(index.read_text())) == 12


def test_too_little_space_is_an_error_before_work(images, cache, monkeypatch):
    cut = CountingCut()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1_000_000))
    with pytest.raises(DataError) as error:
        cache.pixels(images, cut, TRANSFORM.key)
    assert f"{cache.folder}: needs 32.0 MB, but only 1.0 MB are free; free some space" in str(error.value)
    assert cut.calls == 0


def test_a_disk_that_fills_up_during_work(images, cache, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_module.os, "fsync", full)
    with pytest.raises(DataError, match="cannot be written: No space left on device; free some space"):
        cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)
    monkeypatch.undo()
    assert cache.entries() == []
    assert not list(cache.folder.glob("*.part"))
    assert np.array_equal(cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array, decoded(images))


def test_a_cache_folder_that_is_a_file(images, tmp_path):
    put(tmp_path, "cache", "in the way")
    with pytest.raises(DataError, match="FEDCOPL_CACHE"):
        PixelCache(tmp_path / "cache").pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)


def test_a_read_only_cache_can_be_read(images, cache, monkeypatch):
    settle(monkeypatch)
    cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(cache_module.os, "utime", refuse)
    monkeypatch.setattr(cache_module, "FileLock", refuse)
    assert np.array_equal(cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array, decoded(images))
    with pytest.raises(DataError, match="cannot be written: Permission denied"):
        cache.pixels(images, TRANSFORM.resize_and_crop, "another transform")


def test_built_in_images_are_not_written(cache):
    test = load_digits().test
    pixels, bad, _ = cache.pixels(test, TRANSFORM.resize_and_crop, TRANSFORM.key)
    assert np.array_equal(pixels, decoded(test))
    assert not cache.folder.exists()
    assert bad == {}


def test_equal_bytes_of_different_shapes_are_different_images(cache):
    dots = np.random.default_rng(0).integers(0, 256, (3, 8, 4, 3), dtype=np.uint8)
    for pixels in (dots, dots.reshape(3, 4, 8, 3)):
        images = ImageSet(ImageArrays(pixels))
        assert np.array_equal(cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array, decoded(images))


def test_progress_is_reported(images, cache):
    progress = []
    cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key, lambda done, total: progress.append((done, total)))
    assert progress == sorted(progress)
    assert progress[-1] == (12, 12)


def test_clearing(images, cache, monkeypatch):
    settle(monkeypatch)
    pixels = cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key).array
    (cache.folder / "0123.part").mkdir()
    cache.clear()
    assert [path for path in cache.folder.iterdir() if path.suffix != ".lock"] == []
    assert np.array_equal(pixels, decoded(images))  # an open entry remains usable
    PixelCache(cache.folder / "never made").clear()


def test_the_default_cache_folder(monkeypatch, tmp_path):
    for name in ("FEDCOPL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "fedcopl"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_folder() == Path("/xdg/fedcopl")
    monkeypatch.setenv("FEDCOPL_CACHE", "/mine")
    assert default_folder() == Path("/mine")


def test_prepare_excludes_unusable_images(tmp_path, cache):
    root = make_images(tmp_path / "images", "train/cat/0.png", "train/dog/1.png", "test/cat/2.png")
    put(root, "train/cat/9.png", b"")
    put(root, "test/dog/8.png", b"?")
    put(root, "train/cat/copy.png", encoded(noise(0)))
    put(root, "test/dog/leak.png", encoded(noise(1)))
    progress = []
    prepared = prepare(
        load("folder", root), TRANSFORM.resize_and_crop, TRANSFORM.key, cache, lambda *done: progress.append(done)
    )
    assert prepared.dataset.train.names == ["train/cat/0.png", "train/cat/copy.png", "train/dog/1.png"]
    assert prepared.dataset.test.labels.tolist() == [0, 1]
    assert np.array_equal(prepared.train, decoded(prepared.dataset.train))
    assert np.array_equal(prepared.test, decoded(prepared.dataset.test))
    assert [name for name, _ in prepared.dataset.skipped] == ["train/cat/9.png", "test/dog/8.png"]
    assert prepared.notes == (
        "1 training image is an exact copy of another",
        "1 test image is also a training image",
    )
    assert progress[-1] == (7, 7)


def test_no_usable_image_is_an_error(tmp_path, cache):
    put(tmp_path / "images", "cat/0.png", b"")
    with pytest.raises(DataError, match=r"of 1 training image none can be used, the first, cat/0\.png: the file"):
        prepare(load("folder", tmp_path / "images"), TRANSFORM.resize_and_crop, TRANSFORM.key, cache)

"""`fedcopl cache`, as a user types it."""

import pytest
from typer.testing import CliRunner

from data.pictures import TRANSFORM, load, make_images
from fedcopl.cli import app
from fedcopl.data.cache import PixelCache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCOPL_CACHE", str(tmp_path / "cache"))
    return PixelCache()


def fedcopl(*words):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_info_of_an_empty_cache(cache):
    assert fedcopl("cache", "info") == f"{cache.folder}: 0 entries, 0 bytes\n"


def test_info_and_clear(cache, tmp_path):
    images = load("folder", make_images(tmp_path / "images", "cat/0.png", "cat/1.png")).train
    cache.pixels(images, TRANSFORM.resize_and_crop, TRANSFORM.key)
    seen = fedcopl("cache", "info")
    assert TRANSFORM.key in seen
    assert f"{cache.folder}: 1 entry, 1.5 kB" in seen  # 2 x 3 x 16 x 16 bytes
    assert fedcopl("cache", "clear") == f"{cache.folder}: 1.5 kB freed\n"
    assert cache.entries() == []
    assert fedcopl("cache", "clear") == f"{cache.folder}: 0 bytes freed\n"

"""Files with information on images are readable by the owner only, with any umask: folders 0700, files 0600."""

import os
import stat

import numpy as np
import pytest
from PIL import Image

from fakes import CLASSES, START
from fedcopl.config import RunConfig
from fedcopl.data.cache import PixelCache
from fedcopl.data.dataset import ImageSet
from fedcopl.data.images import FilePage, ImageList
from fedcopl.federation.client_state import ClientState
from fedcopl.federation.server import ServerState
from fedcopl.files import make_private_folder, publish_text, write_text
from fedcopl.review.expert_answers import Answers, NewAnswer
from fedcopl.run.folder import RunFolder
from fedcopl.run.pseudo_labels import write_image_list, write_labels


@pytest.fixture(autouse=True, params=[0o000, 0o022], ids=["umask 000", "umask 022"])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def open_to_others(folder):
    """Return all files and folders below that others have any permission for."""
    return [str(path) for path in [folder, *folder.rglob("*")] if stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.fixture
def images(tmp_path):
    files = tmp_path / "images"
    files.mkdir()
    for number in range(3):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(files / f"{number}.png")
    paths = sorted(files.iterdir())
    return ImageSet(ImageList([FilePage(path) for path in paths]), None, [path.name for path in paths])


def test_a_runs_folder(tmp_path, images):
    folder = tmp_path / "new" / "run"
    with RunFolder(folder) as held:
        held.begin(RunConfig())
        write_image_list(folder, ["a", "b", "c"], images, {"site": np.arange(3)})
        write_labels(folder, 0, {"site": np.zeros((3, CLASSES))})
        held.write_prompts(ServerState(0, START, CLASSES), {"site": ClientState(own=START)})
        assert (folder / "labels/images.json").exists() and (folder / "prompts/clients").is_dir()
        (folder / ".lock").unlink(missing_ok=True)  # empty, and created by another package
    assert open_to_others(tmp_path / "new") == []


def test_cached_pixels(tmp_path, images):
    PixelCache(tmp_path / "cache").pixels(images, lambda image: np.asarray(image.resize((4, 4)), np.uint8), "test")
    for lock in (tmp_path / "cache").rglob("*.lock"):
        lock.unlink()
    assert any((tmp_path / "cache").rglob("*")) and open_to_others(tmp_path / "cache") == []


def test_corrections_file_is_private(tmp_path):
    Answers(tmp_path, "site").add(NewAnswer("0.png", "digest", "a", "class", "b"))
    assert list((tmp_path / "review").rglob("*.sqlite")) and open_to_others(tmp_path / "review") == []


def test_existing_folders_and_published_files_keep_permissions(tmp_path, umask):
    shared = tmp_path / "shared"
    shared.mkdir(0o755)
    rights = stat.S_IMODE(shared.stat().st_mode)
    write_text(shared / "private", "")
    publish_text(shared / "public", "")
    assert stat.S_IMODE(shared.stat().st_mode) == rights
    assert stat.S_IMODE((shared / "private").stat().st_mode) == 0o600
    assert stat.S_IMODE((shared / "public").stat().st_mode) == 0o666 & ~umask
    make_private_folder(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o700

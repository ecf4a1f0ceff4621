"""Known models without a network: search in the caches, download, and error messages."""

import hashlib
import re
import shutil
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import huggingface_hub
import pytest
import torch

from clip.tiny_clip import in_openai_layout, save_folder, tiny_model
from fedcopl.clip import known_models
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.errors import ModelError
from free_ports import closed_port

NAME = "ViT-B/32"
COMMIT = known_models.RELEASES[NAME].revision


@pytest.fixture(autouse=True)
def empty_home(tmp_path, monkeypatch):
    """No cache of this machine's may play a part."""
    for variable in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_network(monkeypatch):
    """The hub answers once, and then no more."""

    def download(*_, **__):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(known_models, "_hub_error", lambda: "")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A small model with the files of the published repository."""
    folder = save_folder(tmp_path_factory.mktemp("published"), tiny_model())
    (folder / "model.safetensors").unlink()
    torch.save(tiny_model().state_dict(), folder / "pytorch_model.bin")
    return folder


def snapshot_in(cache):
    return cache / "models--openai--clip-vit-base-patch32" / "snapshots" / COMMIT


@pytest.mark.parametrize("name", sorted(known_models.RELEASES))
def test_without_a_network_one_line_names_files_and_folder(name, no_network, empty_home):
    with pytest.raises(ModelError) as caught:
        load_clip(name)
    message, release = str(caught.value), known_models.RELEASES[name]
    assert message.startswith(f"{name}: is not on this machine and cannot be downloaded (no route to host); put ")
    assert "\n" not in message
    assert all(file in message for file in (*release.other_files, release.weights))
    assert f"https://huggingface.co/{release.name}/tree/{release.revision}" in message
    assert str(release.snapshot) in message
    assert not release.openai_file or f"OpenAI's {release.openai_file} into {empty_home}/.cache/clip" in message


@pytest.mark.parametrize(
    ("endpoint", "proxy"),
    [
        ("https://hub.invalid", ""),  # a name that by its standard never exists
        ("http://127.0.0.1:{closed}", ""),
        ("https://huggingface.co", "http://127.0.0.1:{closed}"),
        ("huggingface.co", ""),  # no address at all
    ],
)
def test_an_unreachable_hub_is_tried_once(published, monkeypatch, endpoint, proxy):
    fake_hub, port = FakeHub(published), closed_port()
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake_hub)
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, proxy.format(closed=port))
    for variable in ("no_proxy", "NO_PROXY"):  # as the program itself sets it
        monkeypatch.setenv(variable, "localhost")
    monkeypatch.setenv("HF_ENDPOINT", endpoint.format(closed=port))
    with pytest.raises(ModelError, match=r"is not on this machine and cannot be downloaded \(.+\); put config\.json"):
        load_clip(NAME)
    assert fake_hub.asked == []


def test_files_are_requested_from_any_hub_that_responds(monkeypatch):
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # which answers 501 to everything
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert known_models._hub_error() == ""
        server.shutdown()


def test_files_in_the_named_folder_are_found(no_network, published):
    with pytest.raises(ModelError) as caught:
        load_clip(NAME)
    folder = re.search(r" into (/.+?snapshots/\w+)", str(caught.value))[1]
    shutil.copytree(published, folder)
    assert load_clip(NAME).image_size == 28
    assert load_clip("openai/clip-vit-base-patch32").name == "openai/clip-vit-base-patch32"


@pytest.mark.parametrize(
    ("variable", "below"),
    [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub"), (None, ".cache/huggingface/hub")],
)
def test_the_default_cache_folder_is_that_of_huggingface_hub(
    variable, below, no_network, published, empty_home, monkeypatch
):
    root = empty_home / "elsewhere" if variable else empty_home
    if variable:
        monkeypatch.setenv(variable, str(root))
    shutil.copytree(published, snapshot_in(root / below))
    assert load_clip(NAME).image_size == 28


def test_a_snapshot_without_its_weights_is_not_complete(no_network, published, empty_home):
    folder = shutil.copytree(published, snapshot_in(empty_home / ".cache/huggingface/hub"))
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="is not on this machine"):
        load_clip(NAME)


def release_of(folder, **changes):
    """The real release, but with the checksums of the small model's files."""
    digest = hashlib.sha256((folder / "pytorch_model.bin").read_bytes()).hexdigest()
    real = known_models.RELEASES[NAME]
    return replace(real, sha256=changes.get("sha256", digest), openai_file="")


class FakeHub:
    """Downloads by copying, as the library lays it out: a blob, and a link to it."""

    def __init__(self, folder):
        self.folder, self.asked = folder, []

    def __call__(self, repository, file, *, revision, cache_dir):
        self.asked.append((repository, file, revision))
        link = snapshot_in(cache_dir) / file
        blob = link.parents[2] / "blobs" / file
        for path in (link, blob):
            path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder / file, blob)
        link.symlink_to(blob)
        return str(link)


@pytest.fixture
def fake_hub(published, monkeypatch):
    fake = FakeHub(published)
    monkeypatch.setattr(known_models, "_hub_error", lambda: "")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake)
    monkeypatch.setitem(known_models.RELEASES, NAME, release_of(published))
    return fake


def test_a_model_is_downloaded_once_at_its_commit_with_the_weights_last(fake_hub):
    assert load_clip(NAME).image_size == 28
    assert load_clip(NAME).image_size == 28
    assert [file for _, file, _ in fake_hub.asked] == [*known_models.RELEASES[NAME].other_files, "pytorch_model.bin"]
    assert {(repository, revision) for repository, _, revision in fake_hub.asked} == {
        ("openai/clip-vit-base-patch32", COMMIT)
    }


def test_a_downloaded_file_with_a_wrong_checksum_is_removed(fake_hub, published, monkeypatch, empty_home):
    monkeypatch.setitem(known_models.RELEASES, NAME, release_of(published, sha256="0" * 64))
    with pytest.raises(
        ModelError, match=r"pytorch_model\.bin: is not the published file: its sha256 is \w{64}, not 0{64}"
    ):
        load_clip(NAME)
    left = {file.name for file in empty_home.rglob("*") if file.is_file() or file.is_symlink()}
    assert left == set(known_models.RELEASES[NAME].other_files)


def put_original(home, monkeypatch, sha256=None):
    file = home / ".cache/clip/ViT-B-32.pt"
    file.parent.mkdir(parents=True)
    torch.save(in_openai_layout(tiny_model(vision={"num_attention_heads": 1}, text={"num_attention_heads": 1})), file)
    real = known_models.RELEASES[NAME]
    digest = sha256 or hashlib.sha256(file.read_bytes()).hexdigest()
    small = replace(real, openai_sha256=digest)
    monkeypatch.setitem(known_models.RELEASES, NAME, small)


def test_a_file_in_the_cache_of_openais_package_is_found(no_network, empty_home, monkeypatch):
    put_original(empty_home, monkeypatch)
    assert load_clip(NAME).image_size == 28


def test_a_file_in_the_cache_of_openais_package_must_have_the_checksum(no_network, empty_home, monkeypatch):
    put_original(empty_home, monkeypatch, sha256="1" * 64)
    with pytest.raises(ModelError, match=r"ViT-B-32\.pt: is not the published file"):
        load_clip(NAME)


def test_without_huggingface_hub_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install 'fedcopl\[hub\]'"):
        load_clip(NAME)


@pytest.mark.parametrize(
    ("name", "near"),
    [("ViT-B/23", "ViT-B/32"), ("vit-l/14", "ViT-L/14"), ("RN-50", "RN50"), ("glyphclip", "glyph-clip")],
)
def test_the_error_for_an_unknown_model_lists_models_and_a_suggestion(name, near):
    with pytest.raises(ModelError) as caught:
        load_clip(name)
    message = str(caught.value)
    assert message.endswith(f"did you mean {near}?")
    assert all(known in message for known in ("glyph-clip", *known_models.RELEASES))


def test_an_unsimilar_name_gets_no_suggestion():
    with pytest.raises(ModelError) as caught:
        load_clip("/no/such/place/xyzzy")
    assert "did you mean" not in str(caught.value)


def test_an_existing_folder_takes_precedence_over_a_known_name(no_network, published, empty_home, monkeypatch):
    monkeypatch.chdir(empty_home)
    shutil.copytree(published, empty_home / "ViT-B/32")
    assert load_clip(NAME).image_size == 28


@pytest.mark.parametrize(
    "release",
    sorted({*known_models.RELEASES.values()}, key=lambda release: release.name),
    ids=lambda release: release.name,
)
def test_releases_are_pinned(release):
    assert re.fullmatch(r"[0-9a-f]{40}", release.revision)
    digests = [release.sha256] if release.sha256 else []
    digests += [release.openai_sha256] if release.openai_file else []
    assert digests
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests)

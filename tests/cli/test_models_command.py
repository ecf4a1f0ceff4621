"""`fedcopl models`, as a user types it."""

import json

import pytest
from typer.testing import CliRunner

from fedcopl.cli import app
from fedcopl.errors import ConfigError, ModelError


def fedcopl(*words):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_has_whether_a_model_loads():
    lines = fedcopl("models", "list").splitlines()
    assert any("google/siglip2-base-patch16-224" in line and "Apache-2.0" in line and " yes" in line for line in lines)
    assert any("apple/MobileCLIP-B-OpenCLIP" in line and " no" in line for line in lines)


def test_show_prints_the_revision():
    seen = fedcopl("models", "show", "google/siglip2-base-patch16-224")
    assert "revision    75de2d55ec2d0b4efc50b3e9ad70dba96a7b2fa2" in seen
    assert "fetch       yes" in seen


def test_show_takes_openai_names_as_settings_do():
    seen = fedcopl("models", "show", "ViT-B/32")
    assert "name        openai/clip-vit-base-patch32\n" in seen
    [files] = [line.split(maxsplit=1)[1] for line in seen.splitlines() if line.startswith("files ")]
    assert {"config.json", "tokenizer.json"} < set(files.split(", "))  # docs/install.md: to copy them without a network


def test_check_prints_the_format_of_a_checkpoint():
    seen = fedcopl("models", "check", "glyph-clip")
    assert "format      a Hugging Face folder of a CLIP\nloads       yes\n" in seen
    assert "images      32 x 32" in seen


def test_check_prints_why_a_checkpoint_does_not_load(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "siglip2"}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    result = CliRunner().invoke(app, ["models", "check", str(tmp_path)])
    assert "a Hugging Face folder of a 'siglip2'\nloads       no\n" in result.stdout
    assert isinstance(result.exception, ModelError)
    assert "The most similar supported model is google/siglip2-base-patch16-224" in str(result.exception)


def test_fetch_of_the_built_in_model_prints_its_folder():
    assert fedcopl("models", "fetch", "glyph-clip").strip().endswith("glyph_clip")


@pytest.mark.parametrize(
    ("name", "why"),
    [("apple/MobileCLIP-B-OpenCLIP", "cannot be loaded"), ("Zilun/GeoRSCLIP", "download it yourself and use its path")],
)
def test_fetch_of_a_model_without_a_release_is_an_error(name, why):
    result = CliRunner().invoke(app, ["models", "fetch", name])
    assert isinstance(result.exception, ConfigError)
    assert why in str(result.exception)

"""Known models: table of published checkpoints, search in the usual caches, download from the Hugging Face hub.

`known_models.toml` lists the checkpoints. `measured_models.json` is written by `tools/measure_models.py`, with random
weights of the published configuration.
"""

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from ssl import SSLError
from typing import Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ..errors import ModelError, did_you_mean
from ..plurals import counted

MEASURED = Path(__file__).with_name("measured_models.json")
BUILT_IN = {"glyph-clip": Path(__file__).with_name("glyph_clip")}
_HUGGING_FACE_FILES = ("config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
_OPEN_CLIP_FILES = ("open_clip_config.json",)
_TIMEOUT = 5.0  # seconds for a reply of the hub


@dataclass(frozen=True)
class KnownModel:
    """A published checkpoint; one with `weights` can be downloaded at its pinned commit."""

    name: str  # repository on the hub
    purpose: str
    licence: str
    layout: Literal["hugging face", "open_clip", "bare file"]
    revision: str = ""  # pinned commit
    weights: str = ""
    sha256: str | None = None  # of the weights; None if unknown
    other_files: tuple[str, ...] = _HUGGING_FACE_FILES  # downloaded with the weights; the first is required
    openai_file: str = ""  # OpenAI's own file, as in the cache of their package
    openai_sha256: str = ""
    loads: bool = True
    hint: str = ""  # for the user
    is_listed: bool = True  # by `fedcopl models list`

    @property
    def snapshot(self) -> Path:
        """Folder of the model in the cache of `huggingface_hub`."""
        user_cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
        home = os.environ.get("HF_HOME") or user_cache / "huggingface"
        hub_cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
        return hub_cache / f"models--{self.name.replace('/', '--')}" / "snapshots" / self.revision

    @property
    def openai_path(self) -> Path | None:
        """OpenAI's file in the cache of their package, whether it is there or not."""
        return Path("~/.cache/clip").expanduser() / self.openai_file if self.openai_file else None


def _read_table() -> Iterator[KnownModel]:
    for row in tomllib.loads(Path(__file__).with_name("known_models.toml").read_text("utf-8"))["model"]:
        files = _OPEN_CLIP_FILES if row["layout"] == "open_clip" else _HUGGING_FACE_FILES
        yield KnownModel(**row | {"other_files": tuple(row.get("other_files", files))})


_BY_NAME = {model.name: model for model in _read_table()}
KNOWN_MODELS = tuple(model for model in _BY_NAME.values() if model.is_listed)
_OPENAI_NAMES = {
    "ViT-B/32": "openai/clip-vit-base-patch32",
    "ViT-B/16": "openai/clip-vit-base-patch16",
    "ViT-L/14": "openai/clip-vit-large-patch14",
    "RN50": "timm/resnet50_clip.openai",
}
RELEASES = {name: _BY_NAME[repository] for name, repository in _OPENAI_NAMES.items()} | {
    name: model for name, model in _BY_NAME.items() if model.weights
}
"""Models that can be downloaded, by repository and by OpenAI's names."""


@dataclass(frozen=True)
class _MeasuredModel:
    """Random weights of a model's true shape, loaded and run on one core in fp32."""

    parameters: int
    memory: float  # peak GB of a process
    seconds: float  # CPU time of 1,000 images
    images: int  # number of measured images


@cache
def measured() -> Mapping[str, _MeasuredModel]:
    """Return the measurements by name of the model."""
    return {name: _MeasuredModel(**values) for name, values in json.loads(MEASURED.read_text("utf-8")).items()}


def known_model(name: str) -> KnownModel:
    """Return a model by name; raises ModelError with the nearest name."""
    by_name = {model.name: model for model in KNOWN_MODELS}
    if name in by_name:
        return by_name[name]
    containing = next((other for other in by_name if name.lower() in other.lower()), name)
    hint = did_you_mean(containing, by_name, cutoff=0.3)
    raise ModelError(f"{name}: is not a known model; `fedcopl models list` prints all of them{hint}")


def describe_known_model(model: KnownModel) -> Iterator[tuple[str, str]]:
    """Describe a model, line by line."""
    yield "name", model.name
    yield "for", model.purpose
    yield "licence", model.licence
    yield "format", model.layout
    yield "revision", model.revision or "none pinned"
    yield "fetch", "yes" if model.weights else "no: download it yourself"
    yield "loads", "yes" if model.loads else "no: `fedcopl models check` prints the reason"
    if model.hint:
        yield "note", model.hint
    numbers = measured().get(model.name)
    if numbers is None:
        yield "measured", "no"
        return
    yield "weights", f"{numbers.parameters:,}"
    yield "memory", f"{numbers.memory:.1f} GB"
    images = counted(numbers.images, "image")
    yield (
        "time",
        f"{numbers.seconds:,.0f} s of one core for 1,000 images, extrapolated from {images} with random weights",
    )


def locate(name_or_path: str | Path) -> Path:
    """Return the folder or file of a model: a path, or a known name's files in a cache or from the hub.

    Raises:
        ModelError: The name is not known, or its files cannot be downloaded.
    """
    name = str(name_or_path)
    if name in BUILT_IN:
        return BUILT_IN[name]
    if Path(name_or_path).exists():
        return Path(name_or_path)
    check_model_name(name)
    return find_cached(name) or _download(name)


def check_model_name(name: str) -> None:
    """Raise ModelError for a name that is neither a path nor a known model, with the nearest known name."""
    if name in BUILT_IN or name in RELEASES or Path(name).exists():
        return
    known = [*BUILT_IN, *RELEASES]
    hint = did_you_mean(name, known, cutoff=0.5)
    raise ModelError(f"{name}: no such file or folder, and not one of the known models {', '.join(known)}{hint}")


def find_cached(name: str, *, verify: bool = False) -> Path | None:
    """Return a known model's folder or file in a cache, or None.

    Args:
        name: A key of `RELEASES`.
        verify: Also verify the checksum of a snapshot of the hub, which takes seconds.

    Raises:
        ModelError: A file is not the published one.
    """
    model = RELEASES[name]
    if all((model.snapshot / file).is_file() for file in (model.weights, model.other_files[0])):
        if verify and model.sha256:
            _verify(model.snapshot / model.weights, model.sha256)
        return model.snapshot
    if model.openai_path and model.openai_path.is_file():
        _verify(model.openai_path, model.openai_sha256)
        return model.openai_path
    return None


def _download(name: str) -> Path:
    """Fetch a known model from the hub; the error of a failure says which files to put where."""
    model = RELEASES[name]
    files = (*model.other_files, model.weights)  # the weights last: a snapshot without them is not complete
    source = f"https://huggingface.co/{model.name}/tree/{model.revision}"
    by_hand = f"put {', '.join(files)} of {source} into {model.snapshot}"
    if model.openai_path:
        by_hand += f" or OpenAI's {model.openai_file} into {model.openai_path.parent}"
    try:
        from huggingface_hub import hf_hub_download

        reason = _hub_error()
        for file in () if reason else files:
            hf_hub_download(model.name, file, revision=model.revision, cache_dir=model.snapshot.parents[2])
    except ImportError:
        reason = "huggingface_hub is not installed: pip install 'fedcopl[hub]'"
    except Exception as error:  # of several network libraries
        reason = str(error).partition("\n")[0] or type(error).__name__
    if reason:
        raise ModelError(f"{name}: is not here and cannot be fetched ({reason}); {by_hand}")
    weights = model.snapshot / model.weights
    try:
        if model.sha256:
            _verify(weights, model.sha256)
    except ModelError:
        blob = weights.resolve()
        weights.unlink()
        blob.unlink(missing_ok=True)
        raise
    return model.snapshot


def _hub_error() -> str:
    """Return why the hub is unreachable, by one short request; empty if it is reachable.

    `huggingface_hub` would retry for half a minute and print every attempt.
    """
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        urlopen(Request(hub, method="HEAD"), timeout=_TIMEOUT).close()
    except HTTPError:
        return ""  # reachable
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)  # as urllib wraps it
        # The library may trust other certificates.
        return "" if isinstance(reason, SSLError) else f"{hub}: {getattr(reason, 'strerror', None) or reason}"
    return ""


def _verify(file: Path, sha256: str) -> None:
    """Raise ModelError if the file is not the published one."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != sha256:
        raise ModelError(f"{file}: is not the published file: its sha256 is {digest}, not {sha256}")

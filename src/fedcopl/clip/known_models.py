"""Known models: published checkpoints (`known_models.toml`), their files in caches, and download from the hub."""

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
_TIMEOUT = 5.0  # seconds to wait for a response of the hub


@dataclass(frozen=True)
class KnownModel:
    """A published checkpoint; it can be downloaded at its pinned commit if `weights` are named."""

    name: str  # repository on the hub
    purpose: str
    licence: str
    layout: Literal["hugging face", "open_clip", "bare file"]
    revision: str = ""  # pinned commit
    weights: str = ""  # file name
    sha256: str | None = None  # of the weights; None if unknown
    other_files: tuple[str, ...] = _HUGGING_FACE_FILES  # downloaded with the weights; the first is required
    openai_file: str = ""  # name in the cache of OpenAI's package
    openai_sha256: str = ""
    loads: bool = True  # whether fedcopl supports the model
    hint: str = ""  # for the user
    is_listed: bool = True  # in the output of `fedcopl models list`

    @property
    def snapshot(self) -> Path:
        """The model's folder in the cache of `huggingface_hub`, which may not exist."""
        user_cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
        home = os.environ.get("HF_HOME") or user_cache / "huggingface"
        hub_cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
        return hub_cache / f"models--{self.name.replace('/', '--')}" / "snapshots" / self.revision

    @property
    def openai_path(self) -> Path | None:
        """The model's file in the cache of OpenAI's package, which may not exist."""
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
    """Cost of a model with random weights of its true shapes, on one core in fp32 (`tools/measure_models.py`)."""

    parameters: int
    memory: float  # peak of a process in GB
    seconds: float  # CPU time for 1,000 images
    images: int  # number of encoded images


@cache
def measured() -> Mapping[str, _MeasuredModel]:
    """Return the measured cost by the name of the model."""
    return {name: _MeasuredModel(**values) for name, values in json.loads(MEASURED.read_text("utf-8")).items()}


def known_model(name: str) -> KnownModel:
    """Return a listed model by its name; the error for an unknown name suggests the most similar one."""
    by_name = {model.name: model for model in KNOWN_MODELS}
    if name in by_name:
        return by_name[name]
    similar = next((other for other in by_name if name.lower() in other.lower()), name)
    hint = did_you_mean(similar, by_name, cutoff=0.3)
    raise ModelError(f"{name}: is not a known model; `fedcopl models list` prints all of them{hint}")


def describe_known_model(model: KnownModel) -> Iterator[tuple[str, str]]:
    """Yield the properties of a known model as titles and texts."""
    yield "name", model.name
    yield "for", model.purpose
    yield "licence", model.licence
    yield "format", model.layout
    yield "revision", model.revision or "none pinned"
    yield "fetch", "yes" if model.weights else "no: download it yourself"
    yield "loads", "yes" if model.loads else "no: `fedcopl models check` prints the reason"
    if model.hint:
        yield "note", model.hint
    cost = measured().get(model.name)
    if cost is None:
        yield "measured", "no"
        return
    yield "weights", f"{cost.parameters:,}"
    yield "memory", f"{cost.memory:.1f} GB"
    images = f"extrapolated from {counted(cost.images, 'image')} with random weights"
    yield "time", f"{cost.seconds:,.0f} s of one core for 1,000 images, {images}"


def locate(name_or_path: str | Path) -> Path:
    """Return the folder or file of a model: the path itself, or a known model's files, downloaded if necessary.

    Raises:
        ModelError: The model is not known, or its files cannot be downloaded.
    """
    name = str(name_or_path)
    if name in BUILT_IN:
        return BUILT_IN[name]
    if Path(name_or_path).exists():
        return Path(name_or_path)
    check_model_name(name)
    return find_cached(name) or _download(name)


def check_model_name(name: str) -> None:
    """Raise ModelError for a name that is neither a path nor a known model."""
    if name in BUILT_IN or name in RELEASES or Path(name).exists():
        return
    known = [*BUILT_IN, *RELEASES]
    hint = did_you_mean(name, known, cutoff=0.5)
    raise ModelError(f"{name}: no such file or folder, and not one of the known models {', '.join(known)}{hint}")


def find_cached(name: str, *, verify: bool = False) -> Path | None:
    """Return the folder or file of a known model in a cache, or None.

    Args:
        name: A key of `RELEASES`.
        verify: Whether to verify the checksum of files from the hub too, which takes seconds.

    Raises:
        ModelError: The checksum of a file is wrong.
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
    """Download a known model from the hub; the error message of a failure describes the manual download."""
    model = RELEASES[name]
    files = (*model.other_files, model.weights)  # weights last: `find_cached` requires them
    source = f"https://huggingface.co/{model.name}/tree/{model.revision}"
    manual_download = f"put {', '.join(files)} of {source} into {model.snapshot}"
    if model.openai_path:
        manual_download += f" or OpenAI's {model.openai_file} into {model.openai_path.parent}"
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
        raise ModelError(f"{name}: is not on this machine and cannot be downloaded ({reason}); {manual_download}")
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
    """Return the reason why the hub is unreachable, or an empty text.

    One request with a short timeout: `huggingface_hub` would retry for half a minute and print every attempt.
    """
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        urlopen(Request(hub, method="HEAD"), timeout=_TIMEOUT).close()
    except HTTPError:
        return ""  # reachable
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)  # URLError wraps the cause
        # huggingface_hub may trust other certificates than urllib.
        return "" if isinstance(reason, SSLError) else f"{hub}: {getattr(reason, 'strerror', None) or reason}"
    return ""


def _verify(file: Path, sha256: str) -> None:
    """Raise ModelError if the checksum of a file is wrong."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != sha256:
        raise ModelError(f"{file}: is not the published file: its sha256 is {digest}, not {sha256}")

"""Known models: table of published checkpoints, search in the usual caches, download from the Hugging Face hub.

`measured_models.json` is written by `tools/measure_models.py`, with random weights of the published configuration.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from ssl import SSLError
from typing import Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ..errors import ModelError
from ..plurals import counted

MEASURED = Path(__file__).with_name("measured_models.json")
BUILT_IN = {"glyph-clip": Path(__file__).with_name("glyph_clip")}
_HUGGING_FACE_FILES = ("config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
_OPEN_CLIP_FILES = ("open_clip_config.json",)
_TIMEOUT = 5.0  # seconds for a reply of the hub
_GELU_HINT = "a bare file: set model.activation=gelu"


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


_VIT_B_16 = KnownModel(
    "openai/clip-vit-base-patch16",
    "photographs; the paper's",
    "MIT",
    "hugging face",
    revision="57c216476eefef5ab752ec549e440a49ae4ae5f3",
    weights="pytorch_model.bin",
    openai_file="ViT-B-16.pt",
    openai_sha256="5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f",
)
_VIT_B_32 = KnownModel(
    "openai/clip-vit-base-patch32",
    "photographs, four times as fast",
    "MIT",
    "hugging face",
    revision="3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268",
    weights="pytorch_model.bin",
    sha256="a63082132ba4f97a80bea76823f544493bffa8082296d62d71581a4feff1576f",
    openai_file="ViT-B-32.pt",
    openai_sha256="40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af",
)
_VIT_L_14 = KnownModel(
    "openai/clip-vit-large-patch14",
    "photographs, with a GPU",
    "MIT",
    "hugging face",
    revision="32bd64288804d66eefd0ccbe215aa642df71cc41",
    weights="model.safetensors",
    sha256="a2bf730a0c7debf160f7a6b50b3aaf3703e7e88ac73de7a314903141db026dcb",
    openai_file="ViT-L-14.pt",
    openai_sha256="b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836",
)
_RN50 = KnownModel(  # not measured, so it is not in the table
    "timm/resnet50_clip.openai",
    "photographs",
    "MIT",
    "open_clip",
    revision="ec3d92cf63a5f9d591f0d611b736895966c73076",
    weights="open_clip_model.safetensors",
    sha256="da0baa37fb2211eee5729ab69ed587eb10d48f5b7076ceeed01552fc3d4cb4ee",
    other_files=_OPEN_CLIP_FILES,
    openai_file="RN50.pt",
    openai_sha256="afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762",
)
KNOWN_MODELS = (
    KnownModel(
        "google/siglip2-base-patch16-224",
        "photographs, class names in many languages",
        "Apache-2.0",
        "hugging face",
        revision="75de2d55ec2d0b4efc50b3e9ad70dba96a7b2fa2",
        weights="model.safetensors",
        sha256="612923381c76ec5a9bed335d1c48827e3f2e506ac31b044b63b2031fadee6a0b",
    ),
    KnownModel(
        "google/siglip-base-patch16-224",
        "photographs",
        "Apache-2.0",
        "hugging face",
        revision="7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed",
        weights="model.safetensors",
        sha256="2c63cb7d1f2e95ba501893cbb8faeb4ea9a3af295498d35097126228659c2af8",
    ),
    KnownModel(
        "google/siglip-so400m-patch14-384",
        "photographs, with a GPU",
        "Apache-2.0",
        "hugging face",
        revision="9fdffc58afc957d1a03a25b10dba0329ab15c2a3",
    ),
    KnownModel(
        "google/medsiglip-448",
        "medicine: X-rays, skin, eyes, tissue",
        "Health AI Developer Foundations terms",
        "hugging face",
        hint="its terms must be agreed to on the hub before it can be fetched",
        revision="9cea28a1a1195f665105faa6e8544c112fd960a4",
    ),
    KnownModel(
        "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224",
        "medicine: figures of papers, all kinds of images",
        "MIT",
        "open_clip",
        revision="9f341de24bfb00180f1b847274256e9b65a3a32e",
        weights="open_clip_pytorch_model.bin",
        sha256="52cc993c5c5ff962bd0c60931874bc001e7e9b41666a385530f4a036294576be",
        other_files=(*_OPEN_CLIP_FILES, "tokenizer.json", "tokenizer_config.json"),
    ),
    KnownModel(
        "imageomics/bioclip",
        "species",
        "MIT",
        "open_clip",
        revision="ce901ab3c6a913f9e9ef94ce6d27761069f4f01c",
        weights="open_clip_pytorch_model.bin",
        sha256="e380384f0c30d425d8c6c40f24471f9dd497fbdfa734a89c461a94aee95f0ef4",
        other_files=_OPEN_CLIP_FILES,
    ),
    KnownModel(
        "chendelong/RemoteCLIP",
        "satellite and aerial images",
        "Apache-2.0",
        "bare file",
        hint=_GELU_HINT,
        revision="bf1d8a3ccf2ddbf7c875705e46373bfe542bce38",
    ),
    KnownModel("Zilun/GeoRSCLIP", "satellite and aerial images", "see its repository", "bare file", hint=_GELU_HINT),
    _VIT_B_16,
    _VIT_B_32,
    _VIT_L_14,
    KnownModel("facebook/metaclip-b16-fullcc2.5b", "photographs", "CC-BY-NC-4.0: non-commercial", "hugging face"),
    KnownModel("apple/DFN2B-CLIP-ViT-B-16", "photographs", "Apple's own: see its repository", "open_clip"),
    KnownModel(
        "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
        "photographs",
        "MIT",
        "open_clip",
        revision="1a25a446712ba5ee05982a381eed697ef9b435cf",
        weights="open_clip_model.safetensors",
        sha256="ac4f8c4b88af6d963118cbf40ad93176d092abbedfcb752601ae1866352656e6",
        other_files=_OPEN_CLIP_FILES,
    ),
    KnownModel(
        "wkcn/TinyCLIP-ViT-40M-32-Text-19M-LAION400M",
        "a small machine",
        "MIT",
        "hugging face",
        revision="95ec8197b3f2fe7f747865c61ca556cf0768b2f7",
    ),
    KnownModel("timm/eva02_base_patch16_clip_224.merged2b", "photographs", "MIT", "open_clip", loads=False),
    KnownModel(
        "apple/MobileCLIP-B-OpenCLIP", "a small machine", "Apple's own: see its repository", "open_clip", loads=False
    ),
    KnownModel(
        "apple/MobileCLIP-S2-OpenCLIP", "a small machine", "Apple's own: see its repository", "open_clip", loads=False
    ),
    KnownModel(
        "google/siglip2-base-patch16-naflex", "photographs of any shape", "Apache-2.0", "hugging face", loads=False
    ),
    KnownModel(
        "facebook/metaclip-2-worldwide-b16",
        "photographs, class names in many languages",
        "CC-BY-NC-4.0: non-commercial",
        "hugging face",
        loads=False,
    ),
)
RELEASES = {"ViT-B/32": _VIT_B_32, "ViT-B/16": _VIT_B_16, "ViT-L/14": _VIT_L_14, "RN50": _RN50} | {
    model.name: model for model in (_RN50, *KNOWN_MODELS) if model.weights
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
    containing = [other for other in by_name if name.lower() in other.lower()]
    close_matches = containing or difflib.get_close_matches(name, by_name, n=1, cutoff=0.3)
    hint = f"; did you mean {close_matches[0]}?" if close_matches else ""
    raise ModelError(f"{name}: is not in the table; `fedcopl models list` prints it{hint}")


def about(model: KnownModel) -> Iterator[tuple[str, str]]:
    """Describe a model, line by line."""
    yield "name", model.name
    yield "for", model.purpose
    yield "licence", model.licence
    yield "form", model.layout
    yield "revision", model.revision or "none pinned"
    yield "fetch", "yes" if model.weights else "by hand"
    yield "loads", "yes" if model.loads else "no: `fedcopl models check` says why"
    if model.hint:
        yield "note", model.hint
    numbers = measured().get(model.name)
    if numbers is None:
        yield "measured", "no"
        return
    yield "weights", f"{numbers.parameters:,}"
    yield "memory", f"{numbers.memory:.1f} GB"
    images = counted(numbers.images, "image")
    yield "time", f"{numbers.seconds:,.0f} s of one core for 1,000 images, by {images} of random weights"


def locate(name_or_path: str | Path) -> Path:
    """Return the folder or file of a model; an existing path takes precedence over a known name."""
    name = str(name_or_path)
    if name in BUILT_IN:
        return BUILT_IN[name]
    if Path(name_or_path).exists():
        return Path(name_or_path)
    refuse_unknown(name)
    return find_or_download(name)


def refuse_unknown(name: str) -> None:
    """Raise ModelError for a name that is neither a path nor a known model, with the nearest known name."""
    if name in BUILT_IN or name in RELEASES or Path(name).exists():
        return
    known = [*BUILT_IN, *RELEASES]
    close_matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {close_matches[0]}?" if close_matches else ""
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


def find_or_download(name: str) -> Path:
    """Return the files of a known model, from a cache or from the hub.

    Raises:
        ModelError: It cannot be downloaded; the message says which files to put where.
    """
    model = RELEASES[name]
    return find_cached(name) or _download(name, model)


def _download(name: str, model: KnownModel) -> Path:
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

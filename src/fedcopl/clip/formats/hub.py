"""Known models by name: found in the usual caches, or downloaded into them."""

import difflib
import hashlib
import os
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from ssl import SSLError
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ...errors import ModelError

HUGGING_FACE_FILES = ("config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
TIMEOUT = 5.0  # seconds for a reply of the hub
OPEN_CLIP_FILES = ("open_clip_config.json",)
BUILT_IN = {"glyph-clip": Path(__file__).parents[1] / "glyph_clip"}


@dataclass(frozen=True)
class Original:
    """OpenAI's file of a model, as in the cache of their package."""

    name: str
    sha256: str


@dataclass(frozen=True)
class WeightsRelease:
    """A model on the Hugging Face hub, pinned to a commit."""

    repository: str
    revision: str
    weights: str
    sha256: str | None  # of the weights; None if unknown
    other_files: tuple[str, ...] = HUGGING_FACE_FILES  # the first is required
    original: Original | None = None

    @property
    def snapshot(self) -> Path:
        return _hub_cache() / f"models--{self.repository.replace('/', '--')}" / "snapshots" / self.revision


VIT_B_32 = WeightsRelease(
    "openai/clip-vit-base-patch32",
    "3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268",
    "pytorch_model.bin",
    "a63082132ba4f97a80bea76823f544493bffa8082296d62d71581a4feff1576f",
    original=Original("ViT-B-32.pt", "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af"),
)
VIT_B_16 = WeightsRelease(
    "openai/clip-vit-base-patch16",
    "57c216476eefef5ab752ec549e440a49ae4ae5f3",
    "pytorch_model.bin",
    None,
    original=Original("ViT-B-16.pt", "5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f"),
)
VIT_L_14 = WeightsRelease(
    "openai/clip-vit-large-patch14",
    "32bd64288804d66eefd0ccbe215aa642df71cc41",
    "model.safetensors",
    "a2bf730a0c7debf160f7a6b50b3aaf3703e7e88ac73de7a314903141db026dcb",
    original=Original("ViT-L-14.pt", "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836"),
)
RN50 = WeightsRelease(
    "timm/resnet50_clip.openai",
    "ec3d92cf63a5f9d591f0d611b736895966c73076",
    "open_clip_model.safetensors",
    "da0baa37fb2211eee5729ab69ed587eb10d48f5b7076ceeed01552fc3d4cb4ee",
    OPEN_CLIP_FILES,
    original=Original("RN50.pt", "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762"),
)
LAION_B_32 = WeightsRelease(
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
    "1a25a446712ba5ee05982a381eed697ef9b435cf",
    "open_clip_model.safetensors",
    "ac4f8c4b88af6d963118cbf40ad93176d092abbedfcb752601ae1866352656e6",
    OPEN_CLIP_FILES,
)
SIGLIP_B_16 = WeightsRelease(
    "google/siglip-base-patch16-224",
    "7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed",
    "model.safetensors",
    "2c63cb7d1f2e95ba501893cbb8faeb4ea9a3af295498d35097126228659c2af8",
)
SIGLIP_2_B_16 = WeightsRelease(
    "google/siglip2-base-patch16-224",
    "75de2d55ec2d0b4efc50b3e9ad70dba96a7b2fa2",
    "model.safetensors",
    "612923381c76ec5a9bed335d1c48827e3f2e506ac31b044b63b2031fadee6a0b",
)
BIOMED_CLIP = WeightsRelease(
    "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224",
    "9f341de24bfb00180f1b847274256e9b65a3a32e",
    "open_clip_pytorch_model.bin",
    "52cc993c5c5ff962bd0c60931874bc001e7e9b41666a385530f4a036294576be",
    (*OPEN_CLIP_FILES, "tokenizer.json", "tokenizer_config.json"),
)
BIOCLIP = WeightsRelease(
    "imageomics/bioclip",
    "ce901ab3c6a913f9e9ef94ce6d27761069f4f01c",
    "open_clip_pytorch_model.bin",
    "e380384f0c30d425d8c6c40f24471f9dd497fbdfa734a89c461a94aee95f0ef4",
    OPEN_CLIP_FILES,
)
NEWER = (SIGLIP_B_16, SIGLIP_2_B_16, BIOMED_CLIP, BIOCLIP)
SHORT_NAMES = {"ViT-B/32": VIT_B_32, "ViT-B/16": VIT_B_16, "ViT-L/14": VIT_L_14, "RN50": RN50}
RELEASES = SHORT_NAMES | {r.repository: r for r in (VIT_B_32, VIT_B_16, VIT_L_14, RN50, LAION_B_32, *NEWER)}


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
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ModelError(f"{name}: no such file or folder, and none of the known models {', '.join(known)}{hint}")


def find_or_download(name: str) -> Path:
    """Return the files of a known model, from a cache or from the hub."""
    release = RELEASES[name]
    if all((release.snapshot / file).is_file() for file in (release.weights, release.other_files[0])):
        return release.snapshot
    original = release.original and openai_cache() / release.original.name
    if release.original and original and original.is_file():
        check_sum(original, release.original.sha256)
        return original
    return _fetch(name, release)


def _hub_cache() -> Path:
    """Return the cache folder of `huggingface_hub`."""
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = os.environ.get("HF_HOME") or user_cache / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def openai_cache() -> Path:
    """Return the cache folder of OpenAI's package."""
    return Path("~/.cache/clip").expanduser()


def _fetch(name: str, release: WeightsRelease) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        why = "huggingface_hub is not installed: pip install 'fedcopl[hub]'"
        raise ModelError(_by_hand(name, release, why)) from error
    why = why_unreachable()
    if why:
        raise ModelError(_by_hand(name, release, why))
    try:
        # The weights come last: a snapshot without them is not complete.
        for file in (*release.other_files, release.weights):
            hf_hub_download(release.repository, file, revision=release.revision, cache_dir=_hub_cache())
    except Exception as error:  # of several network libraries
        raise ModelError(_by_hand(name, release, str(error).partition("\n")[0])) from error
    if release.sha256:
        _keep_if_sound(release.snapshot / release.weights, release.sha256)
    return release.snapshot


def why_unreachable() -> str:
    """Return why the hub is unreachable, by one short request; empty if it is reachable.

    `huggingface_hub` would retry for half a minute and print every attempt.
    """
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        urlopen(Request(hub, method="HEAD"), timeout=TIMEOUT).close()
    except HTTPError:
        return ""  # reachable
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)  # as urllib wraps it
        # The library may trust other certificates.
        return "" if isinstance(reason, SSLError) else f"{hub}: {getattr(reason, 'strerror', None) or reason}"
    return ""


def _by_hand(name: str, release: WeightsRelease, why: str) -> str:
    """Error message: why a model cannot be downloaded, and which files to put where."""
    source = f"https://huggingface.co/{release.repository}/tree/{release.revision}"
    files = ", ".join((*release.other_files, release.weights))
    message = f"{name}: is not here and cannot be fetched ({why}); put {files} of {source} into {release.snapshot}"
    if release.original:
        message += f" or OpenAI's {release.original.name} into {openai_cache()}"
    return message


def _keep_if_sound(file: Path, sha256: str) -> None:
    """Verify the checksum of a download and remove it from the cache if it is wrong."""
    try:
        check_sum(file, sha256)
    except ModelError:
        blob = file.resolve()
        file.unlink()
        blob.unlink(missing_ok=True)
        raise


def check_sum(file: Path, sha256: str) -> None:
    """Raise ModelError if the file is not the published one."""
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != sha256:
        raise ModelError(f"{file}: is not the published file: its sha256 is {found}, not {sha256}")

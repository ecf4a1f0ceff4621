"""Table of published models: purpose, licence, and whether fedcopl loads them.

`measured_models.json` is written by `tools/measure_models.py`, with random weights of the published configuration.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ..errors import ModelError
from ..plurals import counted
from .formats.hub import RELEASES

MEASURED = Path(__file__).with_name("measured_models.json")
Layout = Literal["hugging face", "open_clip", "bare file"]


@dataclass(frozen=True)
class KnownModel:
    """A published checkpoint."""

    name: str  # repository on the hub
    purpose: str
    licence: str
    layout: Layout
    loads: bool = True
    hint: str = ""  # for the user
    revision: str = ""  # commit, where it has no entry in RELEASES

    @property
    def pinned(self) -> str:
        """Pinned commit, or ""."""
        release = RELEASES.get(self.name)
        return self.revision if release is None else release.revision

    @property
    def can_be_fetched(self) -> bool:
        return self.name in RELEASES


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


SAY_GELU = "a bare file: say model.activation=gelu"

KNOWN_MODELS = (
    KnownModel(
        "google/siglip2-base-patch16-224", "photographs, class names in many languages", "Apache-2.0", "hugging face"
    ),
    KnownModel("google/siglip-base-patch16-224", "photographs", "Apache-2.0", "hugging face"),
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
    ),
    KnownModel("imageomics/bioclip", "species", "MIT", "open_clip"),
    KnownModel(
        "chendelong/RemoteCLIP",
        "satellites and aeroplanes",
        "Apache-2.0",
        "bare file",
        hint=SAY_GELU,
        revision="bf1d8a3ccf2ddbf7c875705e46373bfe542bce38",
    ),
    KnownModel("Zilun/GeoRSCLIP", "satellites and aeroplanes", "see its repository", "bare file", hint=SAY_GELU),
    KnownModel("openai/clip-vit-base-patch16", "photographs; the paper's", "MIT", "hugging face"),
    KnownModel("openai/clip-vit-base-patch32", "photographs, four times as fast", "MIT", "hugging face"),
    KnownModel("openai/clip-vit-large-patch14", "photographs, with a GPU", "MIT", "hugging face"),
    KnownModel("facebook/metaclip-b16-fullcc2.5b", "photographs", "CC-BY-NC-4.0: not for business", "hugging face"),
    KnownModel("apple/DFN2B-CLIP-ViT-B-16", "photographs", "Apple's own: see its repository", "open_clip"),
    KnownModel("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "photographs", "MIT", "open_clip"),
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
        "CC-BY-NC-4.0: not for business",
        "hugging face",
        loads=False,
    ),
)
BY_NAME = {model.name: model for model in KNOWN_MODELS}


def known_model(name: str) -> KnownModel:
    """Return a model by name; raises ModelError with the nearest name."""
    if name in BY_NAME:
        return BY_NAME[name]
    within = [known for known in BY_NAME if name.lower() in known.lower()]
    near = within or difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.3)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ModelError(f"{name}: is not in the table; `fedcopl models list` prints it{hint}")


def about(model: KnownModel) -> Iterator[tuple[str, str]]:
    """Describe a model, line by line."""
    yield "name", model.name
    yield "for", model.purpose
    yield "licence", model.licence
    yield "form", model.layout
    yield "revision", model.pinned or "none pinned"
    yield "fetch", "yes" if model.can_be_fetched else "by hand"
    yield "loads", "yes" if model.loads else "no: `fedcopl models check` says why"
    if model.hint:
        yield "note", model.hint
    found = measured().get(model.name)
    if found is None:
        yield "measured", "no"
        return
    yield "weights", f"{found.parameters:,}"
    yield "memory", f"{found.memory:.1f} GB"
    yield (
        "time",
        f"{found.seconds:,.0f} s of one core for 1,000 images, by {counted(found.images, 'image')} of random weights",
    )

"""Models that people use, by their published configurations: what each is for, and whether it can be loaded here.

The sizes are those of the publishers' config files. What was measured is in `measured_models.json`, which
`tools/measure_models.py` writes: random weights of the true shape, in the publisher's own layout, loaded and run.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ..errors import ModelError
from ..plurals import counted
from .formats.hub import RELEASES

MEASURED = Path(__file__).with_name("measured_models.json")
Layout = Literal["hugging face", "open_clip", "bare file"]


@dataclass(frozen=True)
class KnownModel:
    """One checkpoint as its publisher describes it."""

    name: str  # its repository on the hub
    purpose: str
    licence: str
    layout: Layout
    config: Mapping[str, Any] = field(repr=False)  # config.json, or the section model_cfg of open_clip_config.json
    loads: bool = True
    hint: str = ""  # what else a user must know
    revision: str = ""  # where only a commit is known

    @property
    def pinned(self) -> str:
        """The commit that was published with it in public records; "" where none is known to us."""
        release = RELEASES.get(self.name)
        return self.revision if release is None else release.revision

    @property
    def can_be_fetched(self) -> bool:
        return self.name in RELEASES


@dataclass(frozen=True)
class MeasuredModel:
    """Random weights of a model's true shape, loaded and run on one core in fp32."""

    parameters: int
    memory: float  # GB of the process at its highest, in which nothing else was loaded
    seconds: float  # of the processor, for 1,000 images
    images: int  # on how many that was measured


@cache
def measured() -> Mapping[str, MeasuredModel]:
    """By name; a model that was not measured is not in it."""
    return {name: MeasuredModel(**values) for name, values in json.loads(MEASURED.read_text("utf-8")).items()}


def _clip(
    vision: tuple[int, int, int], patch: int, text: tuple[int, int, int], output: int, activation: str = "quick_gelu"
) -> dict[str, Any]:
    """A Hugging Face `CLIPModel`: width, depth and heads of each tower."""
    return {
        "model_type": "clip",
        "projection_dim": output,
        "vision_config": _tower(vision, activation) | {"image_size": 224, "patch_size": patch},
        "text_config": _tower(text, activation) | {"vocab_size": 49408, "max_position_embeddings": 77},
    }


def _tower(sizes: tuple[int, int, int], activation: str) -> dict[str, Any]:
    width, depth, heads = sizes
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "hidden_act": activation,
    }


def _siglip(sizes: Mapping[str, int], image: int, patch: int, vocabulary: int) -> dict[str, Any]:
    """A Hugging Face `SiglipModel`, whose config leaves out what is as in the base model."""
    return {
        "model_type": "siglip",
        "vision_config": {**sizes, "image_size": image, "patch_size": patch},
        "text_config": {**sizes, "vocab_size": vocabulary, "max_position_embeddings": 64},
    }


def _plain(
    vision: tuple[int, int], patch: int, text: tuple[int, int, int], output: int, **model: object
) -> dict[str, Any]:
    """open_clip's plain CLIP: width and depth of the vision tower, width, heads and depth of the text tower."""
    return {
        "embed_dim": output,
        "vision_cfg": {"image_size": 224, "layers": vision[1], "width": vision[0], "patch_size": patch},
        "text_cfg": {
            "context_length": 77,
            "vocab_size": 49408,
            "width": text[0],
            "heads": text[1],
            "layers": text[2],
        },
        **model,
    }


def _timm(trunk: str, pool: str, project: str | None, image: int = 224) -> dict[str, Any]:
    """open_clip's CLIP around another trunk of timm's."""
    return {
        "embed_dim": 512,
        "custom_text": True,
        "vision_cfg": {"image_size": image, "timm_model_name": trunk, "timm_pool": pool, "timm_proj": project},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12},
    }


BASE_TEXT, LARGE_TEXT = (512, 12, 8), (768, 12, 12)
SO400M = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
BIOMED = {
    "embed_dim": 512,
    "vision_cfg": {
        "timm_model_name": "vit_base_patch16_224",
        "timm_model_pretrained": False,
        "timm_pool": "",
        "timm_proj": "linear",
        "image_size": 224,
    },
    "text_cfg": {
        "hf_model_name": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract",
        "hf_tokenizer_name": "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract",
        "hf_proj_type": "mlp",
        "hf_pooler_type": "cls_last_hidden_state_pooler",
        "context_length": 256,
    },
}
SAY_GELU = "a bare file: say model.activation=gelu"

KNOWN_MODELS = (
    KnownModel(
        "google/siglip2-base-patch16-224",
        "photographs, class names in many languages",
        "Apache-2.0",
        "hugging face",
        _siglip({}, 224, 16, 256000),
    ),
    KnownModel(
        "google/siglip-base-patch16-224", "photographs", "Apache-2.0", "hugging face", _siglip({}, 224, 16, 32000)
    ),
    KnownModel(
        "google/siglip-so400m-patch14-384",
        "photographs, with a GPU",
        "Apache-2.0",
        "hugging face",
        _siglip(SO400M, 384, 14, 32000),
        revision="9fdffc58afc957d1a03a25b10dba0329ab15c2a3",
    ),
    KnownModel(
        "google/medsiglip-448",
        "medicine: X-rays, skin, eyes, tissue",
        "Health AI Developer Foundations terms",
        "hugging face",
        _siglip(SO400M, 448, 14, 32000),
        hint="its terms must be agreed to on the hub before it can be fetched",
        revision="9cea28a1a1195f665105faa6e8544c112fd960a4",
    ),
    KnownModel(
        "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224",
        "medicine: figures of papers, all kinds of images",
        "MIT",
        "open_clip",
        BIOMED,
    ),
    KnownModel("imageomics/bioclip", "species", "MIT", "open_clip", _plain((768, 12), 16, (512, 8, 12), 512)),
    KnownModel(
        "chendelong/RemoteCLIP",
        "satellites and aeroplanes",
        "Apache-2.0",
        "bare file",
        _plain((768, 12), 32, (512, 8, 12), 512),
        hint=SAY_GELU,
        revision="bf1d8a3ccf2ddbf7c875705e46373bfe542bce38",
    ),
    KnownModel(
        "Zilun/GeoRSCLIP",
        "satellites and aeroplanes",
        "see its repository",
        "bare file",
        _plain((768, 12), 32, (512, 8, 12), 512),
        hint=SAY_GELU,
    ),
    KnownModel(
        "openai/clip-vit-base-patch16",
        "photographs; the paper's",
        "MIT",
        "hugging face",
        _clip((768, 12, 12), 16, BASE_TEXT, 512),
    ),
    KnownModel(
        "openai/clip-vit-base-patch32",
        "photographs, four times as fast",
        "MIT",
        "hugging face",
        _clip((768, 12, 12), 32, BASE_TEXT, 512),
    ),
    KnownModel(
        "openai/clip-vit-large-patch14",
        "photographs, with a GPU",
        "MIT",
        "hugging face",
        _clip((1024, 24, 16), 14, LARGE_TEXT, 768),
    ),
    KnownModel(
        "facebook/metaclip-b16-fullcc2.5b",
        "photographs",
        "CC-BY-NC-4.0: not for business",
        "hugging face",
        _clip((768, 12, 12), 16, BASE_TEXT, 512),
    ),
    KnownModel(
        "apple/DFN2B-CLIP-ViT-B-16",
        "photographs",
        "Apple's own: see its repository",
        "open_clip",
        _plain((768, 12), 16, (512, 8, 12), 512, quick_gelu=True),
    ),
    KnownModel(
        "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
        "photographs",
        "MIT",
        "open_clip",
        _plain((768, 12), 32, (512, 8, 12), 512),
    ),
    KnownModel(
        "wkcn/TinyCLIP-ViT-40M-32-Text-19M-LAION400M",
        "a small machine",
        "MIT",
        "hugging face",
        _clip((512, 12, 8), 32, (512, 6, 8), 512),
        revision="95ec8197b3f2fe7f747865c61ca556cf0768b2f7",
    ),
    KnownModel(
        "timm/eva02_base_patch16_clip_224.merged2b",
        "photographs",
        "MIT",
        "open_clip",
        _timm("eva02_base_patch16_clip_224", "token", None),
        loads=False,
    ),
    KnownModel(
        "apple/MobileCLIP-B-OpenCLIP",
        "a small machine",
        "Apple's own: see its repository",
        "open_clip",
        _timm("vit_base_mci_224", "token", None),
        loads=False,
    ),
    KnownModel(
        "apple/MobileCLIP-S2-OpenCLIP",
        "a small machine",
        "Apple's own: see its repository",
        "open_clip",
        _timm("fastvit_mci2", "avg", None, 256),
        loads=False,
    ),
    KnownModel(
        "google/siglip2-base-patch16-naflex",
        "photographs of any shape",
        "Apache-2.0",
        "hugging face",
        {"model_type": "siglip2"},
        loads=False,
    ),
    KnownModel(
        "facebook/metaclip-2-worldwide-b16",
        "photographs, class names in many languages",
        "CC-BY-NC-4.0: not for business",
        "hugging face",
        {"model_type": "metaclip_2"},
        loads=False,
    ),
)
BY_NAME = {model.name: model for model in KNOWN_MODELS}


def known_model(name: str) -> KnownModel:
    """By name; an unknown one is answered with the nearest."""
    if name in BY_NAME:
        return BY_NAME[name]
    within = [known for known in BY_NAME if name.lower() in known.lower()]
    near = within or difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.3)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ModelError(f"{name}: is not in the table; `fedcopl models list` prints it{hint}")


def about(model: KnownModel) -> Iterator[tuple[str, str]]:
    """All that is known of a model, line by line."""
    yield "name", model.name
    yield "for", model.purpose
    yield "licence", model.licence
    yield "form", model.layout
    yield "revision", model.pinned or "none pinned"
    yield "fetch", "yes" if model.can_be_fetched else "by hand"
    yield "loads", "yes" if model.loads else "no: `fedcopl models check` says why"
    if model.hint:
        yield "mind", model.hint
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

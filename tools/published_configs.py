"""Configurations of known models as published, for checkpoints with random weights."""

from collections.abc import Mapping
from typing import Any


def _clip(
    vision: tuple[int, int, int], patch: int, text: tuple[int, int, int], output: int, activation: str = "quick_gelu"
) -> dict[str, Any]:
    """Return the config of a Hugging Face `CLIPModel` from width, depth and heads of each tower."""
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
    """Return the config of a Hugging Face `SiglipModel`; `sizes` are those that differ from the base model."""
    return {
        "model_type": "siglip",
        "vision_config": {**sizes, "image_size": image, "patch_size": patch},
        "text_config": {**sizes, "vocab_size": vocabulary, "max_position_embeddings": 64},
    }


def _plain(
    vision: tuple[int, int], patch: int, text: tuple[int, int, int], output: int, **model: object
) -> dict[str, Any]:
    """Return open_clip's config of a plain CLIP: (width, depth) for images, (width, heads, depth) for text."""
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
    """Return open_clip's config of a CLIP with an image encoder from timm."""
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

CONFIGS: Mapping[str, Mapping[str, Any]] = {  # config.json, or the section model_cfg of open_clip_config.json
    "google/siglip2-base-patch16-224": _siglip({}, 224, 16, 256000),
    "google/siglip-base-patch16-224": _siglip({}, 224, 16, 32000),
    "google/siglip-so400m-patch14-384": _siglip(SO400M, 384, 14, 32000),
    "google/medsiglip-448": _siglip(SO400M, 448, 14, 32000),
    "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224": BIOMED,
    "imageomics/bioclip": _plain((768, 12), 16, (512, 8, 12), 512),
    "chendelong/RemoteCLIP": _plain((768, 12), 32, (512, 8, 12), 512),
    "Zilun/GeoRSCLIP": _plain((768, 12), 32, (512, 8, 12), 512),
    "openai/clip-vit-base-patch16": _clip((768, 12, 12), 16, BASE_TEXT, 512),
    "openai/clip-vit-base-patch32": _clip((768, 12, 12), 32, BASE_TEXT, 512),
    "openai/clip-vit-large-patch14": _clip((1024, 24, 16), 14, LARGE_TEXT, 768),
    "facebook/metaclip-b16-fullcc2.5b": _clip((768, 12, 12), 16, BASE_TEXT, 512),
    "apple/DFN2B-CLIP-ViT-B-16": _plain((768, 12), 16, (512, 8, 12), 512, quick_gelu=True),
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": _plain((768, 12), 32, (512, 8, 12), 512),
    "wkcn/TinyCLIP-ViT-40M-32-Text-19M-LAION400M": _clip((512, 12, 8), 32, (512, 6, 8), 512),
    "timm/eva02_base_patch16_clip_224.merged2b": _timm("eva02_base_patch16_clip_224", "token", None),
    "apple/MobileCLIP-B-OpenCLIP": _timm("vit_base_mci_224", "token", None),
    "apple/MobileCLIP-S2-OpenCLIP": _timm("fastvit_mci2", "avg", None, 256),
    "google/siglip2-base-patch16-naflex": {"model_type": "siglip2"},
    "facebook/metaclip-2-worldwide-b16": {"model_type": "metaclip_2"},
}

"""Hugging Face folders of a CLIP or a SigLIP: config.json, weights, tokenizer and image transform."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ..blocks import Activation
from ..preprocess import HALF, read_transform
from ..text_towers import CausalText, PaddedText, TextTower, pad_rows, split_at_end
from ..tokenizer import Tokenizer, canonicalize_text, clip_tokenizer, read_tokenizer
from ..vision_towers import VisionTower
from .files import positive, read_json, read_weights
from .layouts import (
    BlockConfig,
    ClipParts,
    WeightNames,
    build_text,
    build_vision,
    check_towers,
    compare_sizes,
    weight_names,
)

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_LEGACY_END = 2  # eos_token_id of older configs for any vocabulary; `transformers` then uses the highest id
_ACTIVATIONS: Mapping[str, Activation] = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
# Published configs of SigLIP omit values that are those of the base model.
_SIGLIP_DEFAULTS = {"hidden_act": "gelu_pytorch_tanh", "num_attention_heads": 12, "layer_norm_eps": 1e-6}
# The most similar supported model for unsupported values of model_type.
_MOST_SIMILAR = {
    "siglip2": "google/siglip2-base-patch16-224, of one resolution",
    "metaclip_2": "facebook/metaclip-b16-fullcc2.5b, or google/siglip2-base-patch16-224 for many languages",
    "chinese_clip": "google/siglip2-base-patch16-224, which reads many languages",
    "altclip": "google/siglip2-base-patch16-224, which reads many languages",
}

_BLOCK = weight_names("""
    norm_attention.*   layer_norm1.*
    query_key_value.*  self_attn.q_proj.* self_attn.k_proj.* self_attn.v_proj.*
    out.*              self_attn.out_proj.*
    norm_mlp.*         layer_norm2.*
    up.*               mlp.fc1.*
    down.*             mlp.fc2.*
""")
_VISION = """
    patches.*    vision_model.embeddings.patch_embedding.*
    positions    vision_model.embeddings.position_embedding.weight
    norm_last.*  vision_model.post_layernorm.*
"""
_CLIP_ONLY = """
    class_token   vision_model.embeddings.class_embedding
    norm_first.*  vision_model.pre_layrnorm.*
    project.*     visual_projection.*
"""
_SIGLIP_ONLY = """
    pool.probe              vision_model.head.probe
    pool.query_key_value.*  vision_model.head.attention.in_proj_*
    pool.out.*              vision_model.head.attention.out_proj.*
    pool.norm_mlp.*         vision_model.head.layernorm.*
    pool.up.*               vision_model.head.mlp.fc1.*
    pool.down.*             vision_model.head.mlp.fc2.*
"""
_TEXT = """
    embedding.weight  text_model.embeddings.token_embedding.weight
    positions         text_model.embeddings.position_embedding.weight
    norm_last.*       text_model.final_layer_norm.*
"""
CLIP_VISION = WeightNames(weight_names(_VISION + _CLIP_ONLY), "vision_model.encoder.layers", _BLOCK)
CLIP_TEXT = WeightNames(weight_names(_TEXT + "project.* text_projection.*"), "text_model.encoder.layers", _BLOCK)
_SIGLIP_VISION = WeightNames(weight_names(_VISION + _SIGLIP_ONLY), "vision_model.encoder.layers", _BLOCK)
_SIGLIP_TEXT = WeightNames(weight_names(_TEXT + "project.* text_model.head.*"), "text_model.encoder.layers", _BLOCK)


def load_hugging_face(folder: Path) -> ClipParts:
    """Load a folder with config.json and weights: a CLIP, a SigLIP, or a SigLIP 2 of a fixed resolution."""
    file = folder / "config.json"
    config = read_json(file)
    kind = config.get("model_type")
    if kind == "fedcopl-classifier":
        raise ModelError(
            f"{folder}: is an exported classifier, not a CLIP model; use it with: fedcopl predict -c {folder}"
        )
    if kind not in ("clip", "siglip"):
        similar = _MOST_SIMILAR.get(str(kind), "openai/clip-vit-base-patch16")
        raise ModelError(
            f"{file}: model_type is {kind!r}; only 'clip' and 'siglip' are supported. The most similar supported model "
            f"is {similar}"
        )
    is_siglip = kind == "siglip"
    vision_config, text_config = (_section(config, tower, file) for tower in ("vision", "text"))
    if is_siglip:
        vision_config, text_config = _SIGLIP_DEFAULTS | vision_config, _SIGLIP_DEFAULTS | text_config
    weights = read_weights(next(folder / name for name in WEIGHT_FILES if (folder / name).is_file()))
    vision_names, text_names = (_SIGLIP_VISION, _SIGLIP_TEXT) if is_siglip else (CLIP_VISION, CLIP_TEXT)
    image_size = positive(int, vision_config.get("image_size", 224), "image_size", file) if is_siglip else None
    vision = build_vision(weights, vision_names, _block_config(vision_config, file), image_size)
    text_class: type[TextTower] = PaddedText if is_siglip else CausalText
    text = build_text(weights, text_names, _block_config(text_config, file), text_class)
    scale = check_towers(weights, (vision, vision_names), (text, text_names))
    sections = {"": config, "vision_config": vision_config, "text_config": text_config}
    compare_sizes(file, sections, _sizes(vision, text))
    defaults = {"image_mean": HALF, "image_std": HALF} if is_siglip else {}
    if is_siglip:
        tokenizer = _siglip_tokenizer(folder)
        collate = partial(pad_rows, pad_id=tokenizer.pad_id, length=text.context_length)
    else:
        tokenizer = read_tokenizer(folder) or clip_tokenizer()
        end = text_config.get("eos_token_id", tokenizer.end_id)
        if end not in (_LEGACY_END, tokenizer.end_id):
            raise ModelError(f"{file}: eos_token_id is {end}, but the tokenizer's is {tokenizer.end_id}")
        collate = partial(split_at_end, end_id=None if end == _LEGACY_END else tokenizer.end_id)
    if tokenizer.vocabulary > (rows := text.embedding.num_embeddings):
        raise ModelError(f"{folder}: the tokenizer has {tokenizer.vocabulary} tokens, the weights only {rows}")
    preprocessor = folder / "preprocessor_config.json"
    settings = defaults | (read_json(preprocessor) if preprocessor.is_file() else {})
    return ClipParts(vision, text, scale, tokenizer, read_transform(settings, vision.image_size, preprocessor), collate)


def _section(config: Mapping[str, Any], tower: str, file: Path) -> dict[str, Any]:
    section = config.get(f"{tower}_config")
    if not isinstance(section, dict):
        raise ModelError(f"{file}: the section {tower}_config is missing")
    # The first checkpoints repeat a section as `..._config_dict`, which takes precedence in `transformers`.
    return section | dict(config.get(f"{tower}_config_dict") or {})


def _block_config(section: Mapping[str, Any], file: Path) -> BlockConfig:
    activation = section.get("hidden_act", "quick_gelu")
    if activation not in _ACTIVATIONS:
        raise ModelError(f"{file}: hidden_act is {activation!r}; supported: {', '.join(_ACTIVATIONS)}")
    heads = positive(int, section.get("num_attention_heads"), "num_attention_heads", file)
    epsilon = positive(float, section.get("layer_norm_eps", 1e-5), "layer_norm_eps", file)
    return BlockConfig(heads, _ACTIVATIONS[activation], epsilon)


def _sizes(vision: VisionTower, text: TextTower) -> dict[str, int]:
    """Return the sizes of the weights under the names of config.json."""
    sizes = {
        "projection_dim": vision.output,
        "vision_config.image_size": vision.image_size,
        "vision_config.patch_size": vision.patch_size,
        "text_config.vocab_size": text.embedding.num_embeddings,
        "text_config.max_position_embeddings": len(text.positions),
    }
    for section, shape in (("vision_config", vision.shape), ("text_config", text.shape)):
        sizes |= {
            f"{section}.hidden_size": shape.width,
            f"{section}.intermediate_size": shape.hidden,
            f"{section}.num_hidden_layers": shape.depth,
        }
    return sizes


def _siglip_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer; SigLIP lower-cases and removes punctuation, SigLIP 2 (Gemma's tokenizer) only lower-cases."""
    config = folder / "tokenizer_config.json"
    kind = str(read_json(config).get("tokenizer_class")).lower() if config.is_file() else ""
    tokenizer = read_tokenizer(folder, str.lower if "gemma" in kind or "siglip2" in kind else canonicalize_text)
    if tokenizer is None:
        raise ModelError(f"{folder}: tokenizer.json is missing; spiece.model is not supported")
    return tokenizer

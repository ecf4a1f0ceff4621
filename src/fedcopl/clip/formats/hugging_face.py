"""A Hugging Face `CLIPModel` folder: config.json, weights, tokenizer, and how images are prepared."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from ...errors import ModelError
from ..preprocess import ImageTransform, read_transform
from ..tokenizer import Tokenizer, clip_tokenizer, read_tokenizer
from ..towers import Activation, TextTower, VisionTower
from .files import positive, read_json, read_weights
from .layouts import (
    HUGGING_FACE_TEXT,
    HUGGING_FACE_VISION,
    BlockTraits,
    Parts,
    build_text,
    build_vision,
    compare_outputs,
    compare_sizes,
    read_scale,
    refuse_leftovers,
)

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
LEGACY_END = 2  # older configs say 2 whatever the vocabulary; `transformers` then reads the highest id instead


def load_hugging_face(folder: Path) -> Parts:
    config_file = folder / "config.json"
    config = read_json(config_file)
    if config.get("model_type") != "clip":
        raise ModelError(f"{config_file}: describes a {config.get('model_type')!r}, not a 'clip'")
    vision_config = _section(config, "vision", config_file)
    text_config = _section(config, "text", config_file)
    weights = read_weights(find_weights(folder))
    vision = build_vision(weights, HUGGING_FACE_VISION, _traits(vision_config, config_file))
    text = build_text(weights, HUGGING_FACE_TEXT, _traits(text_config, config_file))
    compare_outputs(weights, vision.project, text.project)
    refuse_leftovers(weights, [(vision, HUGGING_FACE_VISION), (text, HUGGING_FACE_TEXT)])
    compare_sizes(config_file, _claims(config, vision_config, text_config), _sizes(vision, text))
    return Parts(
        vision,
        text,
        read_scale(weights),
        _tokenizer(folder, text, text_config),
        _transform(folder, vision.image),
        highest_id_ends=text_config.get("eos_token_id") == LEGACY_END,
    )


def find_weights(folder: Path) -> Path:
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"{folder}: has none of {', '.join(WEIGHT_FILES)}")


def _section(config: Mapping[str, Any], tower: str, file: Path) -> dict[str, Any]:
    section = config.get(f"{tower}_config")
    if not isinstance(section, dict):
        raise ModelError(f"{file}: lacks the section {tower}_config")
    # The first checkpoints repeat a section under another name, which `transformers` heeds where both speak.
    return section | dict(config.get(f"{tower}_config_dict") or {})


def _traits(section: Mapping[str, Any], file: Path) -> BlockTraits:
    activation = section.get("hidden_act", "quick_gelu")
    if activation not in get_args(Activation):
        known = " and ".join(get_args(Activation))
        raise ModelError(f"{file}: hidden_act is {activation!r}; only {known} are known")
    heads = positive(int, section.get("num_attention_heads"), "num_attention_heads", file)
    epsilon = positive(float, section.get("layer_norm_eps", 1e-5), "layer_norm_eps", file)
    return BlockTraits(heads, activation, epsilon)


def _claims(config: Mapping[str, Any], vision: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says of sizes, as far as it does."""
    sections = {
        "": {"projection_dim": config.get("projection_dim")},
        "vision_config.": vision,
        "text_config.": text,
    }
    return {prefix + name: value for prefix, section in sections.items() for name, value in section.items()}


def _sizes(vision: VisionTower, text: TextTower) -> dict[str, int]:
    """What the weights say, under the names that config.json uses."""
    sizes = {
        "projection_dim": vision.project.out_features,
        "vision_config.image_size": vision.image,
        "vision_config.patch_size": vision.patch,
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


def _tokenizer(folder: Path, text: TextTower, text_config: Mapping[str, Any]) -> Tokenizer:
    tokenizer = read_tokenizer(folder) or clip_tokenizer()
    rows, file = text.embedding.num_embeddings, folder / "config.json"
    if tokenizer.vocabulary > rows:
        raise ModelError(f"{folder}: the tokenizer has {tokenizer.vocabulary} tokens, the weights only {rows}")
    end = text_config.get("eos_token_id", tokenizer.end_id)
    if end not in (LEGACY_END, tokenizer.end_id):
        raise ModelError(f"{file}: eos_token_id is {end}, but the tokenizer ends a sentence with {tokenizer.end_id}")
    return tokenizer


def _transform(folder: Path, image_size: int) -> ImageTransform:
    file = folder / "preprocessor_config.json"
    return read_transform(read_json(file) if file.is_file() else {}, image_size, file)

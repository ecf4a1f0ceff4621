"""OpenAI's layout of weights: their own files, and open_clip's files and folders."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from ...errors import ModelError
from ..preprocess import CLIP_MEAN, CLIP_STD, ImageTransform, three_numbers
from ..resnet import SHRINK, ResNetTower
from ..tokenizer import Tokenizer, clip_tokenizer, read_tokenizer
from ..towers import Activation, TextTower, VisionTower
from .files import Weights, positive, read_json, read_weights
from .layouts import (
    HEAD_WIDTH,
    OPENAI_TEXT,
    OPENAI_VISION,
    BlockTraits,
    Parts,
    TowerNames,
    build_text,
    build_vision,
    check_square,
    compare_outputs,
    compare_sizes,
    fill,
    read_scale,
    refuse_leftovers,
    unfilled,
)

OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
# What an open_clip config may say of a tower: sizes, and that the first norm is missing, as the weights show.
KNOWN_SETTINGS = {
    "vision_cfg": {"image_size", "layers", "width", "head_width", "mlp_ratio", "patch_size", "no_ln_pre"},
    "text_cfg": {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"},
}


class _ResNetNames(TowerNames):
    """Our ResNet keeps OpenAI's names."""

    def of(self, ours: str) -> tuple[str, ...]:
        return (f"visual.{ours}",)


OPENAI_RESNET = _ResNetNames({}, "", {})


def load_openai_file(file: Path, activation: Activation | None) -> Parts:
    """A bare file does not name its activation; OpenAI's own models all use quick-GELU."""
    weights = read_weights(file)
    if any(name.startswith("text_model.") for name in weights.tensors):
        raise ModelError(f"{file}: is part of a Hugging Face folder; give the folder {file.parent} instead")
    traits = BlockTraits(None, activation or "quick_gelu")
    return _assemble(weights, traits, traits, {})


def load_open_clip_folder(folder: Path) -> Parts:
    config_file = folder / OPEN_CLIP_CONFIG
    config = read_json(config_file)
    model, vision, text = _sections(config, config_file)
    weights = read_weights(_find_weights(folder))
    activation: Activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    head_width = positive(int, vision.get("head_width", HEAD_WIDTH), "head_width", config_file)
    heads = positive(int, text.get("heads"), "heads", config_file)
    traits = BlockTraits(None, activation, head_width=head_width), BlockTraits(heads, activation)
    parts = _assemble(weights, *traits, config.get("preprocess_cfg") or {})
    compare_sizes(config_file, _claims(model, vision, text), _sizes(parts))
    return parts


def _sections(config: Mapping[str, Any], file: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    model = config.get("model_cfg")
    if not isinstance(model, dict):
        raise ModelError(f"{file}: lacks the section model_cfg")
    for name, known in KNOWN_SETTINGS.items():
        if not isinstance(model.get(name), dict):
            raise ModelError(f"{file}: lacks the section model_cfg.{name}")
        for setting, value in model[name].items():
            if value and setting not in known:
                raise ModelError(f"{file}: {name}.{setting} is {value!r}: a kind of CLIP that is not supported")
    return model, model["vision_cfg"], model["text_cfg"]


def _find_weights(folder: Path) -> Path:
    for name in OPEN_CLIP_WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"{folder}: has neither {' nor '.join(OPEN_CLIP_WEIGHTS)}")


def _claims(model: Mapping[str, Any], vision: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    sections = {"": model, "vision_cfg.": vision, "text_cfg.": text}
    return {prefix + name: value for prefix, section in sections.items() for name, value in section.items()}


def _sizes(parts: Parts) -> dict[str, int]:
    """What the weights say, under the names that open_clip's config uses."""
    sizes = {
        "embed_dim": parts.text.project.out_features,
        "vision_cfg.image_size": parts.vision.image,
        "text_cfg.context_length": len(parts.text.positions),
        "text_cfg.vocab_size": parts.text.embedding.num_embeddings,
        "text_cfg.width": parts.text.shape.width,
        "text_cfg.layers": parts.text.shape.depth,
    }
    if isinstance(parts.vision, VisionTower):
        sizes["vision_cfg.width"] = parts.vision.shape.width
        sizes["vision_cfg.layers"] = parts.vision.shape.depth
        sizes["vision_cfg.patch_size"] = parts.vision.patch
    return sizes


def _assemble(
    weights: Weights, vision_traits: BlockTraits, text_traits: BlockTraits, preprocess: Mapping[str, Any]
) -> Parts:
    is_resnet = any(name.startswith("visual.layer1.") for name in weights.tensors)
    vision_names = OPENAI_RESNET if is_resnet else OPENAI_VISION
    vision = build_resnet(weights) if is_resnet else build_vision(weights, OPENAI_VISION, vision_traits)
    text = build_text(weights, OPENAI_TEXT, text_traits)
    last = vision.attnpool.c_proj if isinstance(vision, ResNetTower) else vision.project
    compare_outputs(weights, last, text.project)
    refuse_leftovers(weights, [(vision, vision_names), (text, OPENAI_TEXT)])
    transform = _transform(preprocess, vision.image, weights.file.with_name(OPEN_CLIP_CONFIG))
    return Parts(vision, text, read_scale(weights), _tokenizer(weights, text), transform, highest_id_ends=True)


def build_resnet(weights: Weights) -> ResNetTower:
    """A ResNet of the sizes that its weights have."""
    (stem, *_) = weights.shape("visual.layer1.0.conv1.weight", 4)
    (tokens, _) = weights.shape("visual.attnpool.positional_embedding", 2)
    (output, _) = weights.shape("visual.attnpool.c_proj.weight", 2)
    depths = [_blocks(weights, stage) for stage in range(1, 5)]
    grid = check_square(tokens, "visual.attnpool.positional_embedding", weights)
    with unfilled():
        tower = ResNetTower(stem=stem, depths=depths, image=grid * SHRINK, output=output)
    return fill(tower, weights, OPENAI_RESNET)


def _blocks(weights: Weights, stage: int) -> int:
    start = re.compile(rf"visual\.layer{stage}\.(\d+)\.")
    return len({match[1] for match in map(start.match, weights.tensors) if match})


def _tokenizer(weights: Weights, text: TextTower) -> Tokenizer:
    """CLIP's own where the vocabulary has its size; otherwise one must lie beside the weights."""
    rows, clip = text.embedding.num_embeddings, clip_tokenizer(pad_id=0)
    if rows == clip.vocabulary:
        return clip
    beside = read_tokenizer(weights.file.parent)
    if beside is None or beside.vocabulary > rows:
        raise ModelError(
            f"{weights.file}: knows {rows} tokens, CLIP's tokenizer {clip.vocabulary}; "
            "a tokenizer.json that fits must lie beside it"
        )
    return beside


def _transform(preprocess: Mapping[str, Any], image_size: int, file: Path) -> ImageTransform:
    if not isinstance(preprocess, Mapping):
        raise ModelError(f"{file}: preprocess_cfg is {preprocess!r}, not settings by name")
    modes = {"shortest": False, "squash": True}
    filters = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
    mode, resample = preprocess.get("resize_mode") or "shortest", preprocess.get("interpolation") or "bicubic"
    if mode not in modes or resample not in filters:
        raise ModelError(f"{file}: cannot resize images by {mode!r} with {resample!r}")
    return ImageTransform(
        image_size,
        image_size,
        three_numbers(preprocess.get("mean", CLIP_MEAN), file),
        three_numbers(preprocess.get("std", CLIP_STD), file),
        filters[resample],
        squash=modes[mode],
    )

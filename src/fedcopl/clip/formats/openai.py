"""OpenAI's layout of weights: their files, and open_clip's plain CLIPs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from ...errors import ModelError
from ..blocks import Activation
from ..preprocess import CLIP_MEAN, CLIP_STD, ImageTransform, three_numbers
from ..resnet import SHRINK, ResNetTower
from ..text_towers import CausalText, ReadUpToEnd, TextTower
from ..tokenizer import Tokenizer, clip_tokenizer, read_tokenizer
from .files import Weights, read_weights
from .layouts import (
    BlockTraits,
    Parts,
    build_text,
    build_vision,
    check_square,
    compare_outputs,
    fill,
    read_scale,
    refuse_leftovers,
    unfilled,
)
from .names import OPENAI_TEXT, OPENAI_VISION, TowerNames

OPEN_CLIP_CONFIG = "open_clip_config.json"


class _ResNetNames(TowerNames):
    """Names of our ResNet, which are OpenAI's."""

    def of(self, ours: str) -> tuple[str, ...]:
        return (f"visual.{ours}",)


_OPENAI_RESNET = _ResNetNames({}, "", {})


def load_openai_file(file: Path, activation: Activation | None) -> Parts:
    """Load a bare file of weights; its activation is quick-GELU unless given, as in OpenAI's models."""
    weights = read_weights(file)
    if any(name.startswith("text_model.") for name in weights.tensors):
        raise ModelError(f"{file}: is part of a Hugging Face folder; give the folder {file.parent} instead")
    traits = BlockTraits(None, activation or "quick_gelu")
    return assemble(weights, traits, traits, {})


def assemble(
    weights: Weights, vision_traits: BlockTraits, text_traits: BlockTraits, preprocess: Mapping[str, Any]
) -> Parts:
    """Build a CLIP from weights in OpenAI's layout."""
    is_resnet = any(name.startswith("visual.layer1.") for name in weights.tensors)
    vision_names = _OPENAI_RESNET if is_resnet else OPENAI_VISION
    vision = _build_resnet(weights) if is_resnet else build_vision(weights, OPENAI_VISION, vision_traits)
    text = build_text(weights, OPENAI_TEXT, text_traits, CausalText)
    compare_outputs(weights, vision, text)
    refuse_leftovers(weights, [(vision, vision_names), (text, OPENAI_TEXT)])
    transform = read_preprocess(preprocess, vision.image, weights.file.with_name(OPEN_CLIP_CONFIG))
    return Parts(vision, text, read_scale(weights), _tokenizer(weights, text), transform, ReadUpToEnd(None))


def _build_resnet(weights: Weights) -> ResNetTower:
    """Build a ResNet from its weights."""
    (stem, *_) = weights.shape("visual.layer1.0.conv1.weight", 4)
    (tokens, _) = weights.shape("visual.attnpool.positional_embedding", 2)
    (output, _) = weights.shape("visual.attnpool.c_proj.weight", 2)
    depths = [_blocks(weights, stage) for stage in range(1, 5)]
    grid = check_square(tokens, "visual.attnpool.positional_embedding", weights)
    with unfilled():
        tower = ResNetTower(stem=stem, depths=depths, image=grid * SHRINK, output=output)
    return fill(tower, weights, _OPENAI_RESNET)


def _blocks(weights: Weights, stage: int) -> int:
    start = re.compile(rf"visual\.layer{stage}\.(\d+)\.")
    return len({match[1] for match in map(start.match, weights.tensors) if match})


def _tokenizer(weights: Weights, text: TextTower) -> Tokenizer:
    """Return CLIP's tokenizer if the vocabulary has its size, otherwise the one in the folder of the weights."""
    rows, clip = text.embedding.num_embeddings, clip_tokenizer(pad_id=0)
    if rows == clip.vocabulary:
        return clip
    found = read_tokenizer(weights.file.parent)
    if found is None or found.vocabulary > rows:
        raise ModelError(
            f"{weights.file}: knows {rows} tokens, CLIP's tokenizer {clip.vocabulary}; "
            "a matching tokenizer.json must be in its folder"
        )
    return found


def read_preprocess(preprocess: Mapping[str, Any], image_size: int, file: Path) -> ImageTransform:
    """Read the transform of the section preprocess_cfg of an open_clip config."""
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

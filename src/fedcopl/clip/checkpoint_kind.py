"""What a checkpoint is, by its files: said before it is loaded, and in more words once it is."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import ModelError
from .formats.files import read_json, read_weights
from .formats.openai import OPEN_CLIP_CONFIG
from .frozen_clip import Clip, fingerprint
from .resnet import ResNetTower

HUGGING_FACE_KINDS = {"clip": "a CLIP", "siglip": "a SigLIP, or a SigLIP 2 of a fixed resolution"}
# Weights that only one kind of model has, for bare files.
TELLING = (
    ("text_model.", "part of a Hugging Face folder"),
    ("visual.trunk.", "a CLIP of open_clip's around a trunk of timm's, without its folder"),
    ("visual.blocks.", "an EVA-CLIP"),
    ("image_encoder.model.", "a MobileCLIP"),
    ("visual.layer1.", "a CLIP with a ResNet in OpenAI's layout"),
    ("visual.transformer.", "a CLIP in OpenAI's layout"),
)


def kind_of(path: Path) -> str:
    """In words; for something that is no model at all, a ModelError."""
    if path.is_file():
        return _kind_of_file(path)
    if (path / "config.json").is_file():
        kind = str(read_json(path / "config.json").get("model_type"))
        return f"a Hugging Face folder of {HUGGING_FACE_KINDS.get(kind, f'a {kind!r}')}"
    if (path / OPEN_CLIP_CONFIG).is_file():
        return f"open_clip's folder of {_kind_of_open_clip(path / OPEN_CLIP_CONFIG)}"
    raise ModelError(f"{path}: is no model's folder: it has neither config.json nor {OPEN_CLIP_CONFIG}")


def _kind_of_file(path: Path) -> str:
    names = read_weights(path).tensors
    for start, kind in TELLING:
        if any(name.startswith(start) for name in names):
            return f"a bare file: {kind}"
    return f"a bare file of {len(names)} weights of no kind known here"


def _kind_of_open_clip(file: Path) -> str:
    model = read_json(file).get("model_cfg") or {}
    vision, text = (model.get(name) or {} for name in ("vision_cfg", "text_cfg"))
    trunk = f"timm's {vision['timm_model_name']}" if vision.get("timm_model_name") else "a plain CLIP"
    return f"{trunk} beside {text['hf_model_name']}" if text.get("hf_model_name") else trunk


def describe(clip: Clip) -> Iterator[tuple[str, str]]:
    """What a loaded model is, line by line."""
    vision, text = clip.vision, clip.text
    if isinstance(vision, ResNetTower):
        yield "images", f"{vision.image} x {vision.image}, a ResNet"
    else:
        pooled = "a class token" if vision.pool is None else "a pooling head"
        yield "images", f"{vision.image} x {vision.image} in patches of {vision.patch}"
        yield "vision", f"{vision.shape.depth} blocks of width {vision.shape.width}, read at {pooled}"
    yield "text", f"{text.shape.depth} blocks of width {text.shape.width}, {clip.positions} tokens"
    yield "features", f"{clip.feature_size} numbers; logits are {clip.logit_scale:.1f} times the cosine"
    yield "weights", f"{sum(weight.numel() for weight in clip.state_dict().values()):,}"
    yield "fingerprint", fingerprint(clip)

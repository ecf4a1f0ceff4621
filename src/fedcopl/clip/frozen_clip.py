"""A frozen CLIP, loaded from any supported checkpoint format."""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from textwrap import shorten

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .blocks import Activation
from .formats.files import read_json, read_weights
from .formats.hugging_face import WEIGHT_FILES, load_hugging_face
from .formats.layouts import ClipParts
from .formats.open_clip import OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, load_open_clip_folder, load_openai_file
from .known_models import locate
from .text_towers import Sentences
from .vision_towers import ResNetTower


class Clip(nn.Module):
    """A CLIP model with frozen weights, its tokenizer and its image transform."""

    def __init__(self, name: str, parts: ClipParts):
        super().__init__()
        self.name = name
        self.vision, self.text = parts.vision, parts.text
        self.logit_scale = parts.logit_scale
        self.tokenizer, self.preprocess = parts.tokenizer, parts.transform
        self._collate = parts.collate
        self.requires_grad_(False).eval()

    @property
    def image_size(self) -> int:
        return self.vision.image_size

    @property
    def context_length(self) -> int:
        """Maximum number of tokens in a sentence, start and end included."""
        return self.text.context_length

    @property
    def device(self) -> torch.device:
        return self.text.positions.device

    @property
    def feature_size(self) -> int:
        """Dimension d of image and text features."""
        return self.text.output

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Encode pixels, (B, 3, H, W), to features, (B, d), not normalised."""
        needed = (3, self.image_size, self.image_size)
        if pixels.dim() != 4 or tuple(pixels.shape[1:]) != needed:
            raise ValueError(f"{self.name} encodes batches of images {needed}, not {tuple(pixels.shape)}")
        features: Tensor = self.vision(self.vision.embed(pixels))
        return features

    def encode_text(self, token_ids: Tensor) -> Tensor:
        """Encode token ids, (n, L), to features, (n, d), not normalised; ids after the end token are ignored."""
        features: Tensor = self.text(self._collate(token_ids.tolist()).to(self.device))
        return features

    def tokenize(self, sentences: Sequence[str]) -> Tensor:
        """Return token ids, (n, context_length), padded; raises ModelError for a sentence that is too long."""
        rows = self._token_ids(sentences)
        padded = torch.full((len(rows), self.context_length), self.tokenizer.pad_id)
        for number, row in enumerate(rows):
            padded[number, : len(row)] = torch.tensor(row)
        return padded

    def sentences(self, texts: Sequence[str]) -> Sentences:
        """Tokenize sentences for the text tower, on its device."""
        return self._collate(self._token_ids(texts)).to(self.device)

    def _token_ids(self, sentences: Sequence[str]) -> list[list[int]]:
        rows = self.tokenizer.rows(sentences)
        for sentence, row in zip(sentences, rows, strict=True):
            if len(row) > self.context_length:
                text = shorten(sentence, 80)
                raise ModelError(
                    f"{self.name} reads at most {self.context_length} tokens; this sentence has {len(row)}: {text!r}"
                )
        return rows


def load_clip(name_or_path: str | Path, *, activation: Activation | None = None) -> Clip:
    """Load a CLIP by the name of a known model, or from a folder or file.

    A bare file of weights does not name its `activation`; the default is quick-GELU.
    """
    name, path = str(name_or_path), locate(name_or_path)
    if path.is_file():
        return Clip(name, load_openai_file(path, activation))
    if activation is not None:
        raise ModelError(f"{path}: the folder's config sets the activation; remove model.activation={activation}")
    if (path / "config.json").is_file() and any((path / file).is_file() for file in WEIGHT_FILES):
        return Clip(name, load_hugging_face(path))
    if (path / OPEN_CLIP_CONFIG).is_file():
        return Clip(name, load_open_clip_folder(path))
    raise ModelError(
        f"{path}: is not a model folder: it needs config.json and one of {', '.join(WEIGHT_FILES)}, "
        f"or {OPEN_CLIP_CONFIG} and one of {', '.join(OPEN_CLIP_WEIGHTS)}; fedcopl models list names models to fetch"
    )


def fingerprint(clip: Clip) -> str:
    """Return a digest of everything that determines the features: weights, activations and image transform."""
    functions = {getattr(module, "activate", None) for module in clip.modules()} - {None}
    activations = sorted({str(getattr(function, "__name__", function)) for function in functions})
    digest = sha256(f"{clip.preprocess.key} {clip.logit_scale!r} {activations}".encode())
    for name, weight in sorted(clip.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


_HUGGING_FACE_KINDS = {"clip": "a CLIP", "siglip": "a SigLIP, or a SigLIP 2 of a fixed resolution"}
# Prefixes of weights by which the kind of a bare file is recognised.
_PREFIXES = (
    ("text_model.", "part of a Hugging Face folder"),
    ("visual.trunk.", "part of an open_clip folder, with a vision model of timm"),
    ("visual.blocks.", "an EVA-CLIP"),
    ("image_encoder.model.", "a MobileCLIP"),
    ("visual.layer1.", "a CLIP with a ResNet in OpenAI's layout"),
    ("visual.transformer.", "a CLIP in OpenAI's layout"),
)


def checkpoint_kind(path: Path) -> str:
    """Describe the format of a checkpoint by its files; raises ModelError for a folder that is no checkpoint."""
    if path.is_file():
        names = read_weights(path).tensors
        for prefix, kind in _PREFIXES:
            if any(name.startswith(prefix) for name in names):
                return f"a bare file: {kind}"
        return f"a bare file of {len(names)} weights of an unknown kind"
    if (path / "config.json").is_file():
        kind = str(read_json(path / "config.json").get("model_type"))
        return f"a Hugging Face folder of {_HUGGING_FACE_KINDS.get(kind, f'a {kind!r}')}"
    if (path / OPEN_CLIP_CONFIG).is_file():
        model = read_json(path / OPEN_CLIP_CONFIG).get("model_cfg") or {}
        vision, text = (model.get(name) or {} for name in ("vision_cfg", "text_cfg"))
        parts = [f"timm's {vision['timm_model_name']}" if vision.get("timm_model_name") else "a plain CLIP"]
        parts += [str(text["hf_model_name"])] if text.get("hf_model_name") else []
        return f"an open_clip folder of {' with '.join(parts)}"
    raise ModelError(f"{path}: is not a model folder: it has neither config.json nor {OPEN_CLIP_CONFIG}")


def describe(clip: Clip) -> Iterator[tuple[str, str]]:
    """Yield the properties of a loaded model as titles and texts."""
    vision, text = clip.vision, clip.text
    if isinstance(vision, ResNetTower):
        yield "images", f"{vision.image_size} x {vision.image_size}, a ResNet"
    else:
        pooled = "a class token" if vision.pool is None else "attention"
        yield "images", f"{vision.image_size} x {vision.image_size} in patches of {vision.patch_size}"
        yield "vision", f"{vision.shape.depth} blocks of width {vision.shape.width}, pooled by {pooled}"
    yield "text", f"{text.shape.depth} blocks of width {text.shape.width}, {clip.context_length} tokens"
    yield "features", f"{clip.feature_size} numbers; logits are {clip.logit_scale:.1f} times the cosine"
    yield "weights", f"{sum(weight.numel() for weight in clip.state_dict().values()):,}"
    yield "fingerprint", fingerprint(clip)

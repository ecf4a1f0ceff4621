"""Names of CLIP's weights, ours and those of the checkpoints people have, and the towers they fill."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...errors import ModelError
from ..preprocess import ImageTransform
from ..resnet import ResNetTower
from ..tokenizer import Tokenizer
from ..towers import Activation, TextTower, TowerShape, VisionTower
from .files import Weights

Tower = TypeVar("Tower", bound=nn.Module)
WeightsByName = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class TowerNames:
    """Under which names a kind of checkpoint keeps the weights of one tower.

    A weight with several names is kept there in parts; one below the other, they make ours.
    """

    outside: WeightsByName
    block: str
    inside: WeightsByName
    turned: frozenset[str] = frozenset()  # ours, kept there as the transpose

    def of(self, ours: str) -> tuple[str, ...]:
        match = re.fullmatch(r"blocks\.(\d+)\.(.+)", ours)
        if not match:
            return self.outside[ours]
        return tuple(f"{self.block}.{match[1]}.{name}" for name in self.inside[match[2]])

    def one(self, ours: str) -> str:
        (theirs,) = self.of(ours)
        return theirs


def _both(pairs: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Names of modules -> names of their weights and biases."""
    return {f"{ours}.{kind}": (f"{theirs}.{kind}",) for ours, theirs in pairs.items() for kind in ("weight", "bias")}


HUGGING_FACE_BLOCK = _both(
    {
        "norm_attention": "layer_norm1",
        "out": "self_attn.out_proj",
        "norm_mlp": "layer_norm2",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
    }
) | {f"query_key_value.{kind}": tuple(f"self_attn.{part}_proj.{kind}" for part in "qkv") for kind in ("weight", "bias")}
HUGGING_FACE_VISION = TowerNames(
    _both(
        {
            "patches": "vision_model.embeddings.patch_embedding",
            "norm_first": "vision_model.pre_layrnorm",
            "norm_last": "vision_model.post_layernorm",
            "project": "visual_projection",
        }
    )
    | {
        "class_token": ("vision_model.embeddings.class_embedding",),
        "positions": ("vision_model.embeddings.position_embedding.weight",),
    },
    "vision_model.encoder.layers",
    HUGGING_FACE_BLOCK,
)
HUGGING_FACE_TEXT = TowerNames(
    _both({"norm_last": "text_model.final_layer_norm", "project": "text_projection"})
    | {
        "embedding.weight": ("text_model.embeddings.token_embedding.weight",),
        "positions": ("text_model.embeddings.position_embedding.weight",),
    },
    "text_model.encoder.layers",
    HUGGING_FACE_BLOCK,
)
OPENAI_BLOCK = _both(
    {
        "norm_attention": "ln_1",
        "out": "attn.out_proj",
        "norm_mlp": "ln_2",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    }
) | {f"query_key_value.{kind}": (f"attn.in_proj_{kind}",) for kind in ("weight", "bias")}
OPENAI_VISION = TowerNames(
    _both({"patches": "visual.conv1", "norm_first": "visual.ln_pre", "norm_last": "visual.ln_post"})
    | {
        "class_token": ("visual.class_embedding",),
        "positions": ("visual.positional_embedding",),
        "project.weight": ("visual.proj",),
    },
    "visual.transformer.resblocks",
    OPENAI_BLOCK,
    turned=frozenset({"project.weight"}),
)
OPENAI_TEXT = TowerNames(
    _both({"norm_last": "ln_final"})
    | {
        "embedding.weight": ("token_embedding.weight",),
        "positions": ("positional_embedding",),
        "project.weight": ("text_projection",),
    },
    "transformer.resblocks",
    OPENAI_BLOCK,
    turned=frozenset({"project.weight"}),
)
SCALE = "logit_scale"
HEAD_WIDTH = 64  # of all of OpenAI's models
# Tables that older versions stored with the weights; all of them follow from the sizes.
HARMLESS = re.compile(
    r"(text_model|vision_model)\.embeddings\.position_ids|attn_mask|input_resolution|context_length|vocab_size"
    r"|.+\.num_batches_tracked"
)


def to_hugging_face(vision: VisionTower, text: TextTower, scale: Tensor) -> dict[str, Tensor]:
    """Our towers as the state dict of a Hugging Face `CLIPModel`."""
    weights = dict(_export(vision, HUGGING_FACE_VISION)) | dict(_export(text, HUGGING_FACE_TEXT)) | {SCALE: scale}
    return {name: value.detach().contiguous() for name, value in weights.items()}


def _export(tower: nn.Module, names: TowerNames) -> Iterator[tuple[str, Tensor]]:
    for ours, weight in tower.state_dict().items():
        theirs = names.of(ours)
        yield from zip(theirs, weight.chunk(len(theirs)), strict=True)


@dataclass(frozen=True)
class BlockTraits:
    """What the shapes of a transformer's weights do not tell."""

    heads: int | None  # None: one for every `head_width` of the width
    activation: Activation
    epsilon: float = 1e-5
    head_width: int = HEAD_WIDTH


class _Unfilled(TorchFunctionMode):
    """Leaves out the random weights of new modules.

    They would be replaced at once, and drawing some of them loads torch's compiler, which takes seconds.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return given["tensor"]
        return function(*args, **given)


@contextmanager
def unfilled() -> Iterator[None]:
    """Modules made in here have sizes but neither weights nor memory."""
    with torch.device("meta"), _Unfilled():
        yield


def check_square(tokens: int, name: str, weights: Weights) -> int:
    """The side of the square of patches that, with one more token, makes `tokens`."""
    side = math.isqrt(max(tokens - 1, 0))
    if side < 1 or side**2 != tokens - 1:
        raise ModelError(f"{weights.file}: {name} has {tokens} rows: not a square of patches and one more")
    return side


def build_vision(weights: Weights, names: TowerNames, traits: BlockTraits) -> VisionTower:
    """A vision transformer of the sizes that its weights have."""
    (*_, patch) = weights.shape(names.one("patches.weight"), 4)
    (tokens, _) = weights.shape(names.one("positions"), 2)
    grid = check_square(tokens, names.one("positions"), weights)
    with unfilled():
        tower = VisionTower(
            _tower_shape(weights, names, traits),
            patch=patch,
            image=grid * patch,
            output=_output(weights, names),
            patch_bias=names.one("patches.bias") in weights.tensors,
            norm_first=names.one("norm_first.weight") in weights.tensors,
        )
    return fill(tower, weights, names)


def build_text(weights: Weights, names: TowerNames, traits: BlockTraits) -> TextTower:
    """A text transformer of the sizes that its weights have."""
    (vocabulary, _) = weights.shape(names.one("embedding.weight"), 2)
    (positions, _) = weights.shape(names.one("positions"), 2)
    with unfilled():
        shape = _tower_shape(weights, names, traits)
        tower = TextTower(shape, vocabulary=vocabulary, positions=positions, output=_output(weights, names))
    return fill(tower, weights, names)


def _tower_shape(weights: Weights, names: TowerNames, traits: BlockTraits) -> TowerShape:
    (_, width) = weights.shape(names.one("positions"), 2)
    (hidden, _) = weights.shape(names.one("blocks.0.up.weight"), 2)
    heads = traits.heads or width // traits.head_width
    if heads < 1 or width % heads:
        raise ModelError(f"{weights.file}: a width of {width} cannot be split among {heads} attention heads")
    return TowerShape(width, _depth(weights, names), heads, hidden, traits.activation, traits.epsilon)


def _depth(weights: Weights, names: TowerNames) -> int:
    start = re.compile(re.escape(names.block) + r"\.(\d+)\.")
    return len({match[1] for match in map(start.match, weights.tensors) if match})


def _output(weights: Weights, names: TowerNames) -> int:
    shape = weights.shape(names.one("project.weight"), 2)
    return shape[1] if "project.weight" in names.turned else shape[0]


def fill(tower: Tower, weights: Weights, names: TowerNames) -> Tower:
    """Put the weights into a tower without any, as fp32."""
    ours = {name: _fetch(name, empty, weights, names) for name, empty in tower.state_dict().items()}
    tower.load_state_dict(ours, assign=True)
    return tower


def _fetch(name: str, empty: Tensor, weights: Weights, names: TowerNames) -> Tensor:
    turned, theirs = name in names.turned, names.of(name)
    needed = list(empty.shape[::-1] if turned else empty.shape)
    needed[0] //= len(theirs)
    parts = [_fitting(part, needed, weights) for part in theirs]
    whole = torch.cat(parts) if len(parts) > 1 else parts[0]
    return whole.T.contiguous() if turned else whole.contiguous()


def _fitting(name: str, needed: list[int], weights: Weights) -> Tensor:
    found = weights.get(name)
    if list(found.shape) != needed:
        raise ModelError(f"{weights.file}: {name} has the shape {tuple(found.shape)}, not {tuple(needed)}")
    return found.float()


def compare_sizes(file: Path, claims: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """A config may leave a size out, but what it says must be true."""
    for name, size in sizes.items():
        claim = claims.get(name)
        if claim is not None and claim != size:
            raise ModelError(f"{file}: {name} is {claim}, but the weights beside it have {size}")


def compare_outputs(weights: Weights, of_images: nn.Linear, of_sentences: nn.Linear) -> None:
    images, sentences = of_images.out_features, of_sentences.out_features
    if images != sentences:
        raise ModelError(f"{weights.file}: images have {images} features and sentences {sentences}")


def refuse_leftovers(weights: Weights, towers: Iterable[tuple[nn.Module, TowerNames]]) -> None:
    """A weight that nothing uses means that the model is not what it seems."""
    used = {SCALE} | {theirs for tower, names in towers for ours in tower.state_dict() for theirs in names.of(ours)}
    for name in weights.tensors:
        if name not in used and not HARMLESS.fullmatch(name):
            raise ModelError(f"{weights.file}: holds the weight {name}, which has no place in this kind of CLIP")


def read_scale(weights: Weights) -> float:
    """The factor from cosines to logits: about 100 in OpenAI's models. Checkpoints keep its logarithm."""
    if weights.get(SCALE).numel() != 1:
        raise ModelError(f"{weights.file}: {SCALE} has the shape {tuple(weights.get(SCALE).shape)}, not ()")
    return float(weights.get(SCALE).float().exp())


@dataclass(frozen=True)
class Parts:
    """All that a checkpoint gives."""

    vision: VisionTower | ResNetTower
    text: TextTower
    logit_scale: float
    tokenizer: Tokenizer
    transform: ImageTransform
    highest_id_ends: bool  # a sentence is read at its highest token id, not at the first end token

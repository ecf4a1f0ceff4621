"""Building towers from weights: sizes from shapes, names from `names`."""

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
from ..blocks import Activation, TowerShape
from ..preprocess import ImageTransform
from ..resnet import ResNetTower
from ..text_towers import BertText, CausalText, PaddedText, SentenceReading, TextTower
from ..tokenizer import Tokenizer
from ..vision_tower import VisionTower
from .files import Weights
from .names import BERT_TEXT, BIAS, HARMLESS, SCALE, TowerNames

_Tower = TypeVar("_Tower", bound=nn.Module)


HEAD_WIDTH = 64  # of all of OpenAI's models


@dataclass(frozen=True)
class BlockTraits:
    """Properties of a transformer that shapes of weights do not determine."""

    heads: int | None  # None: one for every `head_width` of the width
    activation: Activation
    epsilon: float = 1e-5
    head_width: int = HEAD_WIDTH


class _Unfilled(TorchFunctionMode):
    """Skips random initialisation, some of which imports torch's compiler and takes seconds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return given["tensor"]
        return function(*args, **given)


@contextmanager
def unfilled() -> Iterator[None]:
    """Create modules with sizes but without weights or memory."""
    with torch.device("meta"), _Unfilled():
        yield


def check_square(tokens: int, name: str, weights: Weights, extra: int = 1) -> int:
    """Return the side of the square of patches in `tokens` tokens, of which `extra` are no patches."""
    side = math.isqrt(max(tokens - extra, 0))
    if side < 1 or side**2 != tokens - extra:
        one_more = " and one more" if extra else ""
        raise ModelError(f"{weights.file}: {name} has {tokens} rows: not a square of patches{one_more}")
    return side


def build_vision(weights: Weights, names: TowerNames, traits: BlockTraits, image: int | None = None) -> VisionTower:
    """Build a vision transformer from its weights; `image` may exceed the area of the patches."""
    (*_, patch) = weights.shape(names.one("patches.weight"), 4)
    (tokens, _) = weights.table(names.one("positions"))
    has_class = "class_token" in names.outside
    grid = check_square(tokens, names.one("positions"), weights, extra=int(has_class))
    shape = _tower_shape(weights, names, traits)
    with unfilled():
        tower = VisionTower(
            shape,
            patch=patch,
            image=image if image is not None and image // patch == grid else grid * patch,
            output=_output(weights, names) if has_class else shape.width,
            patch_bias=names.one("patches.bias") in weights.tensors,
            norm_first="norm_first.weight" in names.outside and names.one("norm_first.weight") in weights.tensors,
            pooling="class token" if has_class else "attention",
        )
    return fill(tower, weights, names)


_Plain = TypeVar("_Plain", CausalText, PaddedText)


def build_text(weights: Weights, names: TowerNames, traits: BlockTraits, kind: type[_Plain]) -> _Plain:
    """Build a text transformer from its weights."""
    (vocabulary, _) = weights.shape(names.one("embedding.weight"), 2)
    (positions, _) = weights.shape(names.one("positions"), 2)
    with unfilled():
        shape = _tower_shape(weights, names, traits)
        tower = kind(shape, vocabulary=vocabulary, positions=positions, output=_output(weights, names))
    return fill(tower, weights, names)


def build_bert(weights: Weights, traits: BlockTraits, length: int) -> BertText:
    """Build a BERT of at most `length` tokens, with a projection of one or two matrices."""
    (vocabulary, _) = weights.shape(BERT_TEXT.one("embedding.weight"), 2)
    (positions, _) = weights.shape(BERT_TEXT.one("positions"), 2)
    (kinds, _) = weights.shape(BERT_TEXT.one("kinds"), 2)
    is_double = BERT_TEXT.one("project.0.weight") in weights.tensors
    (output, hidden) = weights.shape(BERT_TEXT.one("project.2.weight" if is_double else "project.weight"), 2)
    with unfilled():
        tower = BertText(
            _tower_shape(weights, BERT_TEXT, traits),
            vocabulary=vocabulary,
            positions=positions,
            output=output,
            kinds=kinds,
            hidden_output=hidden if is_double else None,
        )
    tower.reads = min(length, positions)
    return fill(tower, weights, BERT_TEXT)


def _tower_shape(weights: Weights, names: TowerNames, traits: BlockTraits) -> TowerShape:
    (_, width) = weights.table(names.one("positions"))
    (hidden, _) = weights.shape(names.one("blocks.0.up.weight"), 2)
    block = re.compile(re.escape(names.block) + r"\.(\d+)\.")
    depth = len({match[1] for match in map(block.match, weights.tensors) if match})
    heads = traits.heads or width // traits.head_width
    if heads < 1 or width % heads:
        raise ModelError(f"{weights.file}: a width of {width} cannot be split among {heads} attention heads")
    return TowerShape(width, depth, heads, hidden, traits.activation, traits.epsilon)


def _output(weights: Weights, names: TowerNames) -> int:
    shape = weights.shape(names.one("project.weight"), 2)
    return shape[1] if "project.weight" in names.turned else shape[0]


def fill(tower: _Tower, weights: Weights, names: TowerNames) -> _Tower:
    """Load weights into an unfilled tower, as fp32."""
    ours = {}
    for name, empty in tower.state_dict().items():
        turned = name in names.turned
        whole = _whole(names.of(name), list(empty.shape[::-1] if turned else empty.shape), weights)
        ours[name] = whole.T.contiguous() if turned else whole.contiguous()
    tower.load_state_dict(ours, assign=True)
    return tower


def _whole(names: tuple[str, ...], needed: list[int], weights: Weights) -> Tensor:
    """Concatenate the parts of a weight along the first axis."""
    parts = [_without_batch(weights.get(name), len(needed)) for name in names]
    share = [needed[0] // len(names), *needed[1:]]
    fits = [list(part.shape[1:]) == needed[1:] for part in parts]
    if not all(fits) or sum(len(part) for part in parts) != needed[0]:
        wrong = next((i for i, part in enumerate(parts) if list(part.shape) != share), 0)
        shape = tuple(weights.get(names[wrong]).shape)
        raise ModelError(f"{weights.file}: {names[wrong]} has the shape {shape}, not {tuple(share)}")
    return torch.cat([part.float() for part in parts]) if len(parts) > 1 else parts[0].float()


def _without_batch(tensor: Tensor, dimensions: int) -> Tensor:
    """Remove batch axes of one, in which some checkpoints store positions."""
    while tensor.dim() > dimensions and len(tensor) == 1:
        tensor = tensor[0]
    return tensor


def compare_sizes(file: Path, claims: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Raise ModelError if a config states another size than the weights have."""
    for name, size in sizes.items():
        claim = claims.get(name)
        if claim is not None and claim != size:
            raise ModelError(f"{file}: {name} is {claim}, but the weights have {size}")


def compare_outputs(weights: Weights, vision: VisionTower | ResNetTower, text: TextTower) -> None:
    if vision.output != text.output:
        raise ModelError(f"{weights.file}: images have {vision.output} features and sentences {text.output}")


def refuse_leftovers(weights: Weights, towers: Iterable[tuple[nn.Module, TowerNames]], bias: bool = False) -> None:
    """Raise ModelError for an unused weight: the model is of another kind."""
    used = {theirs for tower, names in towers for ours in tower.state_dict() for theirs in names.of(ours)}
    used |= {SCALE, BIAS} if bias else {SCALE}
    for name in weights.tensors:
        if name not in used and not HARMLESS.fullmatch(name):
            raise ModelError(f"{weights.file}: holds the weight {name}, which has no place in this kind of CLIP")


def read_scale(weights: Weights) -> float:
    """Return the logit scale, about 100 in OpenAI's models; checkpoints store its logarithm."""
    if weights.get(SCALE).numel() != 1:
        raise ModelError(f"{weights.file}: {SCALE} has the shape {tuple(weights.get(SCALE).shape)}, not ()")
    return float(weights.get(SCALE).float().exp())


@dataclass(frozen=True)
class Parts:
    """Everything that a checkpoint provides."""

    vision: VisionTower | ResNetTower
    text: TextTower
    logit_scale: float
    tokenizer: Tokenizer
    transform: ImageTransform
    reading: SentenceReading

"""Building towers from weights: sizes from shapes, names from the kind of checkpoint."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ..text_towers import BertText, PaddedText, Sentences, TextTower
from ..tokenizer import Tokenizer
from ..vision_towers import SHRINK, ResNetTower, VisionTower
from .files import Weights

_Tower = TypeVar("_Tower", bound=nn.Module)
_Text = TypeVar("_Text", bound=TextTower)

_SCALE = "logit_scale"
_BIAS = "logit_bias"  # of SigLIP's sigmoid; equal for all classes, so the softmax does not depend on it
# Tables that older versions stored with the weights; all of them follow from the sizes.
_IGNORED_WEIGHTS = re.compile(
    r"(text_model|vision_model|text\.transformer)\.embeddings\.position_ids|attn_mask|input_resolution|context_length|vocab_size"
    r"|.+\.num_batches_tracked"
)


@dataclass(frozen=True)
class TowerNames:
    """Names of one tower's weights in a kind of checkpoint.

    A weight with several names is stored in parts, concatenated along the first axis.
    """

    outside: Mapping[str, tuple[str, ...]]
    block: str
    inside: Mapping[str, tuple[str, ...]]
    transposed: frozenset[str] = frozenset()  # our names of weights that are stored transposed

    def of(self, ours: str) -> tuple[str, ...]:
        """Return the names of one of our weights in the checkpoint."""
        match = re.fullmatch(r"blocks\.(\d+)\.(.+)", ours)
        if not match:
            return self.outside[ours]
        return tuple(f"{self.block}.{match[1]}.{name}" for name in self.inside[match[2]])

    def one(self, ours: str) -> str:
        """Return the name of one of our weights that is stored whole."""
        (theirs,) = self.of(ours)
        return theirs


def weight_names(table: str) -> dict[str, tuple[str, ...]]:
    """Parse lines of one of our names and of its names in the checkpoint; `*` stands for weight and bias."""
    names = {}
    for ours, *theirs in (line.split() for line in table.splitlines() if line.strip()):
        for kind in ("weight", "bias") if "*" in ours else ("",):
            names[ours.replace("*", kind)] = tuple(name.replace("*", kind) for name in theirs)
    return names


_HEAD_WIDTH = 64  # of all of OpenAI's models


@dataclass(frozen=True)
class BlockTraits:
    """Properties of a transformer that shapes of weights do not determine."""

    heads: int | None  # None: one for every `head_width` of the width
    activation: Activation
    epsilon: float = 1e-5
    head_width: int = _HEAD_WIDTH


class _NoInitialisation(TorchFunctionMode):
    """Skips random initialisation, some of which imports torch's compiler and takes seconds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return given["tensor"]
        return function(*args, **given)


@contextmanager
def without_weights() -> Iterator[None]:
    """Create modules with sizes but without weights or memory."""
    with torch.device("meta"), _NoInitialisation():
        yield


def _grid_side(tokens: int, name: str, weights: Weights, extra: int = 1) -> int:
    """Return the side of the square patch grid of `tokens` tokens, of which `extra` are not patches (class token)."""
    side = math.isqrt(max(tokens - extra, 0))
    if side < 1 or side**2 != tokens - extra:
        expected = "a square number plus a class token" if extra else "a square number"
        raise ModelError(f"{weights.file}: {name} has {tokens} rows, should be {expected}")
    return side


def build_vision(weights: Weights, names: TowerNames, traits: BlockTraits, image: int | None = None) -> VisionTower:
    """Build a vision transformer from its weights; `image` may exceed the area of the patches."""
    (*_, patch) = weights.shape(names.one("patches.weight"), 4)
    (tokens, _) = weights.table(names.one("positions"))
    has_class = "class_token" in names.outside
    grid = _grid_side(tokens, names.one("positions"), weights, extra=int(has_class))
    shape = _tower_shape(weights, names, traits)
    with without_weights():
        tower = VisionTower(
            shape,
            patch=patch,
            image=image if image is not None and image // patch == grid else grid * patch,
            output=_output(weights, names) if has_class else shape.width,
            patch_bias=names.one("patches.bias") in weights.tensors,
            norm_first="norm_first.weight" in names.outside and names.one("norm_first.weight") in weights.tensors,
            pooling="class token" if has_class else "attention",
        )
    return _load_weights(tower, weights, names)


def build_text(weights: Weights, names: TowerNames, traits: BlockTraits, kind: type[_Text]) -> _Text:
    """Build a text transformer from its weights."""
    (vocabulary, _) = weights.shape(names.one("embedding.weight"), 2)
    (positions, _) = weights.shape(names.one("positions"), 2)
    with without_weights():
        shape = _tower_shape(weights, names, traits)
        tower = kind(shape, vocabulary=vocabulary, positions=positions, output=_output(weights, names))
    return _load_weights(tower, weights, names)


def build_bert(weights: Weights, names: TowerNames, traits: BlockTraits, length: int) -> BertText:
    """Build a BERT of at most `length` tokens, with a projection of one or two matrices."""
    (vocabulary, _) = weights.shape(names.one("embedding.weight"), 2)
    (positions, _) = weights.shape(names.one("positions"), 2)
    (token_types, _) = weights.shape(names.one("kinds"), 2)
    is_double = names.one("project.0.weight") in weights.tensors
    (output, hidden) = weights.shape(names.one("project.2.weight" if is_double else "project.weight"), 2)
    with without_weights():
        tower = BertText(
            _tower_shape(weights, names, traits),
            vocabulary=vocabulary,
            positions=positions,
            output=output,
            token_types=token_types,
            hidden=hidden if is_double else None,
        )
    tower.context_length = min(length, positions)
    return _load_weights(tower, weights, names)


def build_resnet(weights: Weights, names: TowerNames) -> ResNetTower:
    """Build CLIP's ResNet from its weights."""
    (stem, *_) = weights.shape(names.one("layer1.0.conv1.weight"), 4)
    (tokens, _) = weights.shape(names.one("attnpool.positional_embedding"), 2)
    (output, _) = weights.shape(names.one("attnpool.c_proj.weight"), 2)
    stages = [re.compile(re.escape(names.one(f"layer{stage}")) + r"\.(\d+)\.") for stage in range(1, 5)]
    depths = [len({match[1] for match in map(stage.match, weights.tensors) if match}) for stage in stages]
    grid = _grid_side(tokens, names.one("attnpool.positional_embedding"), weights)
    with without_weights():
        tower = ResNetTower(stem=stem, depths=depths, image=grid * SHRINK, output=output)
    return _load_weights(tower, weights, names)


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
    """Return the number of features, the rows of the projection."""
    return weights.shape(names.one("project.weight"), 2)["project.weight" in names.transposed]


def _load_weights(tower: _Tower, weights: Weights, names: TowerNames) -> _Tower:
    """Load weights into an without_weights tower, as fp32."""
    ours = {}
    for name, empty in tower.state_dict().items():
        is_transposed = name in names.transposed
        whole = _whole(names.of(name), list(empty.shape[::-1] if is_transposed else empty.shape), weights)
        ours[name] = whole.T.contiguous() if is_transposed else whole.contiguous()
    tower.load_state_dict(ours, assign=True)
    return tower


def _whole(names: tuple[str, ...], needed: list[int], weights: Weights) -> Tensor:
    """Concatenate the parts of a weight along the first axis, without batch axes of one."""
    parts = [weights.get(name) for name in names]
    parts = [
        part.reshape(part.shape[-len(needed) :]) if set(part.shape[: -len(needed)]) == {1} else part for part in parts
    ]
    share = [needed[0] // len(names), *needed[1:]]
    fits = [list(part.shape[1:]) == needed[1:] for part in parts]
    if not all(fits) or sum(len(part) for part in parts) != needed[0]:
        wrong = next((i for i, part in enumerate(parts) if list(part.shape) != share), 0)
        shape = tuple(weights.get(names[wrong]).shape)
        raise ModelError(f"{weights.file}: {names[wrong]} has the shape {shape}, not {tuple(share)}")
    return torch.cat([part.float() for part in parts]) if len(parts) > 1 else parts[0].float()


def compare_sizes(file: Path, sections: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]) -> None:
    """Raise ModelError if a config states another size than the weights have.

    Args:
        sections: Its sections by name; the name is empty for the top level.
        sizes: The sizes of the weights by the config's names, as `section.name`.
    """
    for name, size in sizes.items():
        section, _, key = name.rpartition(".")
        claim = sections[section].get(key)
        if claim is not None and claim != size:
            raise ModelError(f"{file}: {name} is {claim}, but the weights have {size}")


def check_towers(
    weights: Weights, vision: tuple[VisionTower | ResNetTower, TowerNames], text: tuple[TextTower, TowerNames]
) -> float:
    """Check that both towers have as many features and use all weights; return the logit scale.

    The scale is about 100 in OpenAI's models; checkpoints store its logarithm.

    Raises:
        ModelError: A weight is not used, so the model is of another kind, or sizes differ.
    """
    if vision[0].output != text[0].output:
        raise ModelError(f"{weights.file}: images have {vision[0].output} features and sentences {text[0].output}")
    used = {theirs for tower, names in (vision, text) for ours in tower.state_dict() for theirs in names.of(ours)}
    used |= {_SCALE, _BIAS} if isinstance(text[0], PaddedText) else {_SCALE}
    for name in weights.tensors:
        if name not in used and not _IGNORED_WEIGHTS.fullmatch(name):
            raise ModelError(f"{weights.file}: has the weight {name}, which this kind of CLIP does not have")
    if weights.get(_SCALE).numel() != 1:
        raise ModelError(f"{weights.file}: {_SCALE} has the shape {tuple(weights.get(_SCALE).shape)}, not ()")
    return float(weights.get(_SCALE).float().exp())


@dataclass(frozen=True)
class Parts:
    """Everything that a checkpoint provides."""

    vision: VisionTower | ResNetTower
    text: TextTower
    logit_scale: float
    tokenizer: Tokenizer
    transform: ImageTransform
    prepare: Callable[[Sequence[Sequence[int]]], Sentences]  # rows of token ids -> input of the text tower

"""Building towers from weights: the sizes follow from shapes, the names of the weights from the checkpoint's format."""

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
_BIAS = "logit_bias"  # of SigLIP's sigmoid; equal for all classes, so it does not change the softmax
# Constants that older versions stored with the weights.
_IGNORED_WEIGHTS = re.compile(
    r"(text_model|vision_model|text\.transformer)\.embeddings\.position_ids|attn_mask|input_resolution|context_length|vocab_size"
    r"|.+\.num_batches_tracked"
)


@dataclass(frozen=True)
class WeightNames:
    """Names of a tower's parameters in one checkpoint format.

    A parameter with several names is stored as several tensors, to be concatenated along the first axis.
    """

    tower: Mapping[str, tuple[str, ...]]  # parameter outside of the blocks -> its names in the checkpoint
    block_prefix: str
    block: Mapping[str, tuple[str, ...]]  # parameter of a block -> its names after prefix and number
    transposed: frozenset[str] = frozenset()  # parameters that are stored transposed

    def all_of(self, parameter: str) -> tuple[str, ...]:
        """Return the names of a parameter in the checkpoint."""
        match = re.fullmatch(r"blocks\.(\d+)\.(.+)", parameter)
        if not match:
            return self.tower[parameter]
        return tuple(f"{self.block_prefix}.{match[1]}.{name}" for name in self.block[match[2]])

    def of(self, parameter: str) -> str:
        """Return the name of a parameter that is stored as one tensor."""
        (name,) = self.all_of(parameter)
        return name


def weight_names(table: str) -> dict[str, tuple[str, ...]]:
    """Parse lines of a parameter and its names in the checkpoint; `*` stands for weight and bias."""
    names = {}
    for parameter, *stored in (line.split() for line in table.splitlines() if line.strip()):
        for kind in ("weight", "bias") if "*" in parameter else ("",):
            names[parameter.replace("*", kind)] = tuple(name.replace("*", kind) for name in stored)
    return names


@dataclass(frozen=True)
class BlockConfig:
    """Properties of a transformer that do not follow from the shapes of its weights."""

    heads: int | None  # None: width / head_width
    activation: Activation
    epsilon: float = 1e-5
    head_width: int = 64  # of all of OpenAI's models


class _NoInitialisation(TorchFunctionMode):
    """Skips random initialisation, which may import torch's compiler and take seconds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"]
        return function(*args, **kwargs)


@contextmanager
def without_weights() -> Iterator[None]:
    """Create modules on the meta device, without memory for weights."""
    with torch.device("meta"), _NoInitialisation():
        yield


def _grid_side(tokens: int, name: str, weights: Weights, class_tokens: int = 1) -> int:
    """Return the side of the square grid of patches, given the number of position embeddings."""
    side = math.isqrt(max(tokens - class_tokens, 0))
    if side < 1 or side**2 != tokens - class_tokens:
        expected = "a square number and one for the class token" if class_tokens else "a square number"
        raise ModelError(f"{weights.file}: {name} has {tokens} rows; it must have {expected}")
    return side


def build_vision(
    weights: Weights, names: WeightNames, blocks: BlockConfig, image_size: int | None = None
) -> VisionTower:
    """Build a vision transformer from its weights.

    `image_size` is the side of input images in the config, which need not be a multiple of the patch size.
    """
    (*_, patch_size) = weights.shape(names.of("patches.weight"), 4)
    (tokens, _) = weights.matrix_shape(names.of("positions"))
    has_class = "class_token" in names.tower
    grid = _grid_side(tokens, names.of("positions"), weights, class_tokens=int(has_class))
    shape = _tower_shape(weights, names, blocks)
    with without_weights():
        tower = VisionTower(
            shape,
            patch_size=patch_size,
            image_size=image_size if image_size is not None and image_size // patch_size == grid else grid * patch_size,
            output=_feature_size(weights, names) if has_class else shape.width,
            patch_bias=names.of("patches.bias") in weights.tensors,
            norm_first="norm_first.weight" in names.tower and names.of("norm_first.weight") in weights.tensors,
            pooling="class token" if has_class else "attention",
        )
    return _load_weights(tower, weights, names)


def build_text(weights: Weights, names: WeightNames, blocks: BlockConfig, kind: type[_Text]) -> _Text:
    """Build a text transformer from its weights."""
    (vocabulary, _) = weights.shape(names.of("embedding.weight"), 2)
    (positions, _) = weights.shape(names.of("positions"), 2)
    shape, output = _tower_shape(weights, names, blocks), _feature_size(weights, names)
    with without_weights():
        tower = kind(shape, vocabulary=vocabulary, positions=positions, output=output)
    return _load_weights(tower, weights, names)


def build_bert(weights: Weights, names: WeightNames, blocks: BlockConfig, length: int) -> BertText:
    """Build a BERT for sentences of at most `length` tokens, with a projection of one or two matrices."""
    (vocabulary, _) = weights.shape(names.of("embedding.weight"), 2)
    (positions, _) = weights.shape(names.of("positions"), 2)
    (token_types, _) = weights.shape(names.of("kinds"), 2)
    has_two_matrices = names.of("project.0.weight") in weights.tensors
    (output, hidden) = weights.shape(names.of("project.2.weight" if has_two_matrices else "project.weight"), 2)
    with without_weights():
        tower = BertText(
            _tower_shape(weights, names, blocks),
            vocabulary=vocabulary,
            positions=positions,
            output=output,
            token_types=token_types,
            hidden=hidden if has_two_matrices else None,
        )
    tower.context_length = min(length, positions)
    return _load_weights(tower, weights, names)


def build_resnet(weights: Weights, names: WeightNames) -> ResNetTower:
    """Build CLIP's ResNet from its weights."""
    (stem, *_) = weights.shape(names.of("layer1.0.conv1.weight"), 4)
    (tokens, _) = weights.shape(names.of("attnpool.positional_embedding"), 2)
    (output, _) = weights.shape(names.of("attnpool.c_proj.weight"), 2)
    depths = [_count_blocks(weights, names.of(f"layer{stage}")) for stage in range(1, 5)]
    grid = _grid_side(tokens, names.of("attnpool.positional_embedding"), weights)
    with without_weights():
        tower = ResNetTower(stem=stem, depths=depths, image_size=grid * SHRINK, output=output)
    return _load_weights(tower, weights, names)


def _tower_shape(weights: Weights, names: WeightNames, blocks: BlockConfig) -> TowerShape:
    (_, width) = weights.matrix_shape(names.of("positions"))
    (hidden, _) = weights.shape(names.of("blocks.0.up.weight"), 2)
    heads = blocks.heads or width // blocks.head_width
    if heads < 1 or width % heads:
        raise ModelError(f"{weights.file}: a width of {width} cannot be split among {heads} attention heads")
    depth = _count_blocks(weights, names.block_prefix)
    return TowerShape(width, depth, heads, hidden, blocks.activation, blocks.epsilon)


def _count_blocks(weights: Weights, prefix: str) -> int:
    """Count the blocks whose weights are named `prefix.NUMBER.NAME`."""
    matches = (re.match(rf"{re.escape(prefix)}\.(\d+)\.", name) for name in weights.tensors)
    return len({match[1] for match in matches if match})


def _feature_size(weights: Weights, names: WeightNames) -> int:
    """Return the number of features: the rows of the projection, or its columns if it is stored transposed."""
    return weights.shape(names.of("project.weight"), 2)["project.weight" in names.transposed]


def _load_weights(tower: _Tower, weights: Weights, names: WeightNames) -> _Tower:
    """Load weights as float32 into a tower on the meta device."""
    state = {}
    for parameter, empty in tower.state_dict().items():
        is_transposed = parameter in names.transposed
        shape = list(empty.shape[::-1] if is_transposed else empty.shape)
        tensor = _read_parameter(names.all_of(parameter), shape, weights)
        state[parameter] = tensor.T.contiguous() if is_transposed else tensor.contiguous()
    tower.load_state_dict(state, assign=True)
    return tower


def _read_parameter(names: tuple[str, ...], shape: list[int], weights: Weights) -> Tensor:
    """Concatenate the tensors of a parameter along the first axis, without leading dimensions of size 1."""
    tensors = []
    for name in names:
        tensor = weights.get(name)
        has_leading_ones = set(tensor.shape[: -len(shape)]) == {1}
        tensors.append(tensor.reshape(tensor.shape[-len(shape) :]) if has_leading_ones else tensor)
    expected = [shape[0] // len(names), *shape[1:]]
    fits = [tensor.dim() == len(shape) and list(tensor.shape[1:]) == shape[1:] for tensor in tensors]
    if not all(fits) or sum(map(len, tensors)) != shape[0]:
        wrong = (name for name, tensor in zip(names, tensors, strict=True) if list(tensor.shape) != expected)
        name = next(wrong, names[0])
        actual = tuple(weights.get(name).shape)
        raise ModelError(f"{weights.file}: {name} has the shape {actual}, not {tuple(expected)}")
    return torch.cat([tensor.float() for tensor in tensors]) if len(tensors) > 1 else tensors[0].float()


def compare_sizes(file: Path, sections: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]) -> None:
    """Raise ModelError if a size in a config differs from that of the weights.

    Args:
        sections: The sections of the config by name; the name of the top level is empty.
        sizes: The sizes of the weights by `section.name` in the config.
    """
    for name, size in sizes.items():
        section, _, key = name.rpartition(".")
        stated = sections[section].get(key)
        if stated is not None and stated != size:
            raise ModelError(f"{file}: {name} is {stated}, but the weights have {size}")


def check_towers(
    weights: Weights, vision: tuple[VisionTower | ResNetTower, WeightNames], text: tuple[TextTower, WeightNames]
) -> float:
    """Check that both towers have equally many features and use all weights; return the logit scale, often about 100.

    Raises:
        ModelError: Sizes differ, or a weight is not used, so the model is of another kind.
    """
    if vision[0].output != text[0].output:
        raise ModelError(f"{weights.file}: images have {vision[0].output} features, but texts {text[0].output}")
    used = {name for tower, names in (vision, text) for key in tower.state_dict() for name in names.all_of(key)}
    used |= {_SCALE, _BIAS} if isinstance(text[0], PaddedText) else {_SCALE}
    for name in weights.tensors:
        if name not in used and not _IGNORED_WEIGHTS.fullmatch(name):
            raise ModelError(f"{weights.file}: the weight {name} is not part of this kind of CLIP")
    if weights.get(_SCALE).numel() != 1:
        raise ModelError(f"{weights.file}: {_SCALE} has the shape {tuple(weights.get(_SCALE).shape)}, not ()")
    return float(weights.get(_SCALE).float().exp())


@dataclass(frozen=True)
class ClipParts:
    """The contents of a checkpoint: towers, tokenizer and image transform."""

    vision: VisionTower | ResNetTower
    text: TextTower
    logit_scale: float
    tokenizer: Tokenizer
    transform: ImageTransform
    collate: Callable[[Sequence[Sequence[int]]], Sentences]  # token ids of each sentence -> batch for the text tower

"""pFedMoAP (Luo et al., ICLR 2025): a mixture of a client's own text prompt and those of the nearest clients.

The server averages the text prompts and sends each client the last prompts of the E - 1 clients whose prompts are
nearest to its own: the experts. With T_e (C, d) the class features by expert e, the own prompt first, the client's gate
is an attention of the image over the experts, class by class,

    T_MoE(c) = attention(Pool f W_q, Pool T_.(c) W_k, Pool T_.(c) W_v) W_o,
    z_c = s <Pool f, T_MoE(c)> + lambda s <f, T_own(c)>,

where Pool keeps every (d / 128)th coordinate. Prompt and gate are trained; the gate never leaves the client. Scores are
multiplied by 10 instead of divided by the square root of a width, and E, lambda and the heads are the authors'. Here
the experts are the nearest clients as in the paper; the authors' code takes a fixed random order.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..clip.encoder import Array, Encoder
from ..clip.frozen_clip import Clip
from ..config import Section
from ..errors import ConfigError
from ..rng import stream
from .base import FrozenImages, NamedTensors
from .prompts import Shape, first_prompts, text_shape

_POOLED = 128  # coordinates of a feature that the gate receives
_SHARPNESS = 10.0  # of the attention over the experts, instead of 1 / sqrt(width)
_GATE = ("query", "key", "value", "output")
_EXPERTS = "experts' text"  # the other clients' prompts, as sent by the server
_EXPERT_CLASS_FEATURES = "experts' classes"  # their class features, computed once per round


class _PFedMoAPOptions(Section):
    """Settings of pFedMoAP, as in its authors' configuration."""

    experts: int = Field(10, ge=1)
    """E: prompts in the mixture, the client's own and E - 1 of the clients nearest to it"""
    own_weight: float = Field(0.5, ge=0)
    """lambda: weight of the client's own prompt relative to the mixture"""
    heads: int = Field(8, ge=1)
    """of the gate's attention"""
    gate_lr: float = Field(0.01, gt=0)
    """maximum learning rate of the gate; that of the prompt is train.lr"""


class PFedMoAP(FrozenImages):
    """A shared text prompt, mixed with those of the nearest clients by a personal gate (pFedMoAP).

    Training starts from the average; labelling and evaluation use the client's own last prompt.
    """

    title = "pFedMoAP"
    class_arrays = ("text", _EXPERTS, _EXPERT_CLASS_FEATURES)
    Options = _PFedMoAPOptions

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        size = len(range(0, clip.feature_size, _stride(clip.feature_size)))
        if size % self.options.heads:
            raise ConfigError(f"options.heads: must divide the {size} dimensions of the gate's input")
        maps: dict[str, Shape] = {_gate_name(part): (size, size) for part in _GATE}
        biases: dict[str, Shape] = {f"{name} bias": (size,) for name in maps}
        return {"text": text_shape(clip, self.config.model)} | maps | biases

    def shared(self) -> tuple[str, ...]:
        return ("text",)

    def neighbours(self) -> int:
        return int(self.options.experts) - 1

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        """Return the initial prompt, and a gate uniform in +- 1 / sqrt(width), the default of torch's layers."""
        shapes = self.shapes(clip, classes)
        text = first_prompts(clip, self.config, {"text": shapes.pop("text")})
        return text | {
            name: stream(self.config.seed, f"initial {name}").uniform(-1, 1, shape).astype(np.float32)
            / np.float32(np.sqrt(shape[-1]))
            for name, shape in shapes.items()
        }

    def max_lr(self, name: str) -> float:
        return self.config.train.lr if name == "text" else float(self.options.gate_lr)

    def inference_prompts(self, prompts: Mapping[str, Array]) -> Mapping[str, Array]:
        return {**prompts, "text": prompts.get("own text", prompts["text"])}

    def after_training(self, trained: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"own text": trained["text"]}

    def before_training(self, encoder: Encoder, constants: NamedTensors) -> NamedTensors:
        """Compute the experts' class features, which do not change during training."""
        if _EXPERTS not in constants:
            return constants
        return {**constants, _EXPERT_CLASS_FEATURES: _expert_class_features(encoder, constants[_EXPERTS])}

    def class_features(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        """Return the class features T_e, (E, C, d), by the client's own prompt first."""
        own = encoder.class_features(params["text"])[None]
        if _EXPERTS not in params:
            return own
        experts = params.get(_EXPERT_CLASS_FEATURES)
        return torch.cat([own, _expert_class_features(encoder, params[_EXPERTS]) if experts is None else experts])

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        """Return z_c = s <Pool f, T_MoE(c)> + lambda s <f, T_own(c)>; without experts, z_c = s <f, T_own(c)>."""
        own_logits = encoder.logits(images, classes[0])
        if len(classes) == 1:
            return own_logits
        stride = _stride(images.shape[-1])
        gate = {part: (params[_gate_name(part)], params[f"{_gate_name(part)} bias"]) for part in _GATE}
        mixed = _mixture(images[:, ::stride], classes[..., ::stride], gate, self.options.heads)
        own_weight: float = self.options.own_weight
        return encoder.clip.logit_scale * mixed + own_weight * own_logits


def _expert_class_features(encoder: Encoder, prompts: Tensor) -> Tensor:
    return torch.stack([encoder.class_features(prompt) for prompt in prompts])


def _gate_name(part: str) -> str:
    return f"gate {part}"


def _stride(width: int) -> int:
    """Return the step between the coordinates of a feature that the gate receives (the authors' "pooling")."""
    return max(width // _POOLED, 1)


def _mixture(images: Tensor, classes: Tensor, gate: Mapping[str, tuple[Tensor, Tensor]], heads: int) -> Tensor:
    """Return <Pool f, T_MoE(c)>, (B, C), where T_MoE is the attention of the image over the experts' class features.

    Args:
        images: Pool f, (B, p).
        classes: Pool T_e, (E, C, p).
        gate: Weight and bias of the four linear maps.
    """
    query, key, value = (
        F.linear(features, *gate[part]).unflatten(-1, (heads, -1))
        for part, features in (("query", images), ("key", classes), ("value", classes))
    )
    attention = (_SHARPNESS * torch.einsum("bhp,echp->bche", query, key)).softmax(-1)
    mixed = torch.einsum("bche,echp->bchp", attention, value).flatten(-2)
    return torch.einsum("bp,bcp->bc", images, F.linear(mixed, *gate["output"]))

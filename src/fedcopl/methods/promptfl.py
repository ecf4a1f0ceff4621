"""PromptFL (Guo et al., 2023) and PromptProx: one averaged text prompt.

The prompt P (m, w) stands before every class name, w_c = text(P, name_c), and z_c = s <f, w_c>; images are encoded
once, because nothing changes them. PromptProx adds FedProx's (mu / 2) |P - P^r|^2 with P^r the average that the round
began with. Here this term contributes to the gradient; in the published code it does not.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from ..config import RunConfig, Section
from .base import FrozenImages, Method, NamedTensors


class _PromptFLOptions(Section):
    """Settings of PromptFL."""

    modality: Literal["text", "dual"] = "text"
    """`text` as in PromptFL; `dual` also trains and averages visual prompts"""


class _PromptProxOptions(_PromptFLOptions):
    """Settings of PromptProx."""

    mu: float = Field(0.5, ge=0)
    """weight of the proximal term; 0.5 as in the repositories of FedOTP and pFedMoAP"""


class _PromptFL(FrozenImages):
    """FedAvg over the text prompt."""

    title = "PromptFL"
    Options = _PromptFLOptions

    def shared(self) -> tuple[str, ...]:
        return ("text",)


class _DualPromptFL(Method):
    """FedAvg over both prompts."""

    title = "PromptFL"
    Options = _PromptFLOptions

    def shared(self) -> tuple[str, ...]:
        return ("visual", "text")


class _Proximal(Method):
    """Adds the proximal term (mu / 2) |theta - theta^r|^2 to the loss."""

    title = "PromptProx"
    Options = _PromptProxOptions

    def penalty(self, params: NamedTensors, begin: NamedTensors) -> Tensor | float:
        mu: float = self.options.mu
        if mu == 0:
            return 0.0  # instead of 0 * distance, so that the bits are those of PromptFL
        return mu / 2 * sum((params[name] - begin[name]).square().sum() for name in begin)


class _PromptProx(_Proximal, _PromptFL):
    """PromptFL with the proximal term."""


class _DualPromptProx(_Proximal, _DualPromptFL):
    """PromptProx with both prompts."""


def promptfl(config: RunConfig) -> Method:
    """One averaged text prompt (PromptFL)."""
    return _DualPromptFL(config) if config.options.get("modality") == "dual" else _PromptFL(config)


def promptprox(config: RunConfig) -> Method:
    """PromptFL with a proximal term that penalises the distance to the average (PromptProx)."""
    return _DualPromptProx(config) if config.options.get("modality") == "dual" else _PromptProx(config)

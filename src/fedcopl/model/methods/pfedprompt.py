"""pFedPrompt (Guo et al., WWW 2023): a shared text prompt, and attention over what each client has seen.

There is no published code. This is a reconstruction: Tip-Adapter's kernel over the client's own pseudo-labelled images.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ...config import RunConfig, Section
from ...core.memory import Memory, build_memory, memory_logits
from ...core.select import Selection
from ..encoder import Array
from .base import Named, in_double
from .promptfl import FrozenImages


class PFedPromptOptions(Section):
    """Settings of pFedPrompt; the constants are Tip-Adapter's usual ones."""

    memory_weight: float = Field(1.0, ge=0)
    """alpha: how much the memory counts; 0 is PromptFL"""
    sharpness: float = Field(5.5, gt=0)
    """beta of the kernel exp(-beta (1 - cosine)); for `softmax` the inverse temperature"""
    kernel: Literal["exp", "softmax"] = "exp"
    """how near images count"""
    memory_per_class: int = Field(16, ge=1)
    """images remembered of each class, the surest"""


class PFedPrompt(FrozenImages):
    """The text prompt is a consensus, so it trains on text logits alone; the memory speaks when labels are made."""

    Options = PFedPromptOptions

    def shared(self) -> tuple[str, ...]:
        return ("text",)

    def remember(self, frozen: Callable[[], Tensor], selection: Selection, classes: int) -> dict[str, Array]:
        memory = build_memory(in_double(frozen()), selection, classes, self.options.memory_per_class)
        return {"memory keys": memory.keys.astype(np.float32), "memory values": memory.values.astype(np.float32)}

    def personal(self, logits: Tensor, images: Tensor, named: Named) -> Tensor:
        weight: float = self.options.memory_weight
        if weight == 0 or "memory keys" not in named:
            return logits
        keys, values = in_double(named["memory keys"]), in_double(named["memory values"])
        memory = Memory(keys, values, np.arange(len(keys)))
        added = memory_logits(in_double(images), memory, sharpness=self.options.sharpness, kernel=self.options.kernel)
        return logits + weight * torch.from_numpy(added).to(logits)


def pfedprompt(config: RunConfig) -> PFedPrompt:
    """A shared text prompt, and a memory of each client's own images (pFedPrompt, reconstructed)."""
    return PFedPrompt(config)

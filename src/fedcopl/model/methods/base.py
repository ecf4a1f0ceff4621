"""The shape of all methods: what is trained, what is shared, what stays, how logits are made, what the loss adds."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ...config import RunConfig, Section, read_options
from ...core.select import Selection
from ..clip import Clip
from ..encoder import Array, Encoder
from ..prompts import Shape, initial_prompts, text_shape, visual_shape

Named = Mapping[str, Tensor]


class NoOptions(Section):
    """A method without settings of its own."""


class Method:
    """FedAvg over prompts of a frozen CLIP. A method says what differs; see the other files here for examples.

    `named` holds a client's model: trained arrays, and arrays it only remembers.
    """

    Options: ClassVar[type[Section]] = NoOptions  # the method's own settings, from the section [options]
    keeps_images: ClassVar[bool] = False  # `frozen` is worth computing once per run
    of_images: ClassVar[tuple[str, ...]] = ("visual",)  # what of `named` the image side depends on
    of_classes: ClassVar[tuple[str, ...]] = ("text",)  # and the class side

    def __init__(self, config: RunConfig):
        self.config = config
        self.options: Any = read_options(config, self.Options)

    def shapes(self, clip: Clip) -> dict[str, Shape]:
        """What is trained: names and shapes, all sizes from the backbone."""
        return {"visual": visual_shape(clip, self.config.model), "text": text_shape(clip, self.config.model)}

    def shared(self) -> tuple[str, ...]:
        """Which of these the server averages, none unless said otherwise. The others stay with their client."""
        return ()

    def start(self, clip: Clip) -> dict[str, Array]:
        """The values to begin with, the same at every client."""
        return initial_prompts(self.shapes(clip), self.config.model.init_std, self.config.seed)

    def remember(self, frozen: Callable[[], Tensor], selection: Selection, classes: int) -> dict[str, Array]:
        """What a client keeps of its newly chosen images, beside what it trains. Never sent."""
        return {}

    def frozen(self, encoder: Encoder, tokens: Tensor) -> Tensor:
        """What of an image no training changes."""
        return tokens

    def plain_images(self, frozen: Tensor) -> Tensor | None:
        """Zero-shot CLIP's image side, where what is kept of the images tells it: then they are not encoded again."""
        return None

    def images(self, encoder: Encoder, frozen: Tensor, named: Named) -> Tensor:
        """The image side, f(x), of length one."""
        return encoder.image_features(frozen, named["visual"])

    def classes(self, encoder: Encoder, named: Named) -> Tensor:
        """The class side, w_c, of length one: computed once per step or pass, not per image."""
        return encoder.class_features(named["text"])

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor) -> Tensor:
        """z (B, C) as trained."""
        return encoder.logits(images, classes)

    def personal(self, logits: Tensor, images: Tensor, named: Named) -> Tensor:
        """z as used for labelling and evaluation, where a method adds what a client remembers."""
        return logits

    def penalty(self, named: Named, begin: Named) -> Tensor | float:
        """What the loss adds, given where the round began."""
        return 0.0


def loss_on(logits: Tensor, selection: Selection) -> Tensor:
    """Cross-entropy on hard labels; on candidate sets S the partial-label loss -log sum_{c in S} p_c."""
    if selection.candidates is None:
        return F.cross_entropy(logits, torch.from_numpy(selection.label).to(logits.device))
    inside = torch.from_numpy(selection.candidates).to(logits.device)
    within = logits.masked_fill(~inside, float("-inf")).logsumexp(-1)
    return (logits.logsumexp(-1) - within).mean()


def as_numpy(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().cpu().numpy()


def in_double(tensor: Tensor) -> NDArray[np.float64]:
    """For the algorithm core, which computes in float64."""
    return tensor.detach().cpu().double().numpy()

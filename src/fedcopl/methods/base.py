"""The shape of all methods: what is trained, what is shared, what stays, how logits are made, what the loss adds."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm.select import Selection
from ..clip.encoder import Array, Encoder
from ..clip.frozen_clip import Clip
from ..config import NoOptions, RunConfig, Section, read_options
from .prompts import Shape, first_prompts, text_shape, visual_shape

Named = Mapping[str, Tensor]
Fit = Callable[[Tensor], Tensor]
"""How well logits fit the pseudo labels of the images they are of."""


class Method:
    """FedAvg over prompts of a frozen CLIP. A method says what differs; see the other files here for examples.

    `named` holds a client's model: trained arrays, and arrays it only remembers. `images` and `classes` get those that
    `of_images` and `of_classes` name: both are kept until one of these changes. A method that averages a bias for each
    class beside the text prompt is this, its test, one line in the table `METHODS`, one row in docs/methods.md:

    >>> class PromptWithBias(Method):
    ...     title, words = "Prompt + bias", {"text": "text prompts", "bias": "a bias for each class"}
    ...
    ...     def shapes(self, clip, classes):
    ...         return {**super().shapes(clip, classes), "bias": (classes,)}
    ...
    ...     def shared(self):
    ...         return ("text", "bias")
    ...
    ...     def logits(self, encoder, images, classes, named):
    ...         return super().logits(encoder, images, classes, named) + named["bias"]
    >>> PromptWithBias(RunConfig()).averaged()
    ('text prompts', 'a bias for each class')
    """

    title: ClassVar[str] = "Local"  # display name; `run_title` adds labeler and priors
    is_ours: ClassVar[bool] = False  # CoPL's labels and priors are expected of it; otherwise a method of the literature
    words: ClassVar[Mapping[str, str]] = {"visual": "visual prompts", "text": "text prompts"}  # for what is averaged
    plays_once: ClassVar[bool] = False  # one round is all there is to it
    trains: ClassVar[bool] = True  # False: nothing is trained, so no round is played for it
    answers_alone: ClassVar[bool] = False  # without training each site still answers in a way of its own, by itself
    pools: ClassVar[bool] = False  # all images in one place: no federation, but what one is measured against
    Options: ClassVar[type[Section]] = NoOptions  # the method's own settings, from the section [options]
    keeps_images: ClassVar[bool] = False  # `frozen` is worth computing once per run
    of_images: ClassVar[tuple[str, ...]] = ("visual",)  # the arrays that `images` gets, and no others
    of_classes: ClassVar[tuple[str, ...]] = ("text",)  # and `classes`
    everyone_first: ClassVar[bool] = False  # all clients train in the first round, whatever the participation

    remembers_by_class: ClassVar[tuple[str, ...]] = ()  # what of a client's memory is of no use with other classes

    def __init__(self, config: RunConfig):
        self.config = config
        self.options: Any = read_options(config, self.Options)

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        """What is trained: names and shapes, all sizes from the backbone and the number of classes."""
        return {"visual": visual_shape(clip, self.config.model), "text": text_shape(clip, self.config.model)}

    def shared(self) -> tuple[str, ...]:
        """Which of these the server averages, none unless said otherwise. The others stay with their client."""
        return ()

    def averaged(self) -> tuple[str, ...]:
        """The same in words, for people: arrays that belong together are named once."""
        return tuple(dict.fromkeys(self.words.get(name, name) for name in self.shared()))

    def neighbours(self) -> int:
        """How many other clients' shared prompts each client is sent, under the names "experts' NAME"."""
        return 0

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        """The values to begin with, the same at every client."""
        return first_prompts(clip, self.config, self.shapes(clip, classes))

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

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor, named: Named) -> Tensor:
        """z (B, C) as trained."""
        return encoder.logits(images, classes)

    def at_home(self, prompts: Mapping[str, Array]) -> Mapping[str, Array]:
        """A client's model as used for labelling and evaluation; training starts from what the server sent."""
        return prompts

    def personal(self, encoder: Encoder, images: Tensor, classes: Tensor, named: Named) -> Tensor:
        """z as used for labelling and evaluation, where a method adds what a client remembers."""
        return self.logits(encoder, images, classes, named)

    def before_training(self, encoder: Encoder, constants: Named) -> Named:
        """What training needs beside what it changes, computed once a round."""
        return constants

    def rate(self, name: str) -> float:
        """The learning rate of one trained array, at its highest."""
        return self.config.train.lr

    def loss(
        self, encoder: Encoder, images: Tensor, classes: Tensor, named: Named, batch: Selection, fit: Fit
    ) -> Tensor:
        """What is minimised on a batch: how well the logits fit its pseudo labels."""
        return fit(self.logits(encoder, images, classes, named))

    def after_training(self, trained: Mapping[str, Array]) -> Mapping[str, Array]:
        """What a client keeps of its own training beside what stays at home anyway. Never sent."""
        return {}

    def penalty(self, named: Named, begin: Named) -> Tensor | float:
        """What the loss adds, given where the round began."""
        return 0.0


def as_numpy(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().cpu().numpy()


def in_double(tensor: Tensor) -> NDArray[np.float64]:
    """For the algorithm core, which computes in float64."""
    return tensor.detach().cpu().double().numpy()

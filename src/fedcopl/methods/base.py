"""The base class of all methods: which arrays are trained and shared, how logits and the loss are computed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm import IntArray
from ..algorithm.select import Selection
from ..clip.encoder import Array, Encoder
from ..clip.frozen_clip import Clip
from ..config import NoOptions, RunConfig, Section, read_options
from .prompts import Shape, first_prompts, repeat_words, text_shape, visual_shape

NamedTensors = Mapping[str, Tensor]
"""The arrays of a client's model by name, on the device."""
Criterion = Callable[[Tensor], Tensor]
"""The loss of a batch's logits on its pseudo labels."""


@dataclass(frozen=True)
class Batch:
    """One training step: its B images with their pseudo labels, and the features by the arrays in training."""

    encoder: Encoder
    images: Tensor  # image features, (B, d)
    classes: Tensor  # class features, (C, d)
    params: NamedTensors  # all arrays of the client's model
    index: IntArray  # which of the client's images, (B,)
    label: IntArray  # pseudo labels, (B,)
    candidates: NDArray[Any] | None  # candidate sets or soft targets, (B, C), if the labeler makes them
    plain: Callable[[], Tensor]  # computes zero-shot CLIP's features of these images, (B, d), without gradient


class Method:
    """FedAvg over prompts of a frozen CLIP; a method overrides what differs.

    `params` has the arrays of a client's model: trained ones, and others that the client keeps. `images` and `classes`
    receive only the arrays that `of_images` and `of_classes` declare, because their results are cached until one of
    these changes. A method that also averages a bias for each class is this class, its test, a line in `METHODS` and a
    row in docs/methods.md:

    >>> class PromptWithBias(Method):
    ...     title, words = "Prompt + bias", {"text": "text prompts", "bias": "a bias for each class"}
    ...
    ...     def shapes(self, clip, classes):
    ...         return {**super().shapes(clip, classes), "bias": (classes,)}
    ...
    ...     def shared(self):
    ...         return ("text", "bias")
    ...
    ...     def logits(self, encoder, images, classes, params):
    ...         return super().logits(encoder, images, classes, params) + params["bias"]
    >>> PromptWithBias(RunConfig()).averaged()
    ('text prompts', 'a bias for each class')
    """

    title: ClassVar[str] = "Local"  # display name; `run_title` adds labeler and priors
    is_ours: ClassVar[bool] = False  # CoPL's labels and priors are expected of it; otherwise a method of the literature
    words: ClassVar[Mapping[str, str]] = {"visual": "visual prompts", "text": "text prompts"}  # names of shared arrays
    trains: ClassVar[bool] = True  # False: nothing is trained, so there is one round
    personal_without_training: ClassVar[bool] = False  # each site's predictions are its own although nothing is trained
    pools: ClassVar[bool] = False  # all images in one place: the centralised baseline
    Options: ClassVar[type[Section]] = NoOptions  # the method's own settings, from the section [options]
    keeps_images: ClassVar[bool] = False  # `frozen` is computed once per run and cached
    of_images: ClassVar[tuple[str, ...]] = ("visual",)  # the arrays that `images` receives, and no others
    of_classes: ClassVar[tuple[str, ...]] = ("text",)  # the arrays that `classes` receives, and no others
    everyone_first: ClassVar[bool] = False  # all clients train in the first round, whatever the participation
    remembers_by_class: ClassVar[tuple[str, ...]] = ()  # kept arrays that are of no use with other classes

    def __init__(self, config: RunConfig):
        self.config = config
        self.options: Any = read_options(config, self.Options)

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        """Return the names and shapes of the trained arrays."""
        return {"visual": visual_shape(clip, self.config.model), "text": text_shape(clip, self.config.model)}

    def shared(self) -> tuple[str, ...]:
        """Return the names of the trained arrays that the server averages; the others stay at their client."""
        return ()

    def averaged(self) -> tuple[str, ...]:
        """Return descriptions of the shared arrays, for reports."""
        return tuple(dict.fromkeys(self.words.get(name, name) for name in self.shared()))

    def neighbours(self) -> int:
        """Return how many other clients' shared arrays each client receives, under the names "experts' NAME"."""
        return 0

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        """Return the initial values of the trained arrays, the same at every client."""
        return first_prompts(clip, self.config, self.shapes(clip, classes))

    def start_at(self, start: Mapping[str, Array], client: int) -> Mapping[str, Array]:
        """Return the initial values at one client, in the same shapes; shared arrays must be those of `start`."""
        return start

    def remember(self, frozen: Callable[[], Tensor], selection: Selection, classes: int) -> dict[str, Array]:
        """Return arrays to keep of newly selected images, in addition to trained ones; they are never sent.

        Args:
            frozen: Computes `frozen` of all images of the client.
            selection: The selected images with their pseudo labels.
            classes: The number of classes, C.
        """
        return {}

    def frozen(self, encoder: Encoder, tokens: Tensor) -> Tensor:
        """Return the output of the image layers that training does not change, from embedded tokens."""
        return tokens

    def plain_images(self, frozen: Tensor) -> Tensor | None:
        """Return zero-shot CLIP's image features from `frozen`; None if it does not contain them."""
        return None

    def images(self, encoder: Encoder, frozen: Tensor, params: NamedTensors) -> Tensor:
        """Return the normalised image features f(x), (B, d)."""
        return encoder.image_features(frozen, params["visual"])

    def classes(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        """Return the normalised class features w_c, (C, d), computed once per step."""
        return encoder.class_features(params["text"])

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        """Return the logits z, (B, C), used in training."""
        return encoder.logits(images, classes)

    def inference_prompts(self, prompts: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the arrays for labelling and evaluation; training starts from those the server sent."""
        return prompts

    def personal(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        """Return the logits z, (B, C), for labelling and evaluation, which may use arrays the client keeps."""
        return self.logits(encoder, images, classes, params)

    def before_training(self, encoder: Encoder, constants: NamedTensors) -> NamedTensors:
        """Return the arrays that training uses and does not change, computed once per round."""
        return constants

    def rate(self, name: str) -> float:
        """Return the maximum learning rate of one trained array."""
        return self.config.train.lr

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        """Return the loss of a batch.

        Args:
            batch: The images with their pseudo labels, the features and the arrays.
            criterion: Computes the loss on the pseudo labels from logits, (B, C). A loss that calls it several times
                calls it last with the logits of the prediction: losses on candidate sets keep the last probabilities.
        """
        return criterion(self.logits(batch.encoder, batch.images, batch.classes, batch.params))

    def after_training(self, trained: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return further arrays to keep after training; they are never sent."""
        return {}

    def penalty(self, params: NamedTensors, begin: NamedTensors) -> Tensor | float:
        """Return a regularisation term, given the trained arrays now and at the beginning of the round."""
        return 0.0


class FrozenImages(Method):
    """A method that does not train image features: they are computed once per run."""

    keeps_images = True
    of_images = ()

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        return dict.fromkeys(self.of_classes, text_shape(clip, self.config.model))

    def frozen(self, encoder: Encoder, tokens: Tensor) -> Tensor:
        return encoder.image_features(tokens)

    def plain_images(self, frozen: Tensor) -> Tensor:
        return frozen

    def images(self, encoder: Encoder, frozen: Tensor, params: NamedTensors) -> Tensor:
        return frozen


class HandWrittenTexts(Method):
    """A method whose class features are those of zero-shot CLIP, by the hand-written sentences."""

    of_classes = ()

    def classes(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        return encoder.class_features(None)


class TwoTextPrompts(Method):
    """A method with a text prompt that the server averages, "global text", and one that stays, "local text"."""

    words = MappingProxyType({"global text": "global text prompts"})
    of_classes: ClassVar[tuple[str, ...]] = ("global text", "local text")

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        return dict.fromkeys(("global text", "local text"), text_shape(clip, self.config.model))

    def shared(self) -> tuple[str, ...]:
        return ("global text",)

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        """Return different initial values for the global and the local text prompt: equal ones would stay equal."""
        first = super().start(clip, classes)
        if self.config.train.init == "neutral":
            first["local text"] = repeat_words(clip, self.config.model.template, first["local text"].shape)
        return first


def as_numpy(tensor: Tensor) -> NDArray[np.float32]:
    """Return a tensor as an array on the CPU."""
    return tensor.detach().cpu().numpy()


def in_double(tensor: Tensor) -> NDArray[np.float64]:
    """Return a tensor as a float64 array on the CPU, for `algorithm`."""
    return tensor.detach().cpu().double().numpy()

"""The base class of all methods: the arrays they train and share, and how they compute logits and the loss."""

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
"""The arrays of a client's model by name, on the device of the encoder."""
Criterion = Callable[[Tensor], Tensor]
"""Maps the logits of a batch, (B, C), to their mean loss on its pseudo labels."""


@dataclass(frozen=True)
class Batch:
    """The B images of a training step with their pseudo labels, and the features by the current arrays."""

    encoder: Encoder
    images: Tensor  # image features, (B, d)
    classes: Tensor  # class features, (C, d)
    params: NamedTensors  # all arrays of the client's model
    index: IntArray  # positions among the client's images, (B,)
    label: IntArray  # pseudo labels, (B,)
    candidates: NDArray[Any] | None  # candidate sets or soft targets, (B, C); None with hard labels
    zero_shot: Callable[[], Tensor]  # returns zero-shot CLIP's features of these images, (B, d), without gradient


class Method:
    """FedAvg over the prompts of a frozen CLIP; a subclass overrides the parts in which its method differs.

    `params` has all arrays of a client's model, trained or only kept. `image_features` and `class_features` receive
    the arrays that `image_arrays` and `class_arrays` declare and no others, because their results are cached until
    one of these changes. For example, a method that also averages a bias for each class:

    >>> class PromptWithBias(Method):
    ...     title, display_names = "Prompt + bias", {"text": "text prompts", "bias": "a bias for each class"}
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
    is_ours: ClassVar[bool] = False  # uses CoPL's labels and the priors by definition; others are of the literature
    display_names: ClassVar[Mapping[str, str]] = {"visual": "visual prompts", "text": "text prompts"}  # of arrays
    trains: ClassVar[bool] = True  # False: nothing is trained, so there is one round
    personal_without_training: ClassVar[bool] = False  # predictions differ between sites although nothing is trained
    centralised: ClassVar[bool] = False  # all images in one place: a baseline without federation
    Options: ClassVar[type[Section]] = NoOptions  # the method's own settings, from the section [options]
    caches_frozen: ClassVar[bool] = False  # `frozen_features` is computed once per run and cached
    image_arrays: ClassVar[tuple[str, ...]] = ("visual",)  # the only arrays that `image_features` receives
    class_arrays: ClassVar[tuple[str, ...]] = ("text",)  # the only arrays that `class_features` receives
    full_first_round: ClassVar[bool] = False  # all clients train in the first round, whatever the participation
    class_memory: ClassVar[tuple[str, ...]] = ()  # arrays of `build_memory` to drop if a run continues with new classes

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
        return tuple(dict.fromkeys(self.display_names.get(name, name) for name in self.shared()))

    def neighbours(self) -> int:
        """Return the number of other clients whose shared arrays each client receives, as "experts' NAME"."""
        return 0

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        """Return the initial values of the trained arrays, the same at every client."""
        return first_prompts(clip, self.config, self.shapes(clip, classes))

    def start_at(self, start: Mapping[str, Array], client: int) -> Mapping[str, Array]:
        """Return the initial values at one client; shapes and shared arrays must be those of `start`."""
        return start

    def build_memory(self, frozen: Callable[[], Tensor], selection: Selection, classes: int) -> dict[str, Array]:
        """Return arrays that the client keeps of newly selected images; they are never sent.

        Args:
            frozen: Returns the output of `frozen_features` for all images of the client.
            selection: The selected images with their pseudo labels.
            classes: The number of classes, C.
        """
        return {}

    def frozen_features(self, encoder: Encoder, tokens: Tensor) -> Tensor:
        """Return the output of the image layers that training does not change, from embedded tokens."""
        return tokens

    def zero_shot_features(self, frozen: Tensor) -> Tensor | None:
        """Return zero-shot CLIP's image features from `frozen`; None if it does not contain them."""
        return None

    def image_features(self, encoder: Encoder, frozen: Tensor, params: NamedTensors) -> Tensor:
        """Return the normalised image features f(x), (B, d)."""
        return encoder.image_features(frozen, params["visual"])

    def class_features(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        """Return the normalised class features w_c, (C, d), computed once per step."""
        return encoder.class_features(params["text"])

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        """Return the logits z, (B, C), used in training."""
        return encoder.logits(images, classes)

    def inference_prompts(self, prompts: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the arrays for labelling and evaluation; training always starts from the server's arrays."""
        return prompts

    def inference_logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        """Return the logits z, (B, C), used in labelling and evaluation; they may use arrays of `build_memory`."""
        return self.logits(encoder, images, classes, params)

    def before_training(self, encoder: Encoder, constants: NamedTensors) -> NamedTensors:
        """Return the arrays that training uses but does not change, computed once per round."""
        return constants

    def max_lr(self, name: str) -> float:
        """Return the maximum learning rate of one trained array."""
        return self.config.train.lr

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        """Return the loss of a batch.

        Args:
            batch: The images with their features and pseudo labels, and the arrays of the client's model.
            criterion: Computes the loss on the pseudo labels from logits, (B, C). If a method calls it several times,
                the last call must be with the logits that it predicts with: candidate-set losses update their weights
                from the last call.
        """
        return criterion(self.logits(batch.encoder, batch.images, batch.classes, batch.params))

    def after_training(self, trained: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return further arrays to keep after training; they are never sent."""
        return {}

    def penalty(self, params: NamedTensors, begin: NamedTensors) -> Tensor | float:
        """Return a regularisation term from the trained arrays and their values at the beginning of the round."""
        return 0.0


class FrozenImages(Method):
    """A method with frozen image features, which are computed once per run."""

    caches_frozen = True
    image_arrays = ()

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        return dict.fromkeys(self.class_arrays, text_shape(clip, self.config.model))

    def frozen_features(self, encoder: Encoder, tokens: Tensor) -> Tensor:
        return encoder.image_features(tokens)

    def zero_shot_features(self, frozen: Tensor) -> Tensor:
        return frozen

    def image_features(self, encoder: Encoder, frozen: Tensor, params: NamedTensors) -> Tensor:
        return frozen


class FrozenTexts(Method):
    """A method with frozen class features: those of zero-shot CLIP, from the text template."""

    class_arrays = ()

    def class_features(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        return encoder.class_features(None)


class TwoTextPrompts(Method):
    """A method with an averaged text prompt, "global text", and a personal one, "local text"."""

    display_names = MappingProxyType({"global text": "global text prompts"})
    class_arrays: ClassVar[tuple[str, ...]] = ("global text", "local text")

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        return dict.fromkeys(("global text", "local text"), text_shape(clip, self.config.model))

    def shared(self) -> tuple[str, ...]:
        return ("global text",)

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        """Return different initial values for both text prompts: equal prompts would stay equal."""
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

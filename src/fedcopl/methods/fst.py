"""After FST-CBDG (Yan & Guo, 2024): a linear classifier on frozen features, made-up features where classes are rare.

Its paper keeps a soft label of every image, and moves it by what the classifier says as it trains. Here labels are a
labeler's, hard, and of the images that it chose: no method keeps anything of each image or knows what the guard holds
out.

The classifier begins as CLIP's text features and learns from pseudo labels. Where a batch has fewer images of a class
than of its commonest, features around the class's text feature stand in, so that a client of few classes does not
forget the others. The paper draws them; here each is weighed by how often it would be drawn: the same in the mean.
"""

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..algorithm.select import Selection
from ..clip.encoder import Array, Encoder
from ..clip.frozen_clip import Clip
from ..config import RunConfig, Section
from ..rng import stream
from .base import Fit, Named
from .promptfl import FrozenImages
from .prompts import Shape

MADE_UP = "made-up features"


class FSTOptions(Section):
    """Settings after FST-CBDG; how far and how many are ours."""

    balance: bool = True
    """fill rare classes up with features around their text feature"""
    spread: float = Field(0.5, ge=0)
    """length of the noise on a text feature of length 1"""
    samples: int = Field(16, ge=1)
    """made-up features of each class"""


class FST(FrozenImages):
    """z_c = <f, w_c + D_c>: D, which begins at 0, is what is trained and sent.

    CLIP's scale s is no part of it: with s an image that is labelled by its own model has next to no loss, and
    nothing would be learnt.
    """

    title, words = "after FST-CBDG", {"classifier": "linear classifiers"}
    Options = FSTOptions
    of_classes = ()

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        return {"classifier": (classes, clip.feature_size)}

    def shared(self) -> tuple[str, ...]:
        return ("classifier",)

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        return {name: np.zeros(shape, np.float32) for name, shape in self.shapes(clip, classes).items()}

    def classes(self, encoder: Encoder, named: Named) -> Tensor:
        return encoder.class_features(None)

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor, named: Named) -> Tensor:
        return images @ (classes + named["classifier"]).T

    def before_training(self, encoder: Encoder, constants: Named) -> Named:
        if not self.options.balance:
            return constants
        texts = encoder.class_features(None)
        noise = stream(self.config.seed, "made-up features").standard_normal((self.options.samples, *texts.shape))
        scaled = torch.from_numpy(noise / np.sqrt(texts.shape[1])).to(texts)
        return {**constants, MADE_UP: F.normalize(texts + self.options.spread * scaled, dim=-1)}

    def loss(
        self, encoder: Encoder, images: Tensor, classes: Tensor, named: Named, batch: Selection, fit: Fit
    ) -> Tensor:
        """The mean over the batch and what fills it up."""
        mean = super().loss(encoder, images, classes, named, batch, fit)
        if MADE_UP not in named:
            return mean
        missing = filled_up(batch.label, len(classes)).to(mean)
        made_up = self.logits(encoder, named[MADE_UP].flatten(0, 1), classes, named)
        targets = torch.arange(len(classes), device=mean.device).repeat(self.options.samples)
        each = F.cross_entropy(made_up, targets, reduction="none").view(self.options.samples, -1).mean(0)
        return (len(batch.label) * mean + missing @ each) / (len(batch.label) + missing.sum())


def filled_up(labels: np.ndarray, classes: int) -> Tensor:
    """How many images each class lacks to be as common as the commonest."""
    counts = np.bincount(labels, minlength=classes)
    return torch.from_numpy(counts.max(initial=0) - counts)


def fst(config: RunConfig) -> FST:
    """A linear classifier averaged, rare classes filled up with features around their texts (after Yan & Guo)."""
    return FST(config)

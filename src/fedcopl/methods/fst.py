"""A variant of FST-CBDG (Yan & Guo, 2024): a linear classifier, with synthetic features of rare classes.

In the paper every image has a soft label, which is updated during training; here a labeler selects images and their
hard labels.

The classifier starts at CLIP's text features. If a batch has fewer images of a class than of its most frequent one,
synthetic features around the text feature of the class are added, so that a client with few classes does not forget the
others. The paper samples them; here each is weighted by its expected number, which has the same mean.
"""

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..clip.encoder import Array, Encoder
from ..clip.frozen_clip import Clip
from ..config import Section
from ..rng import stream
from .base import Batch, Criterion, FrozenImages, FrozenTexts, NamedTensors
from .prompts import Shape

_SYNTHETIC = "synthetic features"


class _FSTOptions(Section):
    """Settings of the variant of FST-CBDG; `spread` and `samples` are not published."""

    balance: bool = True
    """balance rare classes with synthetic features around their text feature"""
    spread: float = Field(0.5, ge=0)
    """length of the noise on a text feature of length 1"""
    samples: int = Field(16, ge=1)
    """synthetic features of each class"""


class FST(FrozenTexts, FrozenImages):
    """An averaged linear classifier, rare classes balanced with synthetic features (variant of FST-CBDG).

    z_c = <f, w_c + D_c>, where D starts at 0 and is trained. CLIP's scale s is left out, because with it images with
    the model's own pseudo label have almost no loss; it is kept with priors, whose log-odds are added to s z_c.
    """

    title, display_names = "FST-CBDG variant", {"classifier": "linear classifiers"}
    Options = _FSTOptions

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        return {"classifier": (classes, clip.feature_size)}

    def shared(self) -> tuple[str, ...]:
        return ("classifier",)

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        return {name: np.zeros(shape, np.float32) for name, shape in self.shapes(clip, classes).items()}

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        classifier = classes + params["classifier"]
        return encoder.logits(images, classifier) if self.config.uses_priors else images @ classifier.T

    def before_training(self, encoder: Encoder, constants: NamedTensors) -> NamedTensors:
        """Add synthetic features to the constants: text features with noise, (samples, C, d)."""
        if not self.options.balance:
            return constants
        texts = encoder.class_features(None)
        noise = stream(self.config.seed, "made-up features").standard_normal((self.options.samples, *texts.shape))
        scaled = torch.from_numpy(noise / np.sqrt(texts.shape[1])).to(texts)
        return {**constants, _SYNTHETIC: F.normalize(texts + self.options.spread * scaled, dim=-1)}

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        """Return the mean loss over the batch and the synthetic features that balance it."""
        mean = super().loss(batch, criterion)
        if _SYNTHETIC not in batch.params:
            return mean
        classes, params, samples = batch.classes, batch.params, self.options.samples
        missing = _missing_images(batch.label, len(classes)).to(mean)
        synthetic = self.logits(batch.encoder, params[_SYNTHETIC].flatten(0, 1), classes, params)
        targets = torch.arange(len(classes), device=mean.device).repeat(samples)
        class_losses = F.cross_entropy(synthetic, targets, reduction="none").view(samples, -1).mean(0)
        return (len(batch.label) * mean + missing @ class_losses) / (len(batch.label) + missing.sum())


def _missing_images(labels: np.ndarray, classes: int) -> Tensor:
    """Return max_c n_c - n_c for each class, (C,), where n_c is its number of images."""
    counts = np.bincount(labels, minlength=classes)
    return torch.from_numpy(counts.max(initial=0) - counts)

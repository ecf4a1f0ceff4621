"""How far a device and a precision are from float32 on the CPU, on the built-in model and digits."""

from dataclasses import astuple, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedcopl.clip.device import Arithmetic
from fedcopl.clip.encoder import Encoder, TokenStore
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.data.catalog import CLASSES, load_digits

IMAGES, VECTORS, CONTEXT = 64, 5, 16
PLAIN = Arithmetic(torch.device("cpu"))


@dataclass(frozen=True)
class Step:
    """A training step of both prompts, and its results."""

    images: Tensor
    classes: Tensor
    loss: float
    visual: Tensor  # gradients
    context: Tensor


@dataclass(frozen=True)
class Distance:
    features: float  # largest difference of an element of a feature vector of norm 1
    loss: float  # in shares of the loss
    gradient: float  # length of the difference, in lengths of the gradient
    answers: float  # share of images that are answered otherwise

    def is_within(self, farthest: "Distance") -> bool:
        return all(ours <= theirs for ours, theirs in zip(astuple(self), astuple(farthest), strict=True))


# Of a GPU in float32, which adds up in another order and no more; and of the shorter numbers, four times as far as the
# CPU is from itself with them.
FARTHEST = {
    "fp32": Distance(features=1e-4, loss=1e-4, gradient=1e-2, answers=0.0),
    "bf16": Distance(features=0.01, loss=0.01, gradient=0.12, answers=0.05),
    "fp16": Distance(features=0.001, loss=0.001, gradient=0.01, answers=0.05),
}


def step(arithmetic: Arithmetic) -> Step:
    clip = load_clip("glyph-clip")
    pixels = np.stack([clip.preprocess.resize_and_crop(picture) for picture in load_digits().train.images[:IMAGES]])
    tokens = TokenStore.of(clip, pixels, memory=0)[np.arange(IMAGES)]
    encoder = Encoder(clip, CLASSES, "a photo of a {}", arithmetic)
    random = torch.Generator().manual_seed(0)
    levels, width = clip.vision.usual_prompt_levels, clip.vision.prompt_width
    visual = (0.02 * torch.randn(levels, VECTORS, width, generator=random)).to(arithmetic.device).requires_grad_()
    context = 0.02 * torch.randn(CONTEXT, clip.text.shape.width, generator=random)
    context = context.to(arithmetic.device).requires_grad_()
    images = encoder.image_features(tokens.to(arithmetic.device), visual)
    classes = encoder.class_features(context)
    label = torch.arange(IMAGES, device=arithmetic.device) % len(CLASSES)
    loss = F.cross_entropy(encoder.logits(images, classes), label)
    (loss * arithmetic.loss_scale).backward()
    gradients = [prompt.grad.cpu() / arithmetic.loss_scale for prompt in (visual, context)]
    return Step(images.detach().cpu(), classes.detach().cpu(), loss.item(), *gradients)


def distance(arithmetic: Arithmetic) -> Distance:
    """From float32 on the CPU."""
    plain, other = step(PLAIN), step(arithmetic)
    features = max((plain.images - other.images).abs().max(), (plain.classes - other.classes).abs().max())
    gradient = max(
        (ours - theirs).norm() / ours.norm()
        for ours, theirs in ((plain.visual, other.visual), (plain.context, other.context))
    )
    answers = [(found.images @ found.classes.T).argmax(1) for found in (plain, other)]
    differ = (answers[0] != answers[1]).float().mean()
    return Distance(float(features), abs(other.loss / plain.loss - 1), float(gradient), float(differ))

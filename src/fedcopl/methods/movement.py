"""How far prompts take a model from plain CLIP, on images whose labels nobody knows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ..algorithm.guard import at_even_distances
from ..clip.image_tokens import ClientImages
from .prompted_model import ImageSide, PromptedModel, Prompts

ENOUGH = 64  # images of a client to look at: a share of them is then known to a few per cent
CLIENTS = 50  # at even distances among all, to look at: with more the mean would not be known better


@dataclass(frozen=True)
class Movement:
    """What prompts change, against plain zero-shot CLIP."""

    images: int
    cosine: float | None  # mean over the images, of their features with and without; None where a method has others
    unchanged: float  # share of the images that get the same answer


def movement_of_all(clients: Sequence[tuple[PromptedModel, ClientImages]], prompts: Prompts) -> Movement | None:
    """Over several clients, each image counting alike; None where nobody has any."""
    some = (clients[number] for number in at_even_distances(len(clients), CLIENTS))
    found = [found for model, images in some if (found := movement(model, images, prompts)) is not None]
    if not found:
        return None
    weights = [one.images for one in found]
    cosines = [one.cosine for one in found if one.cosine is not None]
    cosine = float(np.average(cosines, weights=weights)) if len(cosines) == len(found) else None
    return Movement(sum(weights), cosine, float(np.average([one.unchanged for one in found], weights=weights)))


@torch.inference_mode()
def movement(model: PromptedModel, images: ClientImages, prompts: Prompts) -> Movement | None:
    """On some of a client's own images, at even distances; None for a client that has none."""
    if not len(images):
        return None
    few = at_even_distances(len(images), ENOUGH)
    side = ImageSide(model, images.part(few))
    same = side.logits(prompts).argmax(-1) == side.zero_shot_logits().argmax(-1)
    return Movement(len(few), _cosine(side, model.method.at_home(prompts)), same.double().mean().item())


def _cosine(side: ImageSide, prompts: Prompts) -> float | None:
    prompted, plain = torch.cat(side.features(prompts)), torch.cat(side.plain_features())
    return F.cosine_similarity(prompted, plain).double().mean().item() if prompted.shape == plain.shape else None

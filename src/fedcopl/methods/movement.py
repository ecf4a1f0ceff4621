"""How far prompts take a model from plain CLIP, on images whose labels nobody knows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ..algorithm.holdout import evenly_spaced
from ..clip.encoder import Rows
from .prompted_model import ImageSide, Prompts

ENOUGH = 64  # images of a client to look at: a share of them is then known to a few per cent
CLIENTS = 50  # at even distances among all, to look at: with more the mean would not be known better


@dataclass(frozen=True)
class Movement:
    """What prompts change, against plain zero-shot CLIP."""

    images: int
    cosine: float | None  # mean over the images, of their features with and without; None where a method has others
    unchanged: float  # share of the images that get the same answer


def mean_movement(found: Sequence[Movement]) -> Movement | None:
    """Over several clients, each image counting alike; None where nobody has any."""
    if not found:
        return None
    weights = [one.images for one in found]
    cosines = [one.cosine for one in found if one.cosine is not None]
    cosine = float(np.average(cosines, weights=weights)) if len(cosines) == len(found) else None
    return Movement(sum(weights), cosine, float(np.average([one.unchanged for one in found], weights=weights)))


@torch.inference_mode()
def movement(side: ImageSide, prompts: Prompts) -> Movement | None:
    """On some of a client's own images, at even distances; None for a client that has none.

    What plain CLIP sees is wanted of all of them soon: so it is looked at once, here.
    """
    if not len(side):
        return None
    few = evenly_spaced(len(side), ENOUGH)
    prompted, plain = side.part(few), side.zero_shot_logits()[torch.from_numpy(few)]
    same = prompted.logits(prompts).argmax(-1) == plain.argmax(-1)
    return Movement(len(few), _cosine(prompted, prompts, side, few), same.double().mean().item())


def _cosine(some: ImageSide, prompts: Prompts, side: ImageSide, few: Rows) -> float | None:
    prompted = torch.cat(some.features(some.at_home(prompts)))
    plain = torch.cat(side.plain_features())[torch.from_numpy(few).to(prompted.device)]
    return F.cosine_similarity(prompted, plain).double().mean().item() if prompted.shape == plain.shape else None

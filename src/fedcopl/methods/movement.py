"""How far prompts change the predictions of zero-shot CLIP, measured on unlabelled images."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ..algorithm.holdout import evenly_spaced
from .prompted_model import ImageSide, Prompts

IMAGES = 64  # images compared per client: a share is then known to a few per cent
CLIENTS = 50  # clients compared, evenly spaced: more would not improve the mean


@dataclass(frozen=True)
class Movement:
    """The difference that prompts make to zero-shot CLIP."""

    images: int
    cosine: float | None  # mean cosine of the features with and without; None where a method has other features
    unchanged: float  # share of the images with the same prediction


def mean_movement(movements: Sequence[Movement]) -> Movement | None:
    """Return the mean over several clients, weighted by images; None without any."""
    if not movements:
        return None
    weights = [one.images for one in movements]
    cosines = [one.cosine for one in movements if one.cosine is not None]
    cosine = float(np.average(cosines, weights=weights)) if len(cosines) == len(movements) else None
    return Movement(sum(weights), cosine, float(np.average([one.unchanged for one in movements], weights=weights)))


@torch.inference_mode()
def movement(side: ImageSide, prompts: Prompts) -> Movement | None:
    """Compare prompts with zero-shot CLIP on some evenly spaced images of a client; None for a client without images.

    Zero-shot features of all images are computed and kept, because the first labels need them.
    """
    if not len(side):
        return None
    few = evenly_spaced(len(side), IMAGES)
    some, rows = side.part(few), torch.from_numpy(few)
    same = some.logits(prompts).argmax(-1) == side.zero_shot_logits()[rows].argmax(-1)
    prompted = torch.cat(some.features(some.inference_prompts(prompts)))
    plain = torch.cat(side.plain_features())[rows.to(prompted.device)]
    alike = F.cosine_similarity(prompted, plain).double().mean().item() if prompted.shape == plain.shape else None
    return Movement(len(few), alike, same.double().mean().item())

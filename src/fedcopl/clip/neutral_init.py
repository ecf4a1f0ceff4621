"""The neutral initialisation: first prompts with which the model answers nearly as it does without any.

A prompt passes through its block's norm, so one of any length acts like a full-sized token, and random ones may be
noise as loud as the image. What a tower makes of a blank image it has learnt to pass over: most towers, at least. So
the tower itself is asked, with made-up pictures, which of a few starts moves its features least. None needs an image of
anybody, and all come out the same at every site: in double precision, rounded to far fewer bits than differ between
machines.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..rng import stream
from .frozen_clip import Clip

USUAL_TEMPLATE = "a photo of a {}"
KEPT_BITS = 12  # of each value: an error of 1e-14 then moves one in a hundred thousand million to the next step
NEARLY_ALIKE = 0.05  # of what sets a blank image's patches apart, where their mean is quiet and they are not
PICTURES = 6  # made up, to try the starts on
CELLS = 6  # of such a picture, in each direction


def most_neutral(clip: Clip, starts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The start that leaves made-up pictures' features nearest to the plain ones; the first of those that do.

    Cosines are compared to two digits: what differs after them is neither here nor there, nor the same everywhere.
    """
    tokens = _made_up_tokens(clip)
    plain = _features(clip, tokens, ())
    nearness = [F.cosine_similarity(_features(clip, tokens, start), plain).mean().item() for start in starts]
    return max(zip(nearness, starts, strict=True), key=lambda pair: round(pair[0], 2))[1]


def _made_up_tokens(clip: Clip) -> Tensor:
    coarse = stream(0, "made-up pictures").integers(0, 256, (PICTURES, 3, CELLS, CELLS), np.uint8)
    cell = np.arange(clip.image_size) * CELLS // clip.image_size
    pixels = torch.from_numpy(clip.preprocess.scale(coarse[:, :, cell][:, :, :, cell]))
    with torch.no_grad():
        tokens: Tensor = clip.vision.embed(pixels.to(clip.text.positions.device))
    return tokens


@torch.no_grad()
def _features(clip: Clip, tokens: Tensor, prompts: Sequence[NDArray[np.float32]] | NDArray[np.float32]) -> Tensor:
    features: Tensor = clip.vision(tokens, tuple(torch.tensor(prompt, device=tokens.device) for prompt in prompts))
    return features


def blank_image(clip: Clip, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """P^v, (levels, P, width), twice: a blank image's patches at the input of each level, and nearly their mean."""
    levels, vectors, _ = shape
    with torch.no_grad():
        states = [state.numpy() for state in islice(clip.vision.blank_states(), levels)]
    patches = np.stack([spread(state, vectors) for state in states])
    means = np.stack([state.mean(axis=0, keepdims=True) for state in states])
    return _rounded(patches), _rounded(means + NEARLY_ALIKE * (patches - means))


def spread(rows: NDArray[np.float64], wanted: int) -> NDArray[np.float64]:
    """`wanted` rows at even distances, (wanted, width); between two rows their mix, so that none are alike.

    Equal prompts would get equal gradients and stay one prompt for ever.
    """
    spots = ((np.arange(wanted) + 0.5) * len(rows) / max(wanted, 1) - 0.5).clip(0, len(rows) - 1)
    below = np.floor(spots).astype(np.int64)
    above = np.minimum(below + 1, len(rows) - 1)
    share = (spots - below)[:, None]
    mixed: NDArray[np.float64] = (1 - share) * rows[below] + share * rows[above]
    return mixed


def repeated_words(clip: Clip, template: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """P^t, (m, width): the words before the class name, "a photo of a a photo of a", the last right before the name."""
    words = _words(clip, template)
    times = -(-shape[0] // len(words))
    return np.tile(words, (times, 1))[len(words) * times - shape[0] :]


def stretched_words(clip: Clip, template: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The same words, "a a photo photo of of a a": as quiet, for a method that needs two prompts that differ."""
    words = _words(clip, template)
    return words[np.arange(shape[0]) * len(words) // max(shape[0], 1)]


def _words(clip: Clip, template: str) -> NDArray[np.float32]:
    """The embeddings of what stands before the class name; of the usual template where nothing does."""
    given, usual = (clip.tokenizer.words(text.partition("{}")[0]) for text in (template, USUAL_TEMPLATE))
    embeddings: NDArray[np.float32] = (
        clip.text.embedding.weight[torch.tensor(given or usual)].detach().float().cpu().numpy()
    )
    return embeddings


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """With `KEPT_BITS` bits of each value's own length: what differs after them depends on the machine."""
    mantissa, exponent = np.frexp(values)
    rounded: NDArray[np.float32] = np.ldexp(np.rint(np.ldexp(mantissa, KEPT_BITS)), exponent - KEPT_BITS).astype(
        np.float32
    )
    return rounded

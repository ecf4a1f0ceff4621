"""Shapes and initial values of deep visual prompts and of a text context shared by all classes.

Neutral initialisation finds prompts that hardly change the predictions. A prompt passes through its block's norm, so a
prompt of any length acts like a full-sized token, and random prompts may be as strong as the image. Most towers ignore
the hidden states of a blank image. Of several such candidates, the one that changes the features of synthetic images
least is used. No real image is needed, and all sites get the same values: computed in double precision and rounded to
fewer bits than differ between machines.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..clip.frozen_clip import Clip
from ..config import Model, RunConfig
from ..errors import ConfigError
from ..rng import stream

Shape = tuple[int, ...]
_USUAL_TEMPLATE = "a photo of a {}"
_KEPT_BITS = 12  # of each value: rounding errors of 1e-14 then almost never change the result
_PERTURBATION = 0.05  # share of the patches' differences that is kept around their mean
_PICTURES = 6  # synthetic images for comparing candidates
_CELLS = 6  # of a synthetic image, in each direction


def visual_shape(clip: Clip, model: Model) -> Shape:
    """Return the shape of P^v: (blocks, vectors, vision width)."""
    return _levels(clip, model), model.visual_prompts, clip.vision.prompt_width


def text_shape(clip: Clip, model: Model) -> Shape:
    """Return the shape of P^t: (vectors, text width)."""
    return model.text_prompts, clip.text.shape.width


def kind_of(name: str) -> str:
    """Return the kind of an array, the last word of its name: "text" and "visual" are prompts.

    >>> kind_of("global text"), kind_of("gate query bias")
    ('text', 'bias')
    """
    return name.split()[-1]


def first_prompts(clip: Clip, config: RunConfig, shapes: Mapping[str, Shape]) -> dict[str, NDArray[np.float32]]:
    """Return the initial arrays of all clients, by the setting `train.init`; they do not depend on images."""
    first = initial_prompts(shapes, config.train.init_std, config.seed)
    for name, random in first.items() if config.train.init == "neutral" else ():
        if kind_of(name) == "visual":
            first[name] = _neutral_visual(clip, random)
        elif kind_of(name) == "text":
            first[name] = _tile_words(clip, config.model.template, random.shape)
    return first


def _neutral_visual(clip: Clip, random: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the patches of a blank image, their mean, or random prompts: whatever changes features least."""
    return _most_neutral(clip, (*_blank_image(clip, random.shape), random)) if random.size else random


def _most_neutral(clip: Clip, starts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the first candidate whose features of synthetic images are nearest to those without prompts.

    Cosines are compared to two digits, which are the same on every machine.
    """
    coarse = stream(0, "made-up pictures").integers(0, 256, (_PICTURES, 3, _CELLS, _CELLS), np.uint8)
    cell = np.arange(clip.image_size) * _CELLS // clip.image_size
    pixels = torch.from_numpy(clip.preprocess.scale(coarse[:, :, cell][:, :, :, cell]))
    with torch.no_grad():
        tokens = clip.vision.embed(pixels.to(clip.device))
    plain = _features(clip, tokens, ())
    nearness = [F.cosine_similarity(_features(clip, tokens, start), plain).mean().item() for start in starts]
    return max(zip(nearness, starts, strict=True), key=lambda pair: round(pair[0], 2))[1]


@torch.no_grad()
def _features(clip: Clip, tokens: Tensor, prompts: Sequence[NDArray[np.float32]] | NDArray[np.float32]) -> Tensor:
    features: Tensor = clip.vision(tokens, tuple(torch.tensor(prompt, device=tokens.device) for prompt in prompts))
    return features


def _blank_image(clip: Clip, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return candidates for P^v, (levels, P, width): a blank image's patches per level, and their perturbed mean."""
    levels, vectors, _ = shape
    with torch.no_grad():
        states = [state.numpy() for state in islice(clip.vision.blank_states(), levels)]
    patches = np.stack([_spread(state, vectors) for state in states])
    means = np.stack([state.mean(axis=0, keepdims=True) for state in states])
    return _rounded(patches), _rounded(means + _PERTURBATION * (patches - means))


def _spread(rows: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Interpolate `count` rows at even distances, (count, width).

    All differ: equal prompts would get equal gradients and stay equal.
    """
    spots = ((np.arange(count) + 0.5) * len(rows) / max(count, 1) - 0.5).clip(0, len(rows) - 1)
    below = np.floor(spots).astype(np.int64)
    above = np.minimum(below + 1, len(rows) - 1)
    share = (spots - below)[:, None]
    mixed: NDArray[np.float64] = (1 - share) * rows[below] + share * rows[above]
    return mixed


def _tile_words(clip: Clip, template: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return P^t, (m, width): the words before the class name repeated, "a photo of a a photo of a"."""
    words = _words(clip, template)
    times = -(-shape[0] // len(words))
    return np.tile(words, (times, 1))[len(words) * times - shape[0] :]


def repeat_words(clip: Clip, template: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return P^t with each word repeated, "a a photo photo of of a a", for methods with two text prompts."""
    words = _words(clip, template)
    return words[np.arange(shape[0]) * len(words) // max(shape[0], 1)]


def _words(clip: Clip, template: str) -> NDArray[np.float32]:
    """Embed the words before the class name; those of the usual template if there are none."""
    given, usual = (clip.tokenizer.words(text.partition("{}")[0]) for text in (template, _USUAL_TEMPLATE))
    embeddings: NDArray[np.float32] = (
        clip.text.embedding.weight[torch.tensor(given or usual)].detach().float().cpu().numpy()
    )
    return embeddings


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round each value to a mantissa of `_KEPT_BITS` bits; further bits depend on the machine."""
    mantissa, exponent = np.frexp(values)
    rounded: NDArray[np.float32] = np.ldexp(np.rint(np.ldexp(mantissa, _KEPT_BITS)), exponent - _KEPT_BITS).astype(
        np.float32
    )
    return rounded


def initial_prompts(shapes: Mapping[str, Shape], std: float, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return values from N(0, std^2), each array from its own random stream."""
    return {
        name: stream(seed, f"initial {name} prompt").normal(0, std, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def initial_layers(shapes: Mapping[str, Shape], seed: int) -> dict[str, NDArray[np.float32]]:
    """Return values uniform in +- 1 / sqrt(inputs), torch's default for linear layers, each from its own stream.

    The inputs of a bias are those of the array of its name without " bias".
    """
    layers: dict[str, NDArray[np.float32]] = {}
    for name, shape in shapes.items():
        inputs = shapes[name.removesuffix(" bias")][-1]
        values = stream(seed, f"initial {name}").uniform(-1, 1, shape) / np.sqrt(inputs)
        layers[name] = values.astype(np.float32)
    return layers


def _levels(clip: Clip, model: Model) -> int:
    """Return the number of blocks with prompts, counted from the first."""
    if model.visual_depth == "all":
        return clip.vision.prompt_levels
    if model.visual_depth == "all-but-last":
        return clip.vision.usual_prompt_levels
    if not 0 <= model.visual_depth <= clip.vision.prompt_levels:
        raise ConfigError(
            f"model.visual_depth: {clip.name} has {clip.vision.prompt_levels} places for visual prompts "
            f"(given: {model.visual_depth})"
        )
    return model.visual_depth

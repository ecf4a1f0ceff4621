"""Shapes and initial values of deep visual prompts and of a text context shared by all classes.

Neutral initialisation gives prompts that hardly change the predictions. Each block normalises its tokens, so random
prompts of any length may be as strong as the patches. Most encoders ignore the hidden states of a blank image; of
several candidates made of these, the one that changes the features of synthetic images least is used. No real image is
needed, and all sites get the same values: they are computed in double precision and rounded to bits that are equal on
all machines.
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
_PERTURBATION = 0.05  # factor on the differences of the patches from their mean
_PICTURES = 6  # number of synthetic images for the comparison of candidates
_CELLS = 6  # cells of a synthetic image in each direction, each of one random colour


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
    first = random_prompts(shapes, config.train.init_std, config.seed)
    for name, random in first.items() if config.train.init == "neutral" else ():
        if kind_of(name) == "visual" and random.size:
            first[name] = _most_neutral(clip, (*_blank_image_candidates(clip, random.shape), random))
        elif kind_of(name) == "text":
            first[name] = _tile_words(clip, config.model.template, random.shape)
    return first


def _most_neutral(clip: Clip, candidates: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the candidate prompts that change the features of synthetic images least (ties: the first).

    Cosines are rounded to two digits before the comparison, so that all machines choose the same.
    """
    coarse = stream(0, "made-up pictures").integers(0, 256, (_PICTURES, 3, _CELLS, _CELLS), np.uint8)
    cell = np.arange(clip.image_size) * _CELLS // clip.image_size
    pixels = torch.from_numpy(clip.preprocess.scale(coarse[:, :, cell][:, :, :, cell]))
    with torch.no_grad():
        tokens = clip.vision.embed(pixels.to(clip.device))
    zero_shot = _features_with(clip, tokens, ())
    features = [_features_with(clip, tokens, prompts) for prompts in candidates]
    cosines = [F.cosine_similarity(prompted, zero_shot).mean().item() for prompted in features]
    return max(zip(cosines, candidates, strict=True), key=lambda pair: round(pair[0], 2))[1]


@torch.no_grad()
def _features_with(clip: Clip, tokens: Tensor, prompts: Sequence[NDArray[np.float32]] | NDArray[np.float32]) -> Tensor:
    """Return the image features, (B, d), by tokens with the prompts of each block; () for no prompts."""
    features: Tensor = clip.vision(tokens, tuple(torch.tensor(prompt, device=tokens.device) for prompt in prompts))
    return features


def _blank_image_candidates(clip: Clip, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return two candidates for P^v, (levels, P, width): a blank image's patches per level, and nearly their mean."""
    levels, vectors, _ = shape
    with torch.no_grad():
        states = [state.numpy() for state in islice(clip.vision.blank_states(), levels)]
    patches = np.stack([_interpolated_rows(state, vectors) for state in states])
    means = np.stack([state.mean(axis=0, keepdims=True) for state in states])
    return _rounded(patches), _rounded(means + _PERTURBATION * (patches - means))


def _interpolated_rows(rows: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Interpolate `count` evenly spaced rows, (count, width).

    They differ, because equal prompts would have equal gradients and stay equal.
    """
    positions = ((np.arange(count) + 0.5) * len(rows) / max(count, 1) - 0.5).clip(0, len(rows) - 1)
    below = np.floor(positions).astype(np.int64)
    above = np.minimum(below + 1, len(rows) - 1)
    share = (positions - below)[:, None]
    mixed: NDArray[np.float64] = (1 - share) * rows[below] + share * rows[above]
    return mixed


def _tile_words(clip: Clip, template: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return P^t, (m, width): the words before the class name repeated, "a photo of a a photo of a"."""
    words = _word_embeddings(clip, template)
    times = -(-shape[0] // len(words))
    return np.tile(words, (times, 1))[len(words) * times - shape[0] :]


def repeat_words(clip: Clip, template: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return P^t, (m, width), with each word repeated, "a a photo photo of of a a", for a second text prompt."""
    words = _word_embeddings(clip, template)
    return words[np.arange(shape[0]) * len(words) // max(shape[0], 1)]


def _word_embeddings(clip: Clip, template: str) -> NDArray[np.float32]:
    """Embed the words before the class name, (words, width); of the usual template if there are none."""
    tokens = [clip.tokenizer.words(text.partition("{}")[0]) for text in (template, _USUAL_TEMPLATE)]
    embeddings: Tensor = clip.text.embedding.weight[torch.tensor(tokens[0] or tokens[1])]
    return embeddings.detach().float().cpu().numpy()


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round each value to a mantissa of `_KEPT_BITS` bits; further bits depend on the machine."""
    mantissa, exponent = np.frexp(values)
    rounded: NDArray[np.float64] = np.ldexp(np.rint(np.ldexp(mantissa, _KEPT_BITS)), exponent - _KEPT_BITS)
    return rounded.astype(np.float32)


def random_prompts(shapes: Mapping[str, Shape], std: float, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return arrays with values from N(0, std^2), each from its own random stream."""
    return {
        name: stream(seed, f"initial {name} prompt").normal(0, std, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def initial_layers(shapes: Mapping[str, Shape], seed: int) -> dict[str, NDArray[np.float32]]:
    """Return values uniform in +- 1 / sqrt(inputs), torch's default for linear layers, each from its own stream.

    A bias has the inputs of the array whose name it extends by " bias".
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
            f"model.visual_depth: must be from 0 to {clip.vision.prompt_levels}, the number of blocks of {clip.name} "
            f"that can have visual prompts, not {model.visual_depth}"
        )
    return model.visual_depth

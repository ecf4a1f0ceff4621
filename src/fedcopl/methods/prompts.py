"""Shapes and initial values of deep visual prompts and of a text context shared by all classes."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..clip.frozen_clip import Clip
from ..clip.neutral_init import blank_image, most_neutral, tile_words
from ..config import Model, RunConfig
from ..errors import ConfigError
from ..rng import stream

Shape = tuple[int, ...]


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
            first[name] = neutral_visual(clip, random)
        elif kind_of(name) == "text":
            first[name] = tile_words(clip, config.model.template, random.shape)
    return first


def neutral_visual(clip: Clip, random: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the patches of a blank image, their mean, or random prompts: whatever changes features least."""
    return most_neutral(clip, (*blank_image(clip, random.shape), random)) if random.size else random


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

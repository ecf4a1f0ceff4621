"""The trainable part: deep visual prompts and a text context shared by all classes, and where they start."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..clip.frozen_clip import Clip
from ..clip.neutral_init import blank_image, most_neutral, repeated_words
from ..config import Model, RunConfig
from ..errors import ConfigError
from ..rng import stream

Shape = tuple[int, ...]


def visual_shape(clip: Clip, model: Model) -> Shape:
    """P^v: (blocks, vectors, vision width), all from the backbone."""
    return _levels(clip, model), model.visual_prompts, clip.vision.prompt_width


def text_shape(clip: Clip, model: Model) -> Shape:
    """P^t: (vectors, text width)."""
    return model.text_prompts, clip.text.shape.width


def first_prompts(clip: Clip, config: RunConfig, shapes: Mapping[str, Shape]) -> dict[str, NDArray[np.float32]]:
    """Where every client of a run begins, by the setting `train.init`. No image of anybody plays a part."""
    loud = initial_prompts(shapes, config.train.init_std, config.seed)
    if config.train.init == "random":
        return loud
    return {name: _quiet(name, clip, config, prompt) for name, prompt in loud.items()}


def _quiet(name: str, clip: Clip, config: RunConfig, loud: NDArray[np.float32]) -> NDArray[np.float32]:
    """What kind of prompt it is says the last word of its name; what is none has small random values."""
    match name.split()[-1]:
        case "visual":
            return neutral_visual(clip, loud)
        case "text":
            return repeated_words(clip, config.model.template, loud.shape)
    return loud


def neutral_visual(clip: Clip, loud: NDArray[np.float32]) -> NDArray[np.float32]:
    """A blank image's patches, or nearly their mean, or even random prompts, by what this tower minds least."""
    return most_neutral(clip, (*blank_image(clip, loud.shape), loud)) if loud.size else loud


def initial_prompts(shapes: Mapping[str, Shape], std: float, seed: int) -> dict[str, NDArray[np.float32]]:
    """N(0, std^2), each prompt from its own stream: the same at every client of a run."""
    return {
        name: stream(seed, f"initial {name} prompt").normal(0, std, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def _levels(clip: Clip, model: Model) -> int:
    """How many blocks get a prompt, counted from the first."""
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

"""The trainable part: deep visual prompts and a text context shared by all classes."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..clip.frozen_clip import Clip
from ..config import Model
from ..errors import ConfigError
from ..rng import stream

Shape = tuple[int, ...]


def visual_shape(clip: Clip, model: Model) -> Shape:
    """P^v: (blocks, vectors, vision width), all from the backbone."""
    return _levels(clip, model), model.visual_prompts, clip.vision.prompt_width


def text_shape(clip: Clip, model: Model) -> Shape:
    """P^t: (vectors, text width)."""
    return model.text_prompts, clip.text.shape.width


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

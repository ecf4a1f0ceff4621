"""A method on the built-in model and a few digits, for the tests of all methods."""

from functools import cache

import numpy as np
import torch

from fedcopl.algorithm.select import Selection
from fedcopl.clip.device import Arithmetic
from fedcopl.clip.encoder import ClientImages, Encoder, TokenStore
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.config import RunConfig, override
from fedcopl.data.catalog import CLASSES, load_digits
from fedcopl.methods import choose_method
from fedcopl.methods.learner import ClipLearner
from fedcopl.methods.prompted_model import PromptedModel

CHOSEN = Selection(np.arange(40), np.arange(40) % 10)
SETS = Selection(np.arange(40), np.arange(40) % 10, np.eye(10, dtype=bool)[np.arange(40) % 10] | (np.arange(10) == 3))


def config_of(method: str, *pairs: str) -> RunConfig:
    return RunConfig.from_mapping(override({}, [f"method={method}", "epochs=2", "batch=16", *pairs]), "test")


@cache
def encoder() -> Encoder:
    return Encoder(load_clip("glyph-clip"), CLASSES, "a photo of a {}", Arithmetic(torch.device("cpu")))


@cache
def images() -> ClientImages:
    pictures = load_digits().train.images[:60]
    pixels = np.stack([encoder().clip.preprocess.resize_and_crop(picture) for picture in pictures])
    return ClientImages(TokenStore.of(encoder().clip, pixels, 1e9), np.arange(len(pictures)))


def learner_of(method: str, *pairs: str, number: int = 0) -> ClipLearner:
    config = config_of(method, *pairs)
    chosen = choose_method(config)
    return ClipLearner(
        PromptedModel(chosen, encoder()), images(), chosen.start(encoder().clip, encoder().classes), config, number
    )


def trained(learner: ClipLearner, selection: Selection = CHOSEN):
    return learner.train(learner.initial(), selection, round=0)


def floats_of(method: str, *pairs: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the sizes of the shared arrays and of the personal arrays."""
    chosen = choose_method(config_of(method, *pairs))
    sizes = {name: value.size for name, value in chosen.start(encoder().clip, encoder().classes).items()}
    return {name: sizes.pop(name) for name in chosen.shared()}, sizes

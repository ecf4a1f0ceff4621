"""An epoch of a method without image prompts: with cached features, and with encoding of the images."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from fedcopl.algorithm.select import Selection
from fedcopl.clip.device import Arithmetic
from fedcopl.clip.encoder import ClientImages, Encoder, TokenStore
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.config import RunConfig
from fedcopl.methods import choose_method
from fedcopl.methods.learner import ClipLearner
from fedcopl.methods.prompted_model import PromptedModel

from .against_transformers import save_random_clip
from .measure import Line, measure_alternately, timed

IMAGES = 128
REACH = 20.0


def frozen_images() -> Iterator[Line]:
    config = RunConfig.from_mapping({"method": "promptfl", "train": {"epochs": 1}}, "benchmark")
    with tempfile.TemporaryDirectory() as name:
        save_random_clip(Path(name))
        clip = load_clip(name)
    method = choose_method(config)
    encoder = Encoder(clip, [f"class {i}" for i in range(10)], "a photo of a {}", Arithmetic(torch.device("cpu")))
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 3, 224, 224), dtype=np.uint8)
    images = ClientImages(TokenStore.of(clip, pixels, memory=0), np.arange(IMAGES))
    chosen = Selection(np.arange(IMAGES), np.arange(IMAGES) % 10)

    def learner() -> ClipLearner:
        return ClipLearner(PromptedModel(method, encoder), images, method.start(clip, encoder.classes), config, 0)

    cached = learner()
    cached.train(cached.initial(), chosen, 1)
    measured = measure_alternately(
        timed(lambda: cached.train(cached.initial(), chosen, 1)),
        timed(lambda: learner().train(cached.initial(), chosen, 1)),
    )
    what = f"PromptFL epoch of {IMAGES} images, 10 classes, B/32, after the first"
    yield Line("promptfl-epoch", what, "encoding anew", measured.ratio, REACH, detail=measured.in_seconds)

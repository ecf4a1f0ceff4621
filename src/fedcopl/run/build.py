"""Builders of the parts of a run from its settings: model, images, clients, the initial state of the server.

Simulation, server, site and classifier use these functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..algorithm import FloatArray
from ..clip.device import choose_arithmetic, keep_freed_memory, threads_for, use_threads
from ..clip.encoder import ClientImages, Encoder, TokenStore
from ..clip.frozen_clip import Clip, fingerprint, load_clip
from ..clip.preprocess import ImageTransform
from ..config import Model, RunConfig
from ..data.cache import PixelCache, Prepared, prepare
from ..data.catalog import load_dataset
from ..data.dataset import Dataset
from ..data.label_files import parse_class_prior, read_class_prior, read_corrections
from ..data.partitioning import client_names, partition_dataset
from ..errors import ConfigError, DataError
from ..federation.server import ServerState
from ..methods import choose_method
from ..methods.learner import ClipLearner, ClipTestSet
from ..methods.prompted_model import PromptedModel, Prompts
from .progress_reporter import ProgressReporter

GIGABYTE = 10**9


def build_clip(model: Model) -> Clip:
    """Load the frozen CLIP of the settings, and set torch's number of threads."""
    use_threads(threads_for(model))
    keep_freed_memory()
    return load_clip(model.backbone, activation=None if model.activation == "auto" else model.activation)


def backbone_name(backbone: str, clip: Clip) -> str:
    """Return the last part of the backbone's name and the fingerprint of its weights."""
    return f"{Path(backbone).name} {fingerprint(clip)}"


@dataclass(frozen=True)
class BuiltModel:
    """A method on its frozen CLIP, for a list of classes."""

    config: RunConfig
    model: PromptedModel

    @property
    def clip(self) -> Clip:
        return self.model.encoder.clip

    @cached_property
    def start(self) -> dict[str, NDArray[np.float32]]:
        """The initial arrays, the same for all clients."""
        return self.model.method.start(self.clip, self.model.encoder.classes)

    def images(self, pixels: NDArray[np.uint8]) -> ClientImages:
        """Return the images with their embedded tokens, kept in memory where `model.memory` allows it."""
        store = TokenStore.of(self.clip, pixels, self.config.model.memory * GIGABYTE)
        return ClientImages(store, np.arange(len(pixels)))

    def learner(self, images: ClientImages, number: int) -> ClipLearner:
        return ClipLearner(self.model, images, self.start, self.config, number)

    def test_set(self, images: ClientImages, truth: NDArray[np.int64]) -> ClipTestSet:
        return ClipTestSet(self.model, images, truth)


def build_model(config: RunConfig, clip: Clip, classes: Sequence[str], template: str) -> BuiltModel:
    """Build the method of the settings on a frozen CLIP.

    Raises:
        ConfigError: A class name leaves no room for the text prompts.
    """
    arithmetic = choose_arithmetic(config.model.device, config.model.precision)
    encoder = Encoder(clip, classes, template, arithmetic)
    encoder.refuse_long_names(config.model.text_prompts)
    return BuiltModel(config, PromptedModel(choose_method(config), encoder))


def first_state(config: RunConfig, start: Prompts, classes: int, width: int) -> ServerState:
    """Return the server's state before the first round; `width` is the dimension d of image features."""
    method = choose_method(config)
    shared = {name: start[name] for name in method.shared()}
    return ServerState(
        0, shared, classes, full_first_round=method.full_first_round, neighbours=method.neighbours(), width=width
    )


def known_class_prior(config: RunConfig, classes: Sequence[str]) -> FloatArray | None:
    """Return the class prior over all clients, (C,), from the file in the settings; None if they name no file."""
    if not config.priors.class_prior:
        return None
    if not config.priors.logit_bias:
        raise ConfigError("priors.class_prior: has no effect without priors.logit_bias; set priors.logit_bias=true")
    return parse_class_prior(read_class_prior(Path(config.priors.class_prior)), classes, config.priors.class_prior)


def build_images(dataset: Dataset, transform: ImageTransform, progress: ProgressReporter) -> Prepared:
    """Decode and resize every image once; unreadable images are left out and listed."""
    progress.preparing("preparing the images")
    return prepare(dataset, transform.resize_and_crop, transform.key, PixelCache(), progress.prepared)


def expert_labels(file: str, dataset: Dataset) -> Mapping[int, int]:
    """Return an expert's labels of some training images, index -> class; empty without a file.

    Raises:
        DataError: The file labels none of the training images.
    """
    if not file:
        return {}
    labels = read_corrections(Path(file), dataset.train, dataset.classes)
    if not labels:
        raise DataError(f"{file}: labels none of the training images")
    return labels


def images_of_clients(
    config: RunConfig, transform: ImageTransform, progress: ProgressReporter, dataset: Dataset | None = None
) -> tuple[NDArray[np.uint8], Mapping[str, NDArray[np.int64]]]:
    """Return the pixels of all training images, and each client's rows in them; a centralised method has one client."""
    prepared = build_images(dataset or load_dataset(config.data), transform, progress)
    if choose_method(config).centralised:
        return prepared.train, {config.method: np.arange(len(prepared.train))}
    parts = partition_dataset(prepared.dataset, config.data, config.seed)
    return prepared.train, dict(zip(client_names(prepared.dataset, config.data), parts.train, strict=True))

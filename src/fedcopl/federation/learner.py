"""Protocols of a client's model, CLIP with prompts over the client's images, and of its labelled test set."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..algorithm.select import Selection
from ..priors.posterior import LogitAdjustment
from .prior_estimation import NO_PRIOR, PriorState

Prompts = Mapping[str, NDArray[np.float32]]
"""The arrays of a client's model by name: for FedCoPL `visual` (layers, vectors, width) and `text` (vectors, width)."""


class Learner(Protocol):
    """CLIP with prompts over one client's unlabelled images; implementations use torch and have no labels."""

    def initial(self) -> Prompts:
        """Return the initial prompts of this client; the shared ones are the same at every client."""
        ...

    def log_probabilities(self, prompts: Prompts | None) -> NDArray[np.float64]:
        """Return log p_c(x) of every image, (n_k, C), by a model; None: by zero-shot CLIP."""
        ...

    def features(self) -> NDArray[np.float64]:
        """Return the image features f(x) of zero-shot CLIP, (n_k, d), of length one, independent of training."""
        ...

    def class_features(self) -> NDArray[np.float64]:
        """Return the class embeddings of zero-shot CLIP, (C, d), of length one."""
        ...

    def build_memory(self, selection: Selection) -> Prompts:
        """Return the arrays that the method keeps of newly selected images; they are never sent."""
        ...

    def log_probabilities_of(self, prompts: Prompts, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return log p_c(x) of some images, (m, C), by the trained model without the arrays of `build_memory`."""
        ...

    def train(
        self,
        prompts: Prompts,
        selection: Selection,
        round: int,
        lr_factor: float = 1.0,
        adjustment: LogitAdjustment | None = None,
    ) -> tuple[Prompts, float]:
        """Train for the local epochs of a round.

        Args:
            prompts: The client's model before training.
            selection: The images to train on, with their pseudo labels.
            round: Counted from 0, for the learning-rate schedule and the order of the images.
            lr_factor: Multiplies the learning rate; below 1 after a rollback.
            adjustment: The logit adjustment by the priors, one row for each selected image.

        Returns:
            The model after training, with all arrays of `prompts`, and the mean loss of the last epoch.
        """
        ...


class TestSet(Protocol):
    """A client's labelled test images, the only ground truth of a client."""

    def score(self, prompts: Prompts | None, prior: PriorState = NO_PRIOR) -> tuple[int, int]:
        """Return correct predictions and test images, by a model with priors; None: by zero-shot CLIP."""
        ...


class _NoTestSet:
    """The test set of a client without labels."""

    def score(self, prompts: Prompts | None, prior: PriorState = NO_PRIOR) -> tuple[int, int]:
        return 0, 0


NO_TEST_SET = _NoTestSet()

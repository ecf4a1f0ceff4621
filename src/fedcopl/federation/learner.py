"""What a client asks of its model: CLIP with prompts over its own images, and a test set where it has labels."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..algorithm.select import Selection
from ..priors.posterior import LogitAdjustment
from .prior_estimation import NO_PRIOR, PriorState

Prompts = Mapping[str, NDArray[np.float32]]
"""A client's model, its arrays by name: for FedCoPL `visual` (layers, vectors, width) and `text` (vectors, width)."""


class Learner(Protocol):
    """CLIP with prompts over one client's unlabelled images. Torch lives behind this; no label ever comes in."""

    def initial(self) -> Prompts:
        """The prompts to start from, the same at every client."""
        ...

    def log_probabilities(self, prompts: Prompts | None) -> NDArray[np.float64]:
        """log p_c(x) of every image, (n_k, C). None: plain zero-shot CLIP."""
        ...

    def features(self) -> NDArray[np.float64]:
        """f(x) of every image by plain CLIP, (n_k, d), of length one: no training changes them."""
        ...

    def class_features(self) -> NDArray[np.float64]:
        """Return the class embeddings of zero-shot CLIP, (C, d), of length one."""
        ...

    def remember(self, selection: Selection) -> Prompts:
        """What to keep of newly chosen images beside the prompts, for methods that do; it stays at home."""
        ...

    def log_probabilities_of(self, prompts: Prompts, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """log p_c(x) of some images, (m, C), as the model is trained: without what a client remembers of its images."""
        ...

    def train(
        self,
        prompts: Prompts,
        selection: Selection,
        round: int,
        lr_factor: float = 1.0,
        adjustment: LogitAdjustment | None = None,
    ) -> tuple[Prompts, float]:
        """The prompts after this round's local epochs, with all that was given, and the mean loss of the last epoch.

        `lr_factor` is a factor on the learning rate; `adjustment` is what the priors add to the logits, a row for each
        selected image.
        """
        ...


class TestSet(Protocol):
    """The client's own labelled test images, where it has any: the only place that knows the truth."""

    def score(self, prompts: Prompts | None, prior: PriorState = NO_PRIOR) -> tuple[int, int]:
        """How many are right, of how many, answered through what the site knows beforehand. None: plain zero-shot."""
        ...


class NoTestSet:
    """A site without labels: it cannot say how many are right."""

    def score(self, prompts: Prompts | None, prior: PriorState = NO_PRIOR) -> tuple[int, int]:
        return 0, 0


NO_TEST_SET = NoTestSet()

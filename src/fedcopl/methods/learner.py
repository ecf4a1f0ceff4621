"""One client's learning in torch: its probabilities, its local training, and its exam."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm.select import Selection
from ..clip.encoder import ENCODE_BATCH, ClientImages
from ..config import RunConfig
from ..federation.prior_estimation import NO_PRIOR, PriorState
from ..priors.posterior import LogitAdjustment
from ..rng import stream
from .base import in_double
from .prompted_model import ImageSide, Key, PromptedModel, Prompts, key_of
from .trainer import Trainer, TrainJob


class ClipLearner:
    """A method over one client's images. No label comes in but pseudo labels."""

    def __init__(self, model: PromptedModel, images: ClientImages, start: Prompts, config: RunConfig, number: int):
        self.model, self.images, self.start, self.config = model, images, start, config
        self.number = number  # of this client: names its random streams
        self.side = ImageSide(model, images)

    def initial(self) -> Prompts:
        return self.start

    def log_probabilities(self, prompts: Prompts | None) -> NDArray[np.float64]:
        """log p_c(x), (n_k, C), in float64 so that saturated images still rank."""
        if prompts is None:
            logits = self.side.zero_shot_logits()
        else:
            logits = self.side.logits(prompts)
            self.side.forget()
        return logits.double().log_softmax(-1).numpy()

    def features(self) -> NDArray[np.float64]:
        """f(x) by plain CLIP, (n_k, d)."""
        return self.side.plain_rows()

    def class_features(self) -> NDArray[np.float64]:
        """Return the class embeddings of zero-shot CLIP, (C, d)."""
        return in_double(self.model.encoder.class_features(None))

    def remember(self, selection: Selection) -> Prompts:
        if not len(self.images):
            return {}
        return self.model.method.remember(self.side.all_frozen, selection, self.model.encoder.classes)

    def log_probabilities_of(self, prompts: Prompts, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """log p_c(x) of some images, (m, C), as the model is trained."""
        parts = [index[start : start + ENCODE_BATCH] for start in range(0, len(index), ENCODE_BATCH)]
        return np.concatenate([self._log_probs_of(part, prompts) for part in parts])

    @torch.inference_mode()
    def _log_probs_of(self, index: NDArray[np.int64], prompts: Prompts) -> NDArray[np.float64]:
        method, encoder, named = self.model.method, self.model.encoder, self.model.named(prompts)
        images = self.model.images(self.side.frozen(index), named)
        logits = method.logits(encoder, images, self.model.classes(prompts), named)
        return logits.cpu().double().log_softmax(-1).numpy()

    def train(
        self,
        prompts: Prompts,
        selection: Selection,
        round: int,
        lr_factor: float = 1.0,
        adjustment: LogitAdjustment | None = None,
    ) -> tuple[Prompts, float]:
        """Step 4 of the algorithm: the method's loss on the pseudo labels, SGD with an optimiser of its own."""
        shuffle = stream(self.config.seed, "shuffle", self.number, round)
        job = TrainJob(self.side.frozen, prompts, self.start, selection, round, shuffle, lr_factor, adjustment)
        return Trainer(self.model, self.config, job).fit()


class ClipTestSet:
    """A client's labelled test images. The truth is here and nowhere else in the model."""

    def __init__(self, model: PromptedModel, images: ClientImages, truth: NDArray[np.int64]):
        self.model, self.side = model, ImageSide(model, images)
        self.truth = torch.from_numpy(truth)
        self._zero_shot: Tensor | None = None

    def score(self, prompts: Prompts | None, prior: PriorState = NO_PRIOR) -> tuple[int, int]:
        return int((self.predict(prompts, prior) == self.truth).sum()), len(self.truth)

    def answers(
        self, prompts: Prompts | None, prior: PriorState = NO_PRIOR
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What was predicted, and what is true, image by image."""
        return self.predict(prompts, prior).numpy(), self.truth.numpy()

    def predict(self, prompts: Prompts | None, prior: PriorState = NO_PRIOR) -> Tensor:
        """The most probable class of each test image."""
        if prompts is not None:
            return adapted_answers(self.side.logits(prompts), prior, self.side.plain_rows)
        if self._zero_shot is None:
            self._zero_shot = self.side.zero_shot_logits()
        return adapted_answers(self._zero_shot, prior, self.side.plain_rows)


def adapted_answers(logits: Tensor, prior: PriorState, features: Callable[[], NDArray[np.float64]]) -> Tensor:
    """The most probable class of each image, (n,), through what is known beforehand."""
    if prior.model is None:
        return logits.argmax(-1)
    log_probs = logits.double().log_softmax(-1).numpy()
    return torch.from_numpy(prior.log_posteriors(log_probs, features()).argmax(axis=1))


def score_everywhere(
    test_sets: Sequence[ClipTestSet], models: Sequence[Prompts], prior: PriorState = NO_PRIOR
) -> list[tuple[int, int]]:
    """How many of all clients' test images each of these models gets right, of how many.

    Model by model, so that each one's class side is computed once; exam by exam, so that it does not matter who else's
    images are there. The same model is asked once.
    """
    scores: dict[Key, tuple[int, int]] = {}
    keys = [key_of(prompts, tuple(prompts)) for prompts in map(test_sets[0].model.method.at_home, models)]
    for key, prompts in zip(keys, models, strict=True):
        if key not in scores:
            right, examples = zip(*(test_set.score(prompts, prior) for test_set in test_sets), strict=True)
            scores[key] = sum(right), sum(examples)
    return [scores[key] for key in keys]

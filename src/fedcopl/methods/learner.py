"""One client's model in torch: probabilities, local training, and evaluation on a test set."""

from collections.abc import Sequence

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
from .prompted_model import FeatureExtractor, Key, PromptedModel, Prompts, key_of
from .trainer import Trainer, TrainJob


class ClipLearner:
    """A method on one client's unlabelled images; the only labels that it receives are pseudo labels.

    Args:
        model: The method on its frozen CLIP.
        images: The client's images, n_k.
        start: The initial arrays of the run, equal for all clients.
        config: The settings of the run.
        number: The number of this client, which selects its random streams.
    """

    def __init__(self, model: PromptedModel, images: ClientImages, start: Prompts, config: RunConfig, number: int):
        self.model, self.images, self.config, self.number = model, images, config, number
        self.start = model.method.start_at(start, number)
        self.extractor = FeatureExtractor(model, images)

    def initial(self) -> Prompts:
        """Return the initial arrays at this client."""
        return self.start

    def log_probabilities(self, prompts: Prompts | None) -> NDArray[np.float64]:
        """Return log p_c(x), (n_k, C), in float64, which still ranks saturated images; None: by zero-shot CLIP."""
        if prompts is None:
            logits = self.extractor.zero_shot_logits()
        else:
            logits = self.extractor.logits(prompts)
            self.extractor.forget()
        return logits.double().log_softmax(-1).numpy()

    def features(self) -> NDArray[np.float64]:
        """Return the image features of zero-shot CLIP, (n_k, d)."""
        return self.extractor.zero_shot_array()

    def class_features(self) -> NDArray[np.float64]:
        """Return the class embeddings of zero-shot CLIP, (C, d)."""
        return in_double(self.model.encoder.class_features(None))

    def build_memory(self, selection: Selection) -> Prompts:
        """Return the arrays that the client keeps of a new selection; they are never sent."""
        if not len(self.images):
            return {}
        return self.model.method.build_memory(self.extractor.all_frozen_features, selection, self.model.encoder.classes)

    @torch.inference_mode()
    def log_probabilities_of(self, prompts: Prompts, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return log p_c(x) of the images `index`, (m, C), from the logits used in training."""
        params, classes = self.model.params(prompts), self.model.cached_class_features(prompts)
        batches = []
        for start in range(0, len(index), ENCODE_BATCH):
            frozen = self.extractor.frozen_features(index[start : start + ENCODE_BATCH])
            images = self.model.image_features(frozen, params)
            logits = self.model.method.logits(self.model.encoder, images, classes, params)
            batches.append(logits.cpu().double().log_softmax(-1).numpy())
        return np.concatenate(batches)

    def train(
        self,
        prompts: Prompts,
        selection: Selection,
        round: int,
        lr_factor: float = 1.0,
        adjustment: LogitAdjustment | None = None,
    ) -> tuple[Prompts, float]:
        """Train on pseudo labels for the local epochs of one round; return all arrays and the mean loss (step 4)."""
        shuffle = stream(self.config.seed, "shuffle", self.number, round)
        job = TrainJob(self.extractor, prompts, self.start, selection, round, shuffle, lr_factor, adjustment)
        return Trainer(self.model, self.config, job).fit()


class ClipTestSet:
    """A client's labelled test images; no other object in `methods` has true labels."""

    def __init__(self, model: PromptedModel, images: ClientImages, truth: NDArray[np.int64]):
        self.model, self.extractor = model, FeatureExtractor(model, images)
        self.truth = torch.from_numpy(truth)
        self._zero_shot: Tensor | None = None

    def score(self, prompts: Prompts | None, prior: PriorState = NO_PRIOR) -> tuple[int, int]:
        """Return the number of correct predictions and the number of test images."""
        return int((self.predict(prompts, prior) == self.truth).sum()), len(self.truth)

    def predictions(
        self, prompts: Prompts | None, prior: PriorState = NO_PRIOR
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the predicted and the true class of each image, (n,)."""
        return self.predict(prompts, prior).numpy(), self.truth.numpy()

    def predict(self, prompts: Prompts | None, prior: PriorState = NO_PRIOR) -> Tensor:
        """Return the predicted class of each test image, (n,); by zero-shot CLIP if `prompts` is None."""
        if prompts is None and self._zero_shot is None:
            self._zero_shot = self.extractor.zero_shot_logits()
        logits = self._zero_shot if prompts is None else self.extractor.logits(prompts)
        assert logits is not None
        if prior.model is None:
            return logits.argmax(-1)
        log_probs = logits.double().log_softmax(-1).numpy()
        return torch.from_numpy(prior.log_posteriors(log_probs, self.extractor.zero_shot_array()).argmax(axis=1))


def score_everywhere(
    test_sets: Sequence[ClipTestSet], models: Sequence[Prompts], prior: PriorState = NO_PRIOR
) -> list[tuple[int, int]]:
    """Return the number of correct predictions and of images over all test sets, for each model.

    Equal models are evaluated once. Each test set is encoded separately, so its result does not depend on the others.
    """
    scores: dict[Key, tuple[int, int]] = {}
    keys = [key_of(prompts, tuple(prompts)) for prompts in map(test_sets[0].model.method.inference_prompts, models)]
    for key, prompts in zip(keys, models, strict=True):
        if key not in scores:
            correct, examples = zip(*(test_set.score(prompts, prior) for test_set in test_sets), strict=True)
            scores[key] = sum(correct), sum(examples)
    return [scores[key] for key in keys]

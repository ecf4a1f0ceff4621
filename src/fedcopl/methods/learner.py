"""One client's learning in torch: its probabilities, its local training, and its exam."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm.select import Selection
from ..clip.image_tokens import ENCODE_BATCH, ClientImages
from ..config import RunConfig
from ..federation.adaptation import PriorState
from ..federation.client import NO_PRIOR
from ..rng import stream
from .prompted_model import ImageSide, Key, PromptedModel, Prompts, key_of
from .training import train


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

    def remember(self, selection: Selection) -> Prompts:
        if not len(self.images):
            return {}
        return self.model.method.remember(self.side.all_frozen, selection, self.model.encoder.classes)

    @torch.inference_mode()
    def examine(self, prompts: Prompts, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """log p_c(x) of some images, (m, C), as the model is trained."""
        method, encoder, named = self.model.method, self.model.encoder, self.model.named(prompts)
        classes = self.model.classes(prompts)
        parts = [index[start : start + ENCODE_BATCH] for start in range(0, len(index), ENCODE_BATCH)]
        sides = (method.images(encoder, self.side.frozen(part), named) for part in parts)
        logits = torch.cat([method.logits(encoder, side, classes, named) for side in sides])
        return logits.cpu().double().log_softmax(-1).numpy()

    def train(self, prompts: Prompts, selection: Selection, round: int, caution: float = 1.0) -> tuple[Prompts, float]:
        """Step 4 of the algorithm: the method's loss on the pseudo labels, SGD with an optimiser of its own."""
        shuffle = stream(self.config.seed, "shuffle", self.number, round)
        return train(self.model, self.side.frozen, self.config, prompts, self.start, selection, round, shuffle, caution)


class ClipExam:
    """A client's labelled test images. The truth is here and nowhere else in the model."""

    def __init__(self, model: PromptedModel, images: ClientImages, truth: NDArray[np.int64]):
        self.model, self.side = model, ImageSide(model, images)
        self.truth = torch.from_numpy(truth)
        self._by_zero_shot: Tensor | None = None

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
        if self._by_zero_shot is None:
            self._by_zero_shot = self.side.zero_shot_logits().argmax(-1)
        return self._by_zero_shot


def adapted_answers(logits: Tensor, prior: PriorState, features: Callable[[], NDArray[np.float64]]) -> Tensor:
    """The most probable class of each image, (n,), through what is known beforehand."""
    if prior.learned is None:
        return logits.argmax(-1)
    log_probs = logits.double().log_softmax(-1).numpy()
    return torch.from_numpy(prior.answers(log_probs, features()).argmax(axis=1))


@torch.inference_mode()
def score_everywhere(
    exams: Sequence[ClipExam], models: Sequence[Prompts], prior: PriorState = NO_PRIOR
) -> list[tuple[int, int]]:
    """How many of all clients' test images each of these models gets right, of how many."""
    exams = [exam for exam in exams if len(exam.side)]
    model, truth = exams[0].model, torch.cat([exam.truth for exam in exams])
    method, encoder = model.method, model.encoder
    seen: tuple[Key, Tensor] | None = None
    scores: dict[Key, tuple[int, int]] = {}
    everywhere = []

    def plain() -> NDArray[np.float64]:
        return np.concatenate([exam.side.plain_rows() for exam in exams])

    for prompts in map(method.at_home, models):
        whole = key_of(prompts, tuple(prompts))
        if whole not in scores:
            key = key_of(prompts, method.of_images)
            if seen is None or seen[0] != key:
                seen = key, torch.cat([batch for exam in exams for batch in exam.side.features(prompts)])
            logits = method.personal(encoder, seen[1], model.classes(prompts), model.named(prompts))
            answers = adapted_answers(
                logits.cpu(), prior, lambda: np.concatenate([exam.side.plain_rows() for exam in exams])
            )
            scores[whole] = int((answers == truth).sum()), len(truth)
        everywhere.append(scores[whole])
    return everywhere

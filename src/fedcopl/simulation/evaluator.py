"""All clients' labelled test images, used only to report accuracy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithm.metrics import Score
from ..errors import FedCoPLError
from ..federation.learner import Prompts
from ..federation.prior_estimation import PriorState
from ..methods.learner import ClipTestSet, score_everywhere
from .worker_pool import Job, WorkerContext, WorkerFailed, WorkerPool

Predictions = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The predicted and the true class of each image."""
_ModelWithPriors = tuple[Prompts | None, PriorState]
"""A model and the priors it predicts with; None: zero-shot CLIP."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models on the clients' test sets, in this process or in the workers that have them."""

    test_sets: Mapping[str, ClipTestSet]
    pool: WorkerPool | None = None

    def predict(self, models: Mapping[str, _ModelWithPriors]) -> dict[str, Predictions]:
        """Return what each client's model predicts on that client's test set."""
        return self._run({client: (_predict, *model) for client, model in models.items()})

    def score_everywhere(self, models: Sequence[Prompts], prior: PriorState) -> list[Score]:
        """Return for each model how many of all clients' test images it gets right, and how many there are."""
        groups = [[name for name in group if name in self.test_sets] for group in self.pool.groups] if self.pool else []
        groups = [group for group in groups if group] or [[*self.test_sets]]
        parts = self._run({group[0]: (_score, group, models, prior) for group in groups}).values()
        return [(sum(right for right, _ in one), sum(total for _, total in one)) for one in zip(*parts, strict=True)]

    def _run(self, jobs: Mapping[str, Job]) -> dict[str, Any]:
        if self.pool is None:
            return {name: function(self, name, *arguments) for name, (function, *arguments) in jobs.items()}
        try:
            return self.pool.run(jobs)
        except WorkerFailed as failed:
            raise FedCoPLError(f"evaluating the model of {failed}") from failed


def _predict(
    context: Evaluator | WorkerContext, client: str, prompts: Prompts | None, prior: PriorState
) -> Predictions:
    return context.test_sets[client].predictions(prompts, prior)


def _score(
    context: Evaluator | WorkerContext, _: str, clients: Sequence[str], models: Sequence[Prompts], prior: PriorState
) -> list[Score]:
    return score_everywhere([context.test_sets[client] for client in clients], models, prior)


def score(predictions: Predictions) -> Score:
    """Return how many predictions are right, and how many there are."""
    predicted, truth = predictions
    return int((predicted == truth).sum()), len(truth)

"""Measurements against the ground truth of a simulation, which never feed back into training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithm.metrics import (
    Score,
    cosine_distance,
    coverage,
    distribution_similarity,
    drift_diversity,
    label_accuracy,
    mean_set_size,
    recall_per_class,
)
from ..algorithm.select import Selection
from ..errors import FedCoPLError
from ..federation.client_state import ClientState, whole_model
from ..federation.learner import Prompts
from ..federation.prior_estimation import NO_PRIOR, PriorState
from ..federation.server import ServerState
from ..federation.transport import RoundReport
from ..messages import Shared
from ..methods.learner import ClipTestSet, score_everywhere
from ..priors.posterior import PosteriorModel
from ..run.loop import round_record
from ..run.record import Drift, Measured, RefreshRecord, RoundRecord, finite, measured
from .worker_pool import Job, WorkerContext, WorkerFailed, WorkerPool

_States = Mapping[str, ClientState]
_Predictions = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The predicted and the true class of each image."""
_ModelWithPriors = tuple[Prompts | None, PriorState]
"""A model and the priors it predicts with; None: zero-shot CLIP."""


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models on the clients' test sets, in this process or in the workers."""

    test_sets: Mapping[str, ClipTestSet]
    pool: WorkerPool | None = None

    def predict(self, models: Mapping[str, _ModelWithPriors]) -> dict[str, _Predictions]:
        """Return the predictions of each client's model on the client's own test set."""
        return self._run({client: (_predict, *model) for client, model in models.items()})

    def score_everywhere(self, models: Sequence[Prompts], prior: PriorState) -> list[Score]:
        """Return the score of each model on the test sets of all clients."""
        groups = [[name for name in group if name in self.test_sets] for group in self.pool.groups] if self.pool else []
        groups = [group for group in groups if group] or [[*self.test_sets]]
        # Each worker scores the models on its own group of test sets; the name of a job selects the worker.
        scores_of_groups = self._run({group[0]: (_score, group, models, prior) for group in groups}).values()
        return [sum_scores(scores) for scores in zip(*scores_of_groups, strict=True)]

    def _run(self, jobs: Mapping[str, Job]) -> dict[str, Any]:
        if self.pool is None:
            return {name: function(self, name, *arguments) for name, (function, *arguments) in jobs.items()}
        try:
            return self.pool.run(jobs)
        except WorkerFailed as failed:
            raise FedCoPLError(f"cannot evaluate the model of {failed}") from failed


@dataclass(frozen=True)
class Audit:
    """The ground truth of a simulation, and the measurements against it."""

    truth: Mapping[str, NDArray[np.int64]] | None  # labels of each client's training images
    evaluator: Evaluator
    start: Prompts  # the initial arrays of all clients
    everywhere: bool  # whether each model is also evaluated on all clients' test images
    classes: int
    centralised: bool = False  # a single client trains on all images, and is evaluated on each client's test set

    def zero_shot(self, scores: Mapping[str, Score]) -> Measured:
        """Return the accuracies of zero-shot CLIP, given the clients' own scores."""
        predictions = self.evaluator.predict(dict.fromkeys(self.evaluator.test_sets, (None, NO_PRIOR)))
        own = list(map(_score_of, predictions.values())) if self.centralised else list(scores.values())
        return replace(measured(own, [sum_scores(own)]), recall=self._recall(predictions))

    def round(
        self, before: tuple[Shared, _States], server: ServerState, report: RoundReport, states: _States
    ) -> RoundRecord:
        """Return the record of a round; `before` has the shared prompts and the clients' states before the round."""
        record = round_record(report, self._measured(server, report.scores, states))
        record = replace(record, drift=_drift(self.start, before, report, states))
        return replace(record, untrained=self._with_pooled_accuracy(record.untrained, server.prior_model))

    def _with_pooled_accuracy(self, untrained: Measured | None, model: PosteriorModel | None) -> Measured | None:
        """Add the accuracy of calibrated zero-shot CLIP on all clients' test images, with the common class prior."""
        if untrained is None or untrained.macro is None or model is None or not self.everywhere:
            return untrained
        prior = PriorState(model=model, class_prior=model.class_prior)
        predictions = self.evaluator.predict(dict.fromkeys(self.evaluator.test_sets, (None, prior)))
        correct, images = sum_scores(map(_score_of, predictions.values()))
        return replace(untrained, everywhere=correct / images)

    def _measured(self, server: ServerState, scores: Mapping[str, Score], states: _States) -> Measured:
        """Return the accuracies and the recall of each class after a round; empty without scores or test sets."""
        if not scores or not self.evaluator.test_sets:
            return Measured()
        models = {name: whole_model(self.start, server.shared, state) for name, state in states.items()}
        on_all_images, common = None, server.prior_model
        if self.everywhere:  # the images of all clients together have the common class prior
            prior = PriorState(model=common, class_prior=None if common is None else common.class_prior)
            on_all_images = self.evaluator.score_everywhere(list(models.values()), prior)
        evaluated = {name: (models[name], state.prior) for name, state in states.items()}
        if self.centralised:
            evaluated = dict.fromkeys(self.evaluator.test_sets, next(iter(evaluated.values())))
        predictions = self.evaluator.predict(evaluated)
        # A client that did not reply has the score (0, 0): the list has one entry for each client.
        own = [_score_of(predictions[name]) if self.centralised else scores.get(name, (0, 0)) for name in evaluated]
        return replace(measured(own, on_all_images), recall=self._recall(predictions))

    def _recall(self, predictions: Mapping[str, _Predictions]) -> tuple[float | None, ...] | None:
        """Return the recall of each class over all clients; None for a class without test images."""
        if not predictions:
            return None
        predicted, truth = (np.concatenate(column) for column in zip(*predictions.values(), strict=True))
        return tuple(finite(float(share)) for share in recall_per_class(predicted, truth, self.classes))

    def refresh(self, round: int, states: _States) -> RefreshRecord:
        """Return the record of a refresh: counts, quotas, selections and accuracy of the pseudo labels."""
        selections = {name: state.selection for name, state in states.items() if state.selection is not None}
        class_priors = tuple(_row(state.prior.class_prior) for state in states.values())
        record = RefreshRecord(
            round=round,
            images=sum(len(selection.index) for selection in selections.values()),
            estimated=tuple(_row(state.counts) for state in states.values()),
            allocated=tuple(_row(state.quota) for state in states.values()),
            selected=tuple(_row(_class_counts(state.selection, self.classes)) for state in states.values()),
            class_prior=class_priors if any(class_priors) else (),
        )
        return record if self.truth is None else self._with_truth(record, selections, self.truth)

    def _with_truth(
        self, record: RefreshRecord, selections: Mapping[str, Selection], truth_of: Mapping[str, NDArray[np.int64]]
    ) -> RefreshRecord:
        """Add the accuracy of the pseudo labels, and for candidate sets their coverage and mean size."""
        labels = np.concatenate([selection.label for selection in selections.values()])
        truth = np.concatenate([truth_of[name][selection.index] for name, selection in selections.items()])
        similarities = []
        for name, selection in selections.items():
            counts = [np.bincount(labels, minlength=self.classes) for labels in (selection.label, truth_of[name])]
            similarities.append(distribution_similarity(*counts))
        record = replace(
            record,
            pseudo_label_accuracy=label_accuracy(labels, truth),
            distribution_similarity=float(np.mean(similarities)),
        )
        sets = [selection.candidates > 0 for selection in selections.values() if selection.candidates is not None]
        if len(sets) < len(selections):
            return record
        candidates = np.concatenate(sets)
        return replace(record, coverage=coverage(candidates, truth), mean_set_size=mean_set_size(candidates))


def _drift(start: Prompts, before: tuple[Shared, _States], report: RoundReport, states: _States) -> dict[str, Drift]:
    """Return the client drift of each shared and personal array in a round (supplement of the paper)."""
    shared, old_states = before
    updates = {name: [sent[name] - value for sent in report.updates.values()] for name, value in shared.items()}
    for name in (name for name in start if name not in shared):
        trained = [client for client in report.participants if name in states[client].own]
        if trained:  # the reference is the mean over the clients before the round, because no average exists
            mean = np.mean([whole_model(start, {}, old_states[client])[name] for client in trained], axis=0)
            updates[name] = [states[client].own[name] - mean for client in trained]
    return {name: Drift(finite(drift_diversity(rows)), cosine_distance(rows)) for name, rows in updates.items() if rows}


def _row(values: NDArray[Any] | None) -> tuple[Any, ...]:
    return () if values is None else tuple(values.tolist())


def _class_counts(selection: Selection | None, classes: int) -> NDArray[np.int64] | None:
    return None if selection is None else np.bincount(selection.label, minlength=classes)


def _predict(
    context: Evaluator | WorkerContext, client: str, prompts: Prompts | None, prior: PriorState
) -> _Predictions:
    return context.test_sets[client].predictions(prompts, prior)


def _score(
    context: Evaluator | WorkerContext, _: str, clients: Sequence[str], models: Sequence[Prompts], prior: PriorState
) -> list[Score]:
    return score_everywhere([context.test_sets[client] for client in clients], models, prior)


def _score_of(predictions: _Predictions) -> Score:
    predicted, truth = predictions
    return int((predicted == truth).sum()), len(truth)


def sum_scores(scores: Iterable[Score]) -> Score:
    """Return the sums of correct predictions and of images."""
    listed = list(scores)
    return sum(correct for correct, _ in listed), sum(images for _, images in listed)

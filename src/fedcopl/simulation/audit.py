"""What only a simulation can know: the truth about every image. It is measured against, and never fed back."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
from ..federation.client_state import ClientState, whole_model
from ..federation.learner import Prompts
from ..federation.prior_estimation import NO_PRIOR, PriorState
from ..federation.server import ServerState
from ..federation.transport import RoundReport
from ..messages import Shared
from ..priors.posterior import PosteriorModel
from ..run.loop import round_record
from ..run.record import Drift, Measured, RefreshRecord, RoundRecord, finite, measured
from .evaluator import Evaluator, Predictions, score

States = Mapping[str, ClientState]


@dataclass(frozen=True)
class Audit:
    """The truth of a simulation, client by client."""

    truth: Mapping[str, NDArray[np.int64]] | None  # of each client's training images
    evaluator: Evaluator
    start: Prompts  # where all clients began
    everywhere: bool
    classes: int
    pools: bool = False  # one place holds everything, but is measured on every client's part

    def zero_shot(self, scores: Mapping[str, Score]) -> Measured:
        answers = self.evaluator.predict(dict.fromkeys(self.evaluator.test_sets, (None, NO_PRIOR)))
        own = list(map(score, answers.values())) if self.pools else list(scores.values())
        whole = [(sum(correct for correct, _ in own), sum(examples for _, examples in own))]
        return replace(measured(own, whole), recall=self._recall(answers))

    def round(
        self, before: tuple[Shared, States], server: ServerState, report: RoundReport, states: States
    ) -> RoundRecord:
        """A round with its accuracies; `before` are the server's prompts and the clients' states as it began."""
        record = round_record(report, self._measured(server, report.scores, states))
        record = replace(record, drift=drift(self.start, before, report, states))
        return replace(record, untrained=self._everywhere(record.untrained, server.prior_model))

    def _everywhere(self, untrained: Measured | None, model: PosteriorModel | None) -> Measured | None:
        """Also on all clients' images, where priors were measured: there is one model, and the mix of all."""
        if untrained is None or untrained.macro is None or model is None or not self.everywhere:
            return untrained
        prior = PriorState(model=model, class_prior=model.class_prior)
        scores = list(
            map(score, self.evaluator.predict(dict.fromkeys(self.evaluator.test_sets, (None, prior))).values())
        )
        whole = sum(correct for correct, _ in scores) / sum(examples for _, examples in scores)
        return replace(untrained, everywhere=whole)

    def _measured(self, server: ServerState, scores: Mapping[str, Score], states: States) -> Measured:
        """The three accuracies after this round, and the recall of each class."""
        if not scores or not self.evaluator.test_sets:
            return Measured()
        models = {name: whole_model(self.start, server.shared, state) for name, state in states.items()}
        whole = self._whole(models, server.prior_model) if self.everywhere else None
        sat = {name: (models[name], state.prior) for name, state in states.items()}
        if self.pools:
            sat = dict.fromkeys(self.evaluator.test_sets, next(iter(sat.values())))
        answers = self.evaluator.predict(sat)
        # A client that did not answer keeps its row in the list, so that the others keep theirs.
        own = [score(answers[name]) if self.pools else scores.get(name, (0, 0)) for name in sat]
        return replace(measured(own, whole), recall=self._recall(answers))

    def _whole(self, models: Mapping[str, Prompts], model: PosteriorModel | None) -> list[Score]:
        """Everybody's model on everybody's images: whose mix that is nobody knows, so the common one is taken."""
        prior = PriorState(model=model, class_prior=None if model is None else model.class_prior)
        return self.evaluator.score_everywhere(list(models.values()), prior)

    def _recall(self, answers: Mapping[str, Predictions]) -> tuple[float | None, ...] | None:
        """Of each class, the share that its holders' own models find; None for a class without test images."""
        if not answers:
            return None
        predicted, truth = (np.concatenate(column) for column in zip(*answers.values(), strict=True))
        return tuple(finite(float(share)) for share in recall_per_class(predicted, truth, self.classes))

    def refresh(self, round: int, states: States) -> RefreshRecord:
        """What the clients estimated, were allowed and chose, and how much of it is true."""
        chosen: dict[str, Selection] = {}
        rows = []
        for name, state in states.items():  # once: of many clients each is read from a file
            if state.selection is not None:
                chosen[name] = state.selection
            own = _row(state.counts), _row(state.quota), _selected_row(state.selection, self.classes)
            rows.append((*own, () if state.prior.class_prior is None else tuple(state.prior.class_prior.tolist())))
        estimated, allocated, selected, class_priors = zip(*rows, strict=True)
        record = RefreshRecord(
            round=round,
            images=sum(len(selection.index) for selection in chosen.values()),
            estimated=estimated,
            allocated=allocated,
            selected=selected,
            class_prior=class_priors if any(class_priors) else (),
        )
        return record if self.truth is None else self._with_truth(record, chosen, self.truth)

    def _with_truth(
        self, record: RefreshRecord, chosen: Mapping[str, Selection], truth_of: Mapping[str, NDArray[np.int64]]
    ) -> RefreshRecord:
        """How many pseudo labels are right; for candidate sets also how many hold the truth, and how large they are."""
        labels = np.concatenate([selection.label for selection in chosen.values()])
        truth = np.concatenate([truth_of[name][selection.index] for name, selection in chosen.items()])
        record = replace(
            record,
            pseudo_label_accuracy=label_accuracy(labels, truth),
            distribution_similarity=self._similarity(chosen, truth_of),
        )
        sets = [selection.candidates for selection in chosen.values()]
        if any(candidates is None for candidates in sets):
            return record
        together = np.concatenate([candidates > 0 for candidates in sets if candidates is not None])
        return replace(record, coverage=coverage(together, truth), mean_set_size=mean_set_size(together))

    def _similarity(self, chosen: Mapping[str, Selection], truth_of: Mapping[str, NDArray[np.int64]]) -> float:
        """Cosine of a client's chosen and true label counts, mean over the clients."""
        counts = (
            (np.bincount(labels, minlength=self.classes) for labels in (selection.label, truth_of[name]))
            for name, selection in chosen.items()
        )
        return float(np.mean([distribution_similarity(*pair) for pair in counts]))


def drift(start: Prompts, before: tuple[Shared, States], report: RoundReport, states: States) -> dict[str, Drift]:
    """How far the participants pull apart, for what they share and for what they keep (supplement of the paper)."""
    shared, old = before
    moves = {name: [update[name] - value for update in report.updates.values()] for name, value in shared.items()}
    for name in (name for name in start if name not in shared):
        moved = [client for client in report.participants if name in states[client].own]
        if moved:
            # What is never averaged has no common past: the plain mean of the clients' own stands in for it,
            # and for a client that has not trained yet where all began.
            mean = np.mean([whole_model(start, {}, old[client])[name] for client in moved], axis=0)
            moves[name] = [states[client].own[name] - mean for client in moved]
    return {name: Drift(finite(drift_diversity(move)), cosine_distance(move)) for name, move in moves.items() if move}


def _row(counts: NDArray[np.int64] | None) -> tuple[int, ...]:
    return () if counts is None else tuple(counts.tolist())


def _selected_row(selection: Selection | None, classes: int) -> tuple[int, ...]:
    return () if selection is None else tuple(np.bincount(selection.label, minlength=classes).tolist())

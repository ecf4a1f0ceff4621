"""What only a simulation can know: the truth about every image. It is measured against, and never fed back."""

from collections.abc import Mapping, Sequence
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
from ..algorithm.priors import Learned
from ..algorithm.select import Selection
from ..federation.adaptation import PriorState
from ..federation.client import NO_PRIOR, ClientState, Prompts
from ..federation.seam import RoundReport
from ..federation.server import ServerState
from ..messages import Shared
from ..methods.learner import ClipExam, score_everywhere
from ..run.loop import round_record
from ..run.record import Drift, Measured, RefreshRecord, RoundRecord, finite, measured

States = Mapping[str, ClientState]


@dataclass(frozen=True)
class Audit:
    """The truth of a simulation, client by client."""

    truth: Mapping[str, NDArray[np.int64]] | None  # of each client's training images
    exams: Mapping[str, ClipExam]
    start: Prompts  # where all clients began
    everywhere: bool
    classes: int
    pools: bool = False  # one place holds everything, but is measured on every client's part

    def zero_shot(self, scores: Mapping[str, Score]) -> Measured:
        own = [exam.score(None) for exam in self.exams.values()] if self.pools else list(scores.values())
        whole = [(sum(correct for correct, _ in own), sum(examples for _, examples in own))]
        return replace(measured(own, whole), recall=self._recall(dict.fromkeys(self.exams), {}))

    def round(
        self, before: tuple[Shared, States], server: ServerState, report: RoundReport, states: States
    ) -> RoundRecord:
        """A round with its accuracies; `before` are the server's prompts and the clients' states as it began."""
        record = round_record(report, self._measured(server, report.scores, states))
        return replace(record, drift=drift(tuple(self.start), before, report, states))

    def _measured(self, server: ServerState, scores: Mapping[str, Score], states: States) -> Measured:
        """The three accuracies after this round, and the recall of each class."""
        if not scores or not self.exams:
            return Measured()
        models = {name: {**self.start, **server.shared, **state.own} for name, state in states.items()}
        whole = self._whole(models, server.learned) if self.everywhere else None
        if self.pools:
            models = dict.fromkeys(self.exams, next(iter(models.values())))
            priors = dict.fromkeys(self.exams, next(iter(states.values())).prior)
            own = [self.exams[name].score(model, priors[name]) for name, model in models.items()]
        else:
            priors = {name: state.prior for name, state in states.items()}
            # A client that did not answer keeps its row in the list, so that the others keep theirs.
            own = [scores.get(name, (0, 0)) for name in states]
        return replace(measured(own, whole), recall=self._recall(models, priors))

    def _whole(self, models: Mapping[str, Prompts], learned: Learned | None) -> list[Score]:
        """Everybody's model on everybody's images: whose mix that is nobody knows, so the common one is taken."""
        prior = PriorState(learned=learned, mix=None if learned is None else learned.reading.mix)
        return score_everywhere(list(self.exams.values()), list(models.values()), prior)

    def _recall(
        self, models: Mapping[str, Prompts | None], priors: Mapping[str, PriorState]
    ) -> tuple[float | None, ...] | None:
        """Of each class, the share that its holders' own models find; None for a class without test images."""
        if not self.exams:
            return None
        answers = [self.exams[name].answers(model, priors.get(name, NO_PRIOR)) for name, model in models.items()]
        predicted, truth = (np.concatenate(column) for column in zip(*answers, strict=True))
        return tuple(finite(float(share)) for share in recall_per_class(predicted, truth, self.classes))

    def refresh(self, round: int, states: States) -> RefreshRecord:
        """What the clients estimated, were allowed and chose, and how much of it is true."""
        chosen = {name: state.selection for name, state in states.items() if state.selection is not None}
        record = RefreshRecord(
            round=round,
            images=sum(len(selection.index) for selection in chosen.values()),
            estimated=tuple(_row(state.counts) for state in states.values()),
            allocated=tuple(_row(state.quota) for state in states.values()),
            selected=tuple(_selected_row(state.selection, self.classes) for state in states.values()),
            believed_mix=_believed_mixes(states),
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


def drift(
    trained: Sequence[str], before: tuple[Shared, States], report: RoundReport, states: States
) -> dict[str, Drift]:
    """How far the participants pull apart, for what they share and for what they keep (supplement of the paper)."""
    shared, old = before
    moves = {name: [update[name] - value for update in report.updates.values()] for name, value in shared.items()}
    for name in (name for name in trained if name not in shared):
        moved = [client for client in report.participants if name in old[client].own and name in states[client].own]
        if moved:
            # What is never averaged has no common past: the plain mean of the clients' own stands in for it.
            mean = np.mean([old[client].own[name] for client in moved], axis=0)
            moves[name] = [states[client].own[name] - mean for client in moved]
    return {name: Drift(finite(drift_diversity(move)), cosine_distance(move)) for name, move in moves.items() if move}


def _row(counts: NDArray[np.int64] | None) -> tuple[int, ...]:
    return () if counts is None else tuple(counts.tolist())


def _believed_mixes(states: States) -> tuple[tuple[float, ...], ...]:
    """One row for each client, empty for one that knows no mix; nothing where nobody does."""
    rows = tuple(() if state.prior.mix is None else tuple(state.prior.mix.tolist()) for state in states.values())
    return rows if any(rows) else ()


def _selected_row(selection: Selection | None, classes: int) -> tuple[int, ...]:
    return () if selection is None else tuple(np.bincount(selection.label, minlength=classes).tolist())

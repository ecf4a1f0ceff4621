"""What only a simulation can know: the truth about every image. It is measured against, and never fed back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..client import ClientState, Prompts
from ..core.metrics import (
    Score,
    accuracy,
    cosine_distance,
    coverage,
    distribution_similarity,
    drift_diversity,
    label_accuracy,
    mean_set_size,
    recall_per_class,
)
from ..core.select import Selection
from ..messages import Shared
from ..model.learner import ClipExam, score_everywhere
from ..privacy_account import release_records
from ..protocol import RoundReport, ServerState
from .guarding import guard_record

Record = dict[str, Any]
States = Mapping[str, ClientState]


@dataclass(frozen=True)
class Audit:
    """The truth of a simulation, client by client."""

    truth: Mapping[str, NDArray[np.int64]] | None  # of each client's training images
    exams: Mapping[str, ClipExam]
    start: Prompts  # where all clients began
    everywhere: bool
    classes: int
    central: bool = False  # one place holds everything, but is measured on every client's part

    def zero_shot(self, scores: Mapping[str, Score]) -> Record:
        own = [exam.score(None) for exam in self.exams.values()] if self.central else list(scores.values())
        whole = [(sum(correct for correct, _ in own), sum(examples for _, examples in own))]
        return accuracy_record(own, whole) | {"recall": self._recall(dict.fromkeys(self.exams))}

    def round(self, before: tuple[Shared, States], server: ServerState, report: RoundReport, states: States) -> Record:
        """One line of rounds.jsonl; `before` are the server's prompts and the clients' states as the round began."""
        record = {
            "round": report.round,
            "refreshed": report.refreshed,
            "participants": len(report.participants),
            "sites": list(report.participants),
            "totals": None if report.totals is None else report.totals.tolist(),
            "labelling": asdict(report.labelling) if report.labelling else None,
            "examples": report.examples,
            "loss": None if math.isnan(report.loss) else report.loss,
            "bytes_up": report.bytes_up,
            "bytes_down": report.bytes_down,
            "kept_old_prompt": report.kept_old_prompt,
            "guard": guard_record(report),
            "dropped": report.dropped,
            "drift": drift(tuple(self.start), before, report, states),
            "releases": release_records(report.releases),
        }
        return record | self._measured(server.shared, report.scores, states)

    def _measured(self, shared: Shared, scores: Mapping[str, Score], states: States) -> Record:
        """The three accuracies after this round, and the recall of each class."""
        if not scores or not self.exams:
            return accuracy_record([], None) | {"recall": None}
        models = {name: {**self.start, **shared, **state.own} for name, state in states.items()}
        whole = score_everywhere(list(self.exams.values()), list(models.values())) if self.everywhere else None
        if self.central:
            models = dict.fromkeys(self.exams, next(iter(models.values())))
            own = [self.exams[name].score(model) for name, model in models.items()]
        else:
            # A client that did not answer has a place of its own in the list, so that the others keep theirs.
            own = [scores.get(name, (0, 0)) for name in states]
        return accuracy_record(own, whole) | {"recall": self._recall(models)}

    def _recall(self, models: Mapping[str, Prompts | None]) -> list[float | None] | None:
        """Of each class, the share that its holders' own models find; None for a class without test images."""
        if not self.exams:
            return None
        answers = [self.exams[name].answers(model) for name, model in models.items()]
        predicted, truth = (np.concatenate(column) for column in zip(*answers, strict=True))
        return [None if np.isnan(share) else float(share) for share in recall_per_class(predicted, truth, self.classes)]

    def refresh(self, round: int, states: States) -> Record:
        """What the clients estimated, were allowed and chose, and how much of it is true."""
        chosen = {name: state.selection for name, state in states.items() if state.selection is not None}
        record = {
            "round": round,
            "images": sum(len(selection.index) for selection in chosen.values()),
            "estimated": [_row(state.counts) for state in states.values()],
            "allocated": [_row(state.quota) for state in states.values()],
            "selected": [_selected_row(state.selection, self.classes) for state in states.values()],
        }
        return record | self._truth_about(chosen)

    def _truth_about(self, chosen: Mapping[str, Selection]) -> Record:
        """How many pseudo labels are right; for candidate sets also how many hold the truth, and how large they are."""
        nothing = dict.fromkeys(("pseudo_label_accuracy", "coverage", "mean_set_size", "distribution_similarity"))
        if self.truth is None:
            return nothing
        truths = {name: self.truth[name][selection.index] for name, selection in chosen.items()}
        labels = np.concatenate([selection.label for selection in chosen.values()])
        truth = np.concatenate(list(truths.values()))
        right = {
            "pseudo_label_accuracy": label_accuracy(labels, truth),
            "distribution_similarity": self._similarity(chosen),
        }
        sets = [selection.candidates for selection in chosen.values()]
        if any(candidates is None for candidates in sets):
            return nothing | right
        together = np.concatenate([candidates > 0 for candidates in sets if candidates is not None])
        return right | {"coverage": coverage(together, truth), "mean_set_size": mean_set_size(together)}

    def _similarity(self, chosen: Mapping[str, Selection]) -> float:
        """Cosine of a client's chosen and true label counts, mean over the clients."""
        assert self.truth is not None
        return float(
            np.mean(
                [
                    distribution_similarity(
                        np.bincount(selection.label, minlength=self.classes),
                        np.bincount(self.truth[name], minlength=self.classes),
                    )
                    for name, selection in chosen.items()
                ]
            )
        )


def drift(trained: Sequence[str], before: tuple[Shared, States], report: RoundReport, states: States) -> Record:
    """How far the participants pull apart, for what they share and for what they keep (supplement of the paper)."""
    shared, old = before
    moves = {name: [update[name] - value for update in report.updates.values()] for name, value in shared.items()}
    for name in (name for name in trained if name not in shared):
        moved = [client for client in report.participants if name in old[client].own and name in states[client].own]
        if moved:
            # What is never averaged has no common past: the plain mean of the clients' own stands in for it.
            mean = np.mean([old[client].own[name] for client in moved], axis=0)
            moves[name] = [states[client].own[name] - mean for client in moved]
    return {
        name: {"diversity": _finite(drift_diversity(move)), "cosine": cosine_distance(move)}
        for name, move in moves.items()
        if move
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def accuracy_record(own: Sequence[Score], whole: Sequence[Score] | None) -> Record:
    """The three accuracies, and each client's own; None where nothing was measured."""
    if not any(examples for _, examples in own):
        return {"macro": None, "weighted": None, "global": None, "clients": []}
    measured = accuracy(own, whole)
    return {
        "macro": measured.macro,
        "weighted": measured.weighted,
        "global": measured.global_,
        "clients": [correct / examples if examples else None for correct, examples in own],
    }


def _row(counts: NDArray[np.int64] | None) -> list[int]:
    return [] if counts is None else counts.tolist()


def _selected_row(selection: Selection | None, classes: int) -> list[int]:
    return [] if selection is None else np.bincount(selection.label, minlength=classes).tolist()

"""What only a simulation can know: the truth about every image. It is measured against, and never fed back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..client import ClientState
from ..core.metrics import Score, accuracy, label_accuracy
from ..messages import Shared
from ..model.learner import ClipExam, score_everywhere
from ..protocol import RoundReport, ServerState

Record = dict[str, Any]


@dataclass(frozen=True)
class Audit:
    """The truth of a simulation, client by client."""

    truth: Mapping[str, NDArray[np.int64]] | None  # of each client's training images
    exams: Mapping[str, ClipExam]
    start: Shared  # the prompts of a client that has not trained yet
    everywhere: bool

    def zero_shot(self, scores: Mapping[str, Score]) -> Record:
        whole = [score_everywhere(tuple(self.exams.values()), None)] if self.everywhere and self.exams else None
        return accuracy_record(list(scores.values()), whole)

    def round(self, server: ServerState, report: RoundReport, states: Mapping[str, ClientState]) -> Record:
        """One line of rounds.jsonl."""
        record = {
            "round": report.round,
            "refreshed": report.refreshed,
            "participants": len(report.participants),
            "examples": report.examples,
            "loss": None if math.isnan(report.loss) else report.loss,
            "bytes_up": report.bytes_up,
            "bytes_down": report.bytes_down,
            "kept_old_prompt": report.kept_old_prompt,
            "dropped": report.dropped,
        }
        # A client that did not answer has a place of its own in the list, so that the others keep theirs.
        scores = [report.scores.get(name, (0, 0)) for name in states] if report.scores else []
        return record | accuracy_record(scores, self._whole(server.shared, states) if scores else None)

    def _whole(self, shared: Shared, states: Mapping[str, ClientState]) -> list[Score] | None:
        """Every client's model on all test images."""
        if not self.everywhere or not self.exams:
            return None
        exams = tuple(self.exams.values())
        return [score_everywhere(exams, {**self.start, **state.own, **shared}) for state in states.values()]

    def refresh(self, round: int, states: Mapping[str, ClientState], classes: int) -> Record:
        """What the clients estimated, were allowed and chose, and how much of it is true."""
        chosen = {name: state for name, state in states.items() if state.selection is not None}
        return {
            "round": round,
            "pseudo_label_accuracy": self._label_accuracy(chosen),
            "images": sum(len(state.selection.index) for state in chosen.values() if state.selection),
            "estimated": [_row(state.counts) for state in states.values()],
            "allocated": [_row(state.quota) for state in states.values()],
            "selected": [_selected_row(state, classes) for state in states.values()],
        }

    def _label_accuracy(self, chosen: Mapping[str, ClientState]) -> float | None:
        if self.truth is None:
            return None
        picked = [(name, state.selection) for name, state in chosen.items() if state.selection is not None]
        labels = np.concatenate([selection.label for _, selection in picked])
        truth = np.concatenate([self.truth[name][selection.index] for name, selection in picked])
        return label_accuracy(labels, truth)


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


def _selected_row(state: ClientState, classes: int) -> list[int]:
    return [] if state.selection is None else np.bincount(state.selection.label, minlength=classes).tolist()

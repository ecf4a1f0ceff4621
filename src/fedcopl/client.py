"""The client's side: its own images, its own text prompt, and one answer per question."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .config import Labels, RunConfig
from .core.allocate import quota
from .core.estimate import estimate
from .core.select import Selection, select
from .messages import (
    Ask,
    Estimate,
    Estimated,
    Evaluate,
    Evaluated,
    Reply,
    Select,
    Selected,
    Shared,
    Train,
    Trained,
)

Prompts = Mapping[str, NDArray[np.float32]]
"""All prompts of one client's model by name: `visual` (layers, vectors, width) and `text` (vectors, width)."""

SHARED_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "visual": ("visual",),
    "text": ("text",),
    "both": ("visual", "text"),
    "none": (),
}
"""Which prompts the server averages, for each value of the setting `sharing.aggregate`."""


class Learner(Protocol):
    """CLIP with prompts over one client's unlabelled images. Torch lives behind this; no label ever comes in."""

    def initial(self) -> Prompts:
        """The prompts to start from, the same at every client."""
        ...

    def log_probabilities(self, prompts: Prompts | None) -> NDArray[np.float64]:
        """log p_c(x) of every image, (n_k, C). None: plain zero-shot CLIP."""
        ...

    def train(self, prompts: Prompts, selection: Selection, round: int) -> tuple[Prompts, float]:
        """The prompts after this round's local epochs, and the mean loss of the last one."""
        ...


class Exam(Protocol):
    """The client's own labelled test images, where it has any: the only place that knows the truth."""

    def score(self, prompts: Prompts | None) -> tuple[int, int]:
        """How many are right, of how many. None: by plain zero-shot CLIP."""
        ...


class NoExam:
    """A site without labels: it cannot say how many are right."""

    def score(self, prompts: Prompts | None) -> tuple[int, int]:
        return 0, 0


NO_EXAM = NoExam()


@dataclass(frozen=True)
class ClientState:
    """What a client keeps to itself between rounds. Never sent."""

    own: Prompts = field(default_factory=dict)  # the prompts that stay at home; empty before the first training
    log_probs: NDArray[np.float64] | None = None  # of the last estimate, until the selection is made from it
    counts: NDArray[np.int64] | None = None  # u_k of the last estimate
    quota: NDArray[np.int64] | None = None  # how many of each class the last selection was allowed
    selection: Selection | None = None
    confidence: NDArray[np.float64] | None = None  # log-probability of each chosen image's label


@dataclass(frozen=True)
class Client:
    """One client's fixed parts: what it computes with and how it is set."""

    learner: Learner
    config: RunConfig
    exam: Exam = NO_EXAM

    def answer(self, ask: Ask, state: ClientState) -> tuple[Reply, ClientState]:
        """The reply to a question, and the state to keep for the next one."""
        match ask:
            case Estimate():
                return self._estimate(ask, state)
            case Select():
                return self._select(ask, state)
            case Train():
                return self._train(ask, state)
            case Evaluate():
                return Evaluated(*self.exam.score(self._prompts(ask.shared, state))), state

    def _estimate(self, ask: Estimate, state: ClientState) -> tuple[Reply, ClientState]:
        # The random first prompts know nothing yet: the first labels are zero-shot CLIP's.
        prompts = None if ask.round == 0 else self._prompts(ask.shared, state)
        log_probs = self.learner.log_probabilities(prompts)
        counts = count_sure(log_probs, self.config.labels)
        sent = counts if self.config.labels.global_allocation else None
        return Estimated(sent), replace(state, log_probs=log_probs, counts=counts)

    def _select(self, ask: Select, state: ClientState) -> tuple[Reply, ClientState]:
        if state.log_probs is None or state.counts is None:
            raise ValueError("asked to select before it was asked to estimate")
        allowed = allowed_counts(state.counts, ask, self.config.labels)
        selection = select(state.log_probs, allowed, self.config.labels.candidates)
        confidence = state.log_probs[selection.index, selection.label]
        chosen = replace(state, log_probs=None, quota=allowed, selection=selection, confidence=confidence)
        return Selected(len(selection.index)), chosen

    def _train(self, ask: Train, state: ClientState) -> tuple[Reply, ClientState]:
        if state.selection is None:
            raise ValueError("asked to train before it was asked to select")
        if not len(state.selection.index):
            return Trained(ask.shared, 0, float("nan")), state
        prompts = self._prompts(ask.shared, state) or {}
        trained, loss = self.learner.train(prompts, state.selection, ask.round)
        shared = {name: trained[name] for name in ask.shared}
        own = {name: value for name, value in trained.items() if name not in ask.shared}
        return Trained(shared, len(state.selection.index), loss), replace(state, own=own)

    def _prompts(self, shared: Shared | None, state: ClientState) -> Prompts | None:
        """The whole model: what the server averaged, with this client's own prompts beside it."""
        return None if shared is None else {**(state.own or self.learner.initial()), **shared}


def count_sure(log_probs: NDArray[np.float64], labels: Labels) -> NDArray[np.int64]:
    """u_k: how many images of each class pass the filters that are switched on."""
    return estimate(
        log_probs,
        confidence_quantile=labels.confidence_quantile if labels.confidence_filter else None,
        entropy_quantile=labels.entropy_quantile if labels.entropy_filter else None,
    )


def allowed_counts(counts: NDArray[np.int64], ask: Select, labels: Labels) -> NDArray[np.int64]:
    """This client's row of the allocation, worked out from the sums alone; its own counts if nothing is shared out."""
    if ask.totals is None:
        return counts
    return quota(counts, ask.totals, ask.clients, refresh_index=ask.refresh, budget=labels.budget, unseen=labels.unseen)

"""The client's side of the protocol: one reply per request, computed from its own images and its own state."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..algorithm.guard import GuardMemory
from ..algorithm.select import NO_CORRECTIONS, Corrections, Selection, with_corrections
from ..config import RunConfig
from ..errors import CannotAnswer
from ..labelers import Labeler, choose_labeler
from ..messages import (
    Adapt,
    Adapted,
    Ask,
    Estimate,
    Estimated,
    Evaluate,
    Evaluated,
    Introduce,
    Reply,
    Select,
    Selected,
    Shared,
    ShareOut,
    Train,
    Unmask,
)
from ..privacy.disclosure import Teller
from ..privacy.masked_layout import Checks, Training
from .client_state import ClientState, Labels, whole_model
from .holdout_check import HoldoutCheck
from .learner import NO_EXAM, Exam, Learner, Prompts
from .prior_estimation import NO_PRIOR, is_worth_training, reply_to

Answered = tuple[Reply, ClientState]


@dataclass(frozen=True)
class Client:
    """The fixed parts of a client; what changes between requests is its `ClientState`."""

    learner: Learner
    config: RunConfig
    exam: Exam = NO_EXAM
    secret: bytes = b""  # its own, known to nobody else: needed where it adds noise
    said: Corrections = NO_CORRECTIONS  # what the site's own expert said of some images, if that is to be used
    repeatable: bool = False  # only in a simulation: see `Teller`
    least_images: int = 0  # minimum number of images behind an update, a sum, or a class feature sum

    @cached_property
    def _teller(self) -> Teller:
        return Teller(self.config, self.secret, self.repeatable)

    @cached_property
    def _labeler(self) -> Labeler:
        return choose_labeler(self.config)

    @cached_property
    def _check(self) -> HoldoutCheck:
        return HoldoutCheck(self.learner, self.config)

    def answer(self, ask: Ask, state: ClientState) -> Answered:
        """Return the reply to a request, and the state to keep for the next one."""
        state = replace(state, secrets=self._teller.remember(ask, state.secrets))
        match ask:
            case Adapt():
                return self._adapt(ask, state)
            case Estimate():
                return self._estimate(ask, state)
            case Select():
                return self._select(ask, state)
            case Train():
                return self._train(ask, state)
            case Evaluate():
                return self._evaluate(ask, state)
            case Introduce() | ShareOut() | Unmask():
                reply, secrets = self._teller.keys(ask, state.secrets)
                return reply, replace(state, secrets=secrets)

    def _evaluate(self, ask: Evaluate, state: ClientState) -> Answered:
        if ask.shared is not None:
            state = self._check.receive_average(ask.shared, state)
            if ask.round + 1 == self.config.rounds:
                state = self._check.check_final(ask.shared, state)
        prior = NO_PRIOR if ask.shared is None and ask.through != "priors" else state.prior
        return Evaluated(*self.exam.score(self._prompts(ask.shared, state), prior)), state

    def _adapt(self, ask: Adapt, state: ClientState) -> Answered:
        learner = self.learner
        sums, prior = reply_to(
            ask,
            state.prior,
            self.config,
            lambda: self._look(None, state),
            learner.features,
            learner.class_features(),
            self.least_images,
        )
        state = replace(state, prior=prior)
        if sums is None:  # new priors: verdicts on the holdout through the old ones are obsolete
            return Adapted(None), replace(state, guard=replace(state.guard, standing=None))
        reply, secrets = self._teller.adaptation(sums, ask, state.secrets)
        return reply, replace(state, secrets=secrets)

    def _first_look(self, state: ClientState) -> NDArray[np.float64]:
        """What the first labels are made from: the classifier that an earlier run left here, else zero-shot CLIP.

        For the first prompts know nothing yet.
        """
        if state.begun:
            return self._by(state.begun)
        if state.prior.scores is not None:  # the images have just been labelled, for the priors
            return state.prior.scores.log_probs
        return self._look(None, state)

    def _look(self, shared: Shared | None, state: ClientState) -> NDArray[np.float64]:
        """log p_c(x) of all images by a model; None: by plain zero-shot CLIP."""
        return self._by(self._prompts(shared, state))

    def _by(self, prompts: Prompts | None) -> NDArray[np.float64]:
        log_probs = self.learner.log_probabilities(prompts)
        if np.isnan(log_probs).any():
            raise CannotAnswer("its model gives no probabilities any more: training diverged, try a lower train.lr")
        return log_probs

    def _estimate(self, ask: Estimate, state: ClientState) -> Answered:
        state = self._check.receive_average(ask.shared, state)
        seen = self._first_look(state) if ask.round == 0 else self._look(ask.shared, state)
        log_probs, state = state.prior.own_log_posteriors(seen), replace(state, prior=replace(state.prior, scores=None))
        counts = self._labeler.count(log_probs)
        state = replace(state, log_probs=log_probs, counts=counts)
        if not self._labeler.cooperative:
            return Estimated(None), state
        enough = len(log_probs) >= self.least_images
        reply, secrets = self._teller.counts(counts if enough else np.zeros_like(counts), ask, state.secrets)
        return reply, replace(state, secrets=secrets)

    def _select(self, ask: Select, state: ClientState) -> Answered:
        if state.log_probs is None or state.counts is None:
            raise CannotAnswer("asked to select before it was asked to estimate")
        quota = self._labeler.quota(state.counts, len(state.log_probs), ask)
        selection = with_corrections(self._labeler.select(state.log_probs, quota), self.said)
        labels = state.log_probs.argmax(axis=1).astype(np.int32)
        chosen = replace(
            state,
            own={**state.own, **self.learner.remember(selection)},
            log_probs=None,
            quota=quota,
            selection=selection,
            confidence=state.log_probs[selection.index, selection.label],
            labels=labels,
            guard=replace(state.guard, standing=None),
        )
        chosen = replace(chosen, first=chosen.first or self._check.holdout(chosen))
        return self._tell_of(selection, labels, state.labels), chosen

    def _tell_of(self, selection: Selection, labels: Labels, before: Labels | None) -> Selected:
        if self.config.is_private:
            return Selected(None, None, None)
        unchanged = None if before is None else int((labels == before).sum())
        chosen = len(np.unique(selection.index))  # some rules choose an image for more than one class
        return Selected(chosen, len(labels), unchanged)

    def _train(self, ask: Train, state: ClientState) -> Answered:
        if state.selection is None:
            raise CannotAnswer("asked to train before it was asked to select")
        selection, state = state.selection, self._check.receive_average(ask.shared, state)
        training, state = self._fit(ask, selection, state)
        reply, secrets = self._teller.training(training, ask, state.secrets)
        return reply, replace(state, secrets=secrets)

    def _fit(self, ask: Train, selection: Selection, state: ClientState) -> tuple[Training, ClientState]:
        """Train on the selection, unless there is a reason not to; return what is sent of it and the new state."""
        state = replace(state, guard=replace(state.guard, training=None))
        selection = self._check.trainable(selection, state)
        nothing = Training(ask.shared, 0, float("nan"), self._checks(state.guard))
        images = len(np.unique(selection.index))
        if images < max(1, self.least_images) or set(ask.shared) & set(state.own):  # too few, or average rolled back
            return nothing, state
        if not self._is_worth_training(state):
            return replace(nothing, checks=nothing.checks._replace(too_doubtful=1.0)), state
        prompts = {**(self._prompts(ask.shared, state) or {}), **stacked_experts(ask.experts)}
        adjustment = state.prior.adjustment(selection.index)
        trained, loss = self.learner.train(prompts, selection, ask.round, state.guard.caution, adjustment)
        state = self._check.check_training(trained, state)
        if state.guard.training is not None and state.guard.training.harm:
            return replace(nothing, checks=self._checks(state.guard)), state
        shared = {name: trained[name] for name in ask.shared}
        own = {name: value for name, value in trained.items() if name not in ask.shared}
        return Training(shared, len(selection.index), loss, self._checks(state.guard)), replace(state, own=own)

    def _is_worth_training(self, state: ClientState) -> bool:
        """Whether enough labels are right, by the priors' own calibrated posteriors; without priors nobody can tell."""
        return state.prior.model is None or state.confidence is None or is_worth_training(state.confidence)

    def _checks(self, guard: GuardMemory) -> Checks:
        """Summarise the hold-out check in numbers that can be summed over clients; losses only of enough images."""
        arrival, training = guard.arrival, guard.training
        harms = (float(verdict is not None and bool(verdict.harm)) for verdict in (arrival, training))
        if arrival is None or arrival.before.images < self.least_images:
            return Checks(0.0, 0.0, 0.0, *harms)
        return Checks(arrival.before.images, arrival.before.loss, arrival.after.loss, *harms)

    def _prompts(self, shared: Shared | None, state: ClientState) -> Prompts | None:
        return None if shared is None else whole_model(self.learner.initial(), shared, state)


def stacked_experts(experts: Sequence[Shared]) -> Prompts:
    """Other clients' prompts as arrays of one more dimension, under names of their own; they are kept, never sent."""
    names = experts[0] if experts else ()
    return {f"experts' {name}": np.stack([expert[name] for expert in experts]) for name in names}

"""The hold-out check: roll back harmful training and averages, without labels.

Some images are never trained on. The selected images among them are the holdout, with the client's own pseudo labels
as reference. A model is harmful if it fits the holdout worse than the model before it, or contradicts the calibrated
priors on unseen images.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..algorithm.holdout import (
    MIN_AGREEMENT,
    HoldoutVerdict,
    compare_models,
    compare_training,
    evenly_spaced,
    evidence,
    is_against_priors,
    is_held_out,
    next_lr_factor,
)
from ..algorithm.select import Selection
from ..config import RunConfig
from ..messages import Shared
from .client_state import ClientState, same_arrays, whole_model
from .learner import Learner, Prompts

_MIN_UNSEEN, _MAX_UNSEEN = 8, 64  # unseen images that are compared with the priors, twice a round
_TRAINED_PER_UNSEEN = 4  # training images times epochs per unseen image: the check costs a quarter of training

_LogProbs = NDArray[np.float64]
_Compare = Callable[[_LogProbs, _LogProbs, NDArray[np.int64]], HoldoutVerdict]
"""Compares the log-probabilities of the holdout by the model before, and by a new one, given the reference labels."""


@dataclass(frozen=True)
class HoldoutCheck:
    """Compares models of a client on its held-out images."""

    learner: Learner
    config: RunConfig

    def trainable(self, selection: Selection, state: ClientState) -> Selection:
        """Return the selection without the held-out images."""
        kept = ~self._is_held_out(state)[selection.index]
        candidates = None if selection.candidates is None else selection.candidates[kept]
        return Selection(selection.index[kept], selection.label[kept], candidates)

    def holdout(self, state: ClientState) -> Selection | None:
        """Return the selected images that are not trained on, with their pseudo labels; None if there are none."""
        if state.selection is None or state.labels is None:
            return None
        index = np.unique(state.selection.index)
        index = index[self._is_held_out(state)[index]]
        return Selection(index, state.labels[index].astype(np.int64)) if len(index) else None

    def receive_average(self, shared: Shared, state: ClientState) -> ClientState:
        """Compare an average with the last accepted model; if the average is harmful, keep that model."""
        holdout = self.holdout(state)
        if holdout is None:
            return state
        own = {name: value for name, value in state.own.items() if name not in shared}
        initial = {**self.learner.initial(), **state.previous_model}
        last_model, new_model = state.holdout.accepted or initial, {**initial, **own, **shared}
        reference = state.holdout.log_probs
        if reference is None:
            reference = self._log_probs(last_model, holdout.index, state)
        if same_arrays(last_model, new_model):  # a verdict of harm is about an average that the server rolled back
            average = None if state.holdout.average is None or state.holdout.average.harm else state.holdout.average
            unchanged = replace(state.holdout, accepted=new_model, log_probs=reference, average=average)
            return replace(state, own=own, holdout=unchanged)
        verdict, log_probs = self._compare(compare_models, reference, new_model, holdout, state)
        judged = replace(state.holdout, average=verdict)
        if verdict.harm:
            return replace(state, own=last_model, holdout=replace(judged, accepted=last_model, log_probs=reference))
        return replace(state, own=own, holdout=replace(judged, accepted=new_model, log_probs=log_probs))

    def check_training(self, trained: Prompts, state: ClientState) -> ClientState:
        """Record the verdict on a trained model, and set the learning-rate factor of the next round by it."""
        holdout = self.holdout(state)
        if holdout is None or state.holdout.log_probs is None:
            return state
        verdict, _ = self._compare(compare_training, state.holdout.log_probs, trained, holdout, state)
        lr_factor = next_lr_factor(state.holdout.lr_factor, bool(verdict.harm))
        return replace(state, holdout=replace(state.holdout, training=verdict, lr_factor=lr_factor))

    def check_final(self, shared: Shared, state: ClientState) -> ClientState:
        """Reset the client to its initial arrays if the final model contradicts most labels of the first holdout."""
        if state.first_holdout is None:
            return state
        model = whole_model(self.learner.initial(), shared, state)
        final_evidence = evidence(self._log_probs(model, state.first_holdout.index, state), state.first_holdout.label)
        if final_evidence.agreed >= MIN_AGREEMENT * final_evidence.images:
            return state
        initial = {**self.learner.initial(), **state.previous_model}
        return replace(state, own=initial, holdout=replace(state.holdout, was_reset=True))

    def _compare(
        self, compare: _Compare, reference: _LogProbs, model: Prompts, holdout: Selection, state: ClientState
    ) -> tuple[HoldoutVerdict, _LogProbs]:
        """Return the verdict on a model, and its log-probabilities of the holdout.

        The holdout has confident images only. A model is also harmful if it contradicts the calibrated priors on
        images that were not trained on, confident or not.
        """
        unseen = self._unseen(state)
        index = np.union1d(holdout.index, unseen)
        log_probs = self._log_probs(model, index, state)
        of_holdout, of_unseen = (log_probs[np.searchsorted(index, rows)] for rows in (holdout.index, unseen))
        verdict = compare(reference, of_holdout, holdout.label)
        if not verdict.harm and len(unseen):
            posteriors = state.prior.own_log_posteriors(self.learner.log_probabilities(None)[unseen], unseen)
            if is_against_priors(posteriors, of_unseen.argmax(axis=1)):
                verdict = replace(verdict, harm="against the priors")
        return verdict, of_holdout

    def _unseen(self, state: ClientState) -> NDArray[np.int64]:
        """Return the indices of evenly spaced images that are not trained on; none without priors."""
        if state.prior.model is None or state.labels is None or state.selection is None:
            return np.zeros(0, np.int64)
        trained_on = np.unique(self.trainable(state.selection, state).index)
        unseen = np.setdiff1d(np.arange(len(state.labels)), trained_on)
        affordable = len(trained_on) * self.config.train.epochs // _TRAINED_PER_UNSEEN
        return unseen[evenly_spaced(len(unseen), min(max(affordable, _MIN_UNSEEN), _MAX_UNSEEN))]

    def _log_probs(self, model: Prompts, index: NDArray[np.int64], state: ClientState) -> _LogProbs:
        """Return a model's prior-adjusted log-probabilities of some images, (m, C); unadjusted if any is not finite."""
        log_probs = self.learner.log_probabilities_of(model, index)
        return state.prior.own_log_posteriors(log_probs, index) if np.isfinite(log_probs).all() else log_probs

    def _is_held_out(self, state: ClientState) -> NDArray[np.bool_]:
        images = 0 if state.labels is None else len(state.labels)
        return is_held_out(images, self.config.train.holdout)

"""The client's side of the protocol: one reply to each request, computed from its images and its state."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..algorithm.holdout import HoldoutState
from ..algorithm.select import NO_CORRECTIONS, Corrections, with_corrections
from ..config import RunConfig
from ..errors import CannotReply
from ..labelers import Labeler, choose_labeler
from ..messages import (
    Adapt,
    Adapted,
    Estimate,
    Estimated,
    Evaluate,
    Evaluated,
    Reply,
    Request,
    Select,
    Selected,
    SetupKeys,
    Shared,
    ShareKeys,
    Train,
    Unmask,
)
from ..privacy.masked_layout import HoldoutSums, Training
from ..privacy.private_replies import PrivateReplies
from .client_state import ClientState, whole_model
from .holdout_check import HoldoutCheck
from .learner import NO_TEST_SET, Learner, Prompts, TestSet
from .prior_estimation import NO_PRIOR, compute_sums, is_worth_training

ReplyAndState = tuple[Reply, ClientState]


@dataclass(frozen=True)
class Client:
    """The parts of a client that do not change between requests; the others are its `ClientState`."""

    learner: Learner
    config: RunConfig
    test_set: TestSet = NO_TEST_SET
    secret: bytes = b""  # for the noise of differential privacy; never sent
    corrections: Corrections = NO_CORRECTIONS  # labels of some images by the site's expert
    repeatable: bool = False  # simulation only, see `PrivateReplies`
    min_images: int = 0  # minimum number of images behind any update, sum or class feature sum

    @cached_property
    def _replies(self) -> PrivateReplies:
        return PrivateReplies(self.config, self.secret, self.repeatable)

    @cached_property
    def _labeler(self) -> Labeler:
        return choose_labeler(self.config)

    @cached_property
    def _check(self) -> HoldoutCheck:
        return HoldoutCheck(self.learner, self.config)

    def handle(self, request: Request, state: ClientState) -> ReplyAndState:
        """Return the reply to a request, and the state to keep for the next one.

        Raises:
            CannotReply: The request comes too early, or the model has diverged.
        """
        state = replace(state, secrets=self._replies.remember(request, state.secrets))
        match request:
            case Adapt():
                return self._adapt(request, state)
            case Estimate():
                return self._estimate(request, state)
            case Select():
                return self._select(request, state)
            case Train():
                return self._train(request, state)
            case Evaluate():
                return self._evaluate(request, state)
            case SetupKeys() | ShareKeys() | Unmask():
                reply, secrets = self._replies.key_exchange(request, state.secrets)
                return reply, replace(state, secrets=secrets)

    def _adapt(self, request: Adapt, state: ClientState) -> ReplyAndState:
        """Compute the sums of one step of the prior estimation; after the last step, keep the priors."""
        sums, prior = compute_sums(
            request,
            state.prior,
            self.config,
            lambda: self._log_probs(None),
            self.learner.features,
            self.learner.class_features(),
            self.min_images,
        )
        state = replace(state, prior=prior)
        if sums is None:  # the stored log-probabilities of the holdout are without these priors
            refused = prior.refused and not self.config.is_private
            return Adapted(None, refused=refused), replace(state, holdout=replace(state.holdout, log_probs=None))
        reply, secrets = self._replies.adaptation(sums, request, state.secrets)
        return reply, replace(state, secrets=secrets)

    def _estimate(self, request: Estimate, state: ClientState) -> ReplyAndState:
        """Recompute the log-posteriors of all images, and count the confident ones of each class: u_k, (C,) (Eq. 2)."""
        state = self._check.receive_average(request.shared, state)
        if request.round > 0:
            log_probs = self._log_probs(self._prompts(request.shared, state))
        elif state.previous_model:  # the model of the run that this one continues
            log_probs = self._log_probs(state.previous_model)
        elif state.prior.scores is not None:  # zero-shot CLIP has already encoded the images for the priors
            log_probs = state.prior.scores.log_probs
        else:  # zero-shot CLIP: the initial prompts are untrained
            log_probs = self._log_probs(None)
        log_probs = state.prior.own_log_posteriors(log_probs)
        counts = self._labeler.count(log_probs)
        state = replace(state, log_probs=log_probs, counts=counts, prior=replace(state.prior, scores=None))
        if not self._labeler.cooperative:
            return Estimated(None), state
        sent = counts if len(log_probs) >= self.min_images else np.zeros_like(counts)
        reply, secrets = self._replies.counts(sent, request, state.secrets)
        return reply, replace(state, secrets=secrets)

    def _select(self, request: Select, state: ClientState) -> ReplyAndState:
        """Select the images to train on, within this client's quota of each class (Eq. 3)."""
        if state.log_probs is None or state.counts is None:
            raise CannotReply("Select request before an Estimate request")
        quota = self._labeler.quota(state.counts, len(state.log_probs), request)
        if self._labeler.refreshes or state.selection is None:
            selection = with_corrections(self._labeler.select(state.log_probs, quota), self.corrections)
        else:
            selection = state.selection
        labels = state.log_probs.argmax(axis=1).astype(np.int32)
        unchanged = None if state.labels is None else int((labels == state.labels).sum())
        state = replace(
            state,
            own={**state.own, **self.learner.build_memory(selection)},
            log_probs=None,
            quota=quota,
            selection=selection,
            confidence=state.log_probs[selection.index, selection.label],
            labels=labels,
            holdout=replace(state.holdout, log_probs=None),
        )
        state = replace(state, first_holdout=state.first_holdout or self._check.holdout(state))
        if self.config.is_private:
            return Selected(None, None, None), state
        # Some labelers select an image for more than one class.
        return Selected(len(np.unique(selection.index)), len(labels), unchanged), state

    def _train(self, request: Train, state: ClientState) -> ReplyAndState:
        """Train on the selected images and check the model on the holdout.

        The client does not train with too few images, after it rolled back the received average, or with labels of low
        confidence. In these cases, and if the check finds the trained model harmful, it replies with the prompts of the
        request and a weight of 0 images.
        """
        if state.selection is None:
            raise CannotReply("Train request before a Select request")
        selection, state = state.selection, self._check.receive_average(request.shared, state)
        state = replace(state, holdout=replace(state.holdout, training=None))
        selection = self._check.trainable(selection, state)
        shared, examples, last_loss, low_confidence = request.shared, 0, float("nan"), 0.0
        is_enough = len(np.unique(selection.index)) >= max(1, self.min_images)
        is_rolled_back = bool(set(request.shared) & set(state.own))  # only then `own` has shared arrays
        is_confident = state.prior.model is None or state.confidence is None or is_worth_training(state.confidence)
        if is_enough and not is_rolled_back and not is_confident:
            low_confidence = 1.0
        elif is_enough and not is_rolled_back:
            prompts = {**(self._prompts(request.shared, state) or {}), **_stacked_experts(request.experts)}
            adjustment = state.prior.adjustment(selection.index)
            trained, loss = self.learner.train(prompts, selection, request.round, state.holdout.lr_factor, adjustment)
            state = self._check.check_training(trained, state)
            if state.holdout.training is None or not state.holdout.training.harm:
                shared, examples, last_loss = {name: trained[name] for name in shared}, len(selection.index), loss
                state = replace(state, own={name: trained[name] for name in trained if name not in shared})
        checks = self._holdout_sums(state.holdout)._replace(low_confidence=low_confidence)
        training = Training(shared, examples, last_loss, checks)
        reply, secrets = self._replies.training(training, request, state.secrets)
        return reply, replace(state, secrets=secrets)

    def _evaluate(self, request: Evaluate, state: ClientState) -> ReplyAndState:
        """Count the correct predictions on the client's own test set; check the final model after the last round."""
        if request.shared is not None:
            state = self._check.receive_average(request.shared, state)
            if request.round + 1 == self.config.rounds:
                state = self._check.check_final(request.shared, state)
            holdout = self._check.holdout(state)
            if self.min_images and (holdout is None or len(holdout.index) < self.min_images):
                return Evaluated(0, 0), state  # unchecked prompts for one class would reveal its number of images
        prior = NO_PRIOR if request.shared is None and request.calibration != "priors" else state.prior
        return Evaluated(*self.test_set.score(self._prompts(request.shared, state), prior)), state

    def _log_probs(self, prompts: Prompts | None) -> NDArray[np.float64]:
        """Return log p_c(x) of all images, (n_k, C), by a model; None: by zero-shot CLIP."""
        log_probs = self.learner.log_probabilities(prompts)
        if np.isnan(log_probs).any():
            raise CannotReply("its model predicts NaN: training diverged, try a lower train.lr")
        return log_probs

    def _holdout_sums(self, holdout: HoldoutState) -> HoldoutSums:
        """Return this client's summands of the hold-out checks; the losses are 0 below `min_images` held-out images."""
        average, training = holdout.average, holdout.training
        harms = (float(verdict is not None and bool(verdict.harm)) for verdict in (average, training))
        if average is None or average.before.images < self.min_images:
            return HoldoutSums(0.0, 0.0, 0.0, *harms)
        return HoldoutSums(average.before.images, average.before.loss, average.after.loss, *harms)

    def _prompts(self, shared: Shared | None, state: ClientState) -> Prompts | None:
        """Return the client's model with the given average; None, for zero-shot CLIP, if there is none."""
        return None if shared is None else whole_model(self.learner.initial(), shared, state)


def _stacked_experts(experts: Sequence[Shared]) -> Prompts:
    """Stack other clients' prompts by name, (experts, ...), for training; they are never sent."""
    names = experts[0] if experts else ()
    return {f"experts' {name}": np.stack([expert[name] for expert in experts]) for name in names}

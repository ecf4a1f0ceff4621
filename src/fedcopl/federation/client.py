"""The client's side of the protocol: one reply per request, computed from its own images and its own state."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..algorithm.holdout import HoldoutState
from ..algorithm.select import NO_CORRECTIONS, Corrections, Selection, with_corrections
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
from .client_state import ClientState, Labels, whole_model
from .holdout_check import HoldoutCheck
from .learner import NO_TEST_SET, Learner, Prompts, TestSet
from .prior_estimation import NO_PRIOR, is_worth_training, reply_to

ReplyAndState = tuple[Reply, ClientState]


@dataclass(frozen=True)
class Client:
    """The fixed parts of a client; what changes between requests is its `ClientState`."""

    learner: Learner
    config: RunConfig
    test_set: TestSet = NO_TEST_SET
    secret: bytes = b""  # its own, known to nobody else: needed where it adds noise
    said: Corrections = NO_CORRECTIONS  # what the site's own expert said of some images, if that is to be used
    repeatable: bool = False  # only in a simulation: see `PrivateReplies`
    min_images: int = 0  # minimum number of images behind an update, a sum, or a class feature sum

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
        """Return the reply to a request, and the state to keep for the next one."""
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
                reply, secrets = self._replies.keys(request, state.secrets)
                return reply, replace(state, secrets=secrets)

    def _evaluate(self, request: Evaluate, state: ClientState) -> ReplyAndState:
        if request.shared is not None:
            state = self._check.receive_average(request.shared, state)
            if request.round + 1 == self.config.rounds:
                state = self._check.check_final(request.shared, state)
            holdout = self._check.holdout(state)
            if self.min_images and (holdout is None or len(holdout.index) < self.min_images):
                return Evaluated(0, 0), state  # the server's prompts are unchecked: their score would tell what it asks
        prior = NO_PRIOR if request.shared is None and request.through != "priors" else state.prior
        return Evaluated(*self.test_set.score(self._prompts(request.shared, state), prior)), state

    def _adapt(self, request: Adapt, state: ClientState) -> ReplyAndState:
        learner = self.learner
        sums, prior = reply_to(
            request,
            state.prior,
            self.config,
            lambda: self._look(None, state),
            learner.features,
            learner.class_features(),
            self.min_images,
        )
        state = replace(state, prior=prior)
        if sums is None:  # new priors: verdicts on the holdout through the old ones are obsolete
            refused = prior.refused and not self.config.is_private
            return Adapted(None, refused=refused), replace(state, holdout=replace(state.holdout, log_probs=None))
        reply, secrets = self._replies.adaptation(sums, request, state.secrets)
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
            raise CannotReply("its model gives no probabilities any more: training diverged, try a lower train.lr")
        return log_probs

    def _estimate(self, request: Estimate, state: ClientState) -> ReplyAndState:
        state = self._check.receive_average(request.shared, state)
        seen = self._first_look(state) if request.round == 0 else self._look(request.shared, state)
        log_probs, state = state.prior.own_log_posteriors(seen), replace(state, prior=replace(state.prior, scores=None))
        counts = self._labeler.count(log_probs)
        state = replace(state, log_probs=log_probs, counts=counts)
        if not self._labeler.cooperative:
            return Estimated(None), state
        enough = len(log_probs) >= self.min_images
        reply, secrets = self._replies.counts(counts if enough else np.zeros_like(counts), request, state.secrets)
        return reply, replace(state, secrets=secrets)

    def _select(self, request: Select, state: ClientState) -> ReplyAndState:
        if state.log_probs is None or state.counts is None:
            raise CannotReply("asked to select before it was asked to estimate")
        quota = self._labeler.quota(state.counts, len(state.log_probs), request)
        if self._labeler.refreshes or state.selection is None:
            selection = with_corrections(self._labeler.select(state.log_probs, quota), self.said)
        else:
            selection = state.selection
        labels = state.log_probs.argmax(axis=1).astype(np.int32)
        chosen = replace(
            state,
            own={**state.own, **self.learner.remember(selection)},
            log_probs=None,
            quota=quota,
            selection=selection,
            confidence=state.log_probs[selection.index, selection.label],
            labels=labels,
            holdout=replace(state.holdout, log_probs=None),
        )
        chosen = replace(chosen, first=chosen.first or self._check.holdout(chosen))
        return self._tell_of(selection, labels, state.labels), chosen

    def _tell_of(self, selection: Selection, labels: Labels, before: Labels | None) -> Selected:
        if self.config.is_private:
            return Selected(None, None, None)
        unchanged = None if before is None else int((labels == before).sum())
        chosen = len(np.unique(selection.index))  # some rules choose an image for more than one class
        return Selected(chosen, len(labels), unchanged)

    def _train(self, request: Train, state: ClientState) -> ReplyAndState:
        if state.selection is None:
            raise CannotReply("asked to train before it was asked to select")
        selection, state = state.selection, self._check.receive_average(request.shared, state)
        training, state = self._fit(request, selection, state)
        reply, secrets = self._replies.training(training, request, state.secrets)
        return reply, replace(state, secrets=secrets)

    def _fit(self, request: Train, selection: Selection, state: ClientState) -> tuple[Training, ClientState]:
        """Train on the selection, unless there is a reason not to; return what is sent of it and the new state."""
        state = replace(state, holdout=replace(state.holdout, training=None))
        selection = self._check.trainable(selection, state)
        nothing = Training(request.shared, 0, float("nan"), self._holdout_sums(state.holdout))
        images = len(np.unique(selection.index))
        if images < max(1, self.min_images) or set(request.shared) & set(state.own):  # too few, or average rolled back
            return nothing, state
        if not self._is_worth_training(state):
            return replace(nothing, checks=nothing.checks._replace(low_confidence=1.0)), state
        prompts = {**(self._prompts(request.shared, state) or {}), **stacked_experts(request.experts)}
        adjustment = state.prior.adjustment(selection.index)
        trained, loss = self.learner.train(prompts, selection, request.round, state.holdout.lr_factor, adjustment)
        state = self._check.check_training(trained, state)
        if state.holdout.training is not None and state.holdout.training.harm:
            return replace(nothing, checks=self._holdout_sums(state.holdout)), state
        shared = {name: trained[name] for name in request.shared}
        own = {name: value for name, value in trained.items() if name not in request.shared}
        return Training(shared, len(selection.index), loss, self._holdout_sums(state.holdout)), replace(state, own=own)

    def _is_worth_training(self, state: ClientState) -> bool:
        """Return whether enough labels are expected right by the calibrated posteriors; always without priors."""
        return state.prior.model is None or state.confidence is None or is_worth_training(state.confidence)

    def _holdout_sums(self, holdout: HoldoutState) -> HoldoutSums:
        """Summarise the hold-out check in numbers that can be summed over clients; losses only of enough images."""
        average, training = holdout.average, holdout.training
        harms = (float(verdict is not None and bool(verdict.harm)) for verdict in (average, training))
        if average is None or average.before.images < self.min_images:
            return HoldoutSums(0.0, 0.0, 0.0, *harms)
        return HoldoutSums(average.before.images, average.before.loss, average.after.loss, *harms)

    def _prompts(self, shared: Shared | None, state: ClientState) -> Prompts | None:
        return None if shared is None else whole_model(self.learner.initial(), shared, state)


def stacked_experts(experts: Sequence[Shared]) -> Prompts:
    """Other clients' prompts as arrays of one more dimension, under names of their own; they are kept, never sent."""
    names = experts[0] if experts else ()
    return {f"experts' {name}": np.stack([expert[name] for expert in experts]) for name in names}

"""The client's side: its own images, its own text prompt, and one answer per question."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..algorithm.evidence import is_worth_training
from ..algorithm.guard import (
    FEWEST_AGREE,
    GuardMemory,
    GuardVerdict,
    at_even_distances,
    evidence,
    held_out,
    is_against_priors,
    judge,
    judge_training,
    next_caution,
)
from ..algorithm.select import NO_CORRECTIONS, Corrections, Selection, with_corrections
from ..config import RunConfig
from ..errors import CannotAnswer
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
from ..privacy.disclosure import Secrets, Teller
from ..privacy.masked_layout import Checks, Training
from .adaptation import PriorState, answer
from .labelling import allowed_counts, choose, count_sure
from .learner import NO_EXAM, NO_PRIOR, Exam, Learner, LookWanted, Prompts, StepsTo, TrainingWanted

Labels = NDArray[np.int32]
"""One class for each image."""

FEWEST, ENOUGH = 8, 64  # images by which a model is held against the priors, twice a round: more would cost too much
LOOKS = 4  # images trained on, epoch by epoch, for each of these: a look costs half of a step, so a quarter of training


@dataclass(frozen=True)
class ClientState:
    """What a client keeps to itself between rounds. Never sent."""

    own: Prompts = field(default_factory=dict)  # what stays at home; what is shared too, while the average harms here
    begun: Prompts = field(default_factory=dict)  # its whole model at the end of the run this one goes on from, if any
    log_probs: NDArray[np.float64] | None = None  # of the last estimate, until the selection is made from it
    counts: NDArray[np.int64] | None = None  # u_k of the last estimate
    quota: NDArray[np.int64] | None = None  # how many of each class the last selection was allowed
    selection: Selection | None = None
    confidence: NDArray[np.float64] | None = None  # log-probability of each chosen image's label
    labels: Labels | None = None  # the likeliest class of every image at the last selection
    first: Selection | None = None  # of the exam, with the answers of the first refresh
    guard: GuardMemory = field(default_factory=GuardMemory)
    prior: PriorState = NO_PRIOR
    secrets: Secrets = field(default_factory=Secrets)  # for the sake of privacy


Judge = Callable[[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]], GuardVerdict]
"""Holds what a model says of an exam against what was said before, by the exam's key."""
Answered = tuple[Reply, ClientState]
Steps = StepsTo[Answered]


@dataclass(frozen=True)
class Client:
    """One client's fixed parts: what it computes with and how it is set."""

    learner: Learner
    config: RunConfig
    exam: Exam = NO_EXAM
    secret: bytes = b""  # its own, known to nobody else: needed where it adds noise
    said: Corrections = NO_CORRECTIONS  # what the site's own expert said of some images, if that is to be used
    repeatable: bool = False  # only in a simulation: see `Teller`
    least_images: int = 0  # with fewer nothing is trained, and nothing told of what those of a class look like

    @cached_property
    def _teller(self) -> Teller:
        return Teller(self.config, self.secret, self.repeatable)

    def answer(self, ask: Ask, state: ClientState) -> Answered:
        """The reply to a question, and the state to keep for the next one."""
        steps, found = self.steps(ask, state), None
        while True:
            try:
                found = steps.send(found).by(self.learner)
            except StopIteration as done:
                answered: Answered = done.value
                return answered

    def steps(self, ask: Ask, state: ClientState) -> Steps:
        """The same, by somebody who does what costs most: perhaps for many clients at once."""
        state = replace(state, secrets=self._teller.remember(ask, state.secrets))
        match ask:
            case Adapt():
                return self._adapt(ask, state)
            case Estimate():
                return (yield from self._estimate(ask, state))
            case Select():
                return self._select(ask, state)
            case Train():
                return (yield from self._train(ask, state))
            case Evaluate():
                return (yield from self._evaluate(ask, state))
            case Introduce() | ShareOut() | Unmask():
                reply, secrets = self._teller.keys(ask, state.secrets)
                return reply, replace(state, secrets=secrets)

    def _evaluate(self, ask: Evaluate, state: ClientState) -> Steps:
        if ask.shared is not None:
            state = yield from self._arrive(ask.shared, state)
            if ask.round + 1 == self.config.rounds:
                state = yield from self._look_back(ask.shared, state)
        prior = NO_PRIOR if ask.shared is None and ask.through != "priors" else state.prior
        return Evaluated(*self.exam.score(self._prompts(ask.shared, state), prior)), state

    def _adapt(self, ask: Adapt, state: ClientState) -> tuple[Reply, ClientState]:
        if state.prior.learned is not None and ask.step == 0 and ask.wanted == "keep":
            return Adapted(None), state  # it was there when this was learnt
        look, features = lambda: self._look(None, state), self.learner.features
        sums, prior = answer(ask, state.prior, look, features, self.config.priors.site, self.least_images)
        state = replace(state, prior=prior)
        if sums is None:  # other priors: what was said about the exam through the old ones is over
            return Adapted(None), replace(state, guard=replace(state.guard, standing=None))
        reply, secrets = self._teller.adaptation(sums, ask, state.secrets)
        return reply, replace(state, secrets=secrets)

    def _first_look(self, state: ClientState) -> NDArray[np.float64]:
        """What the first labels are made from: the classifier that an earlier run left here, else zero-shot CLIP.

        For the first prompts know nothing yet.
        """
        if state.begun:
            return self._by(state.begun)
        if state.prior.view is not None:  # it has just looked at its images, for the priors
            return state.prior.view.log_probs
        return self._look(None, state)

    def _look(self, shared: Shared | None, state: ClientState) -> NDArray[np.float64]:
        """log p_c(x) of all images by a model; None: by plain zero-shot CLIP."""
        return self._by(self._prompts(shared, state))

    def _by(self, prompts: Prompts | None) -> NDArray[np.float64]:
        log_probs = self.learner.log_probabilities(prompts)
        if np.isnan(log_probs).any():
            raise CannotAnswer("its model gives no probabilities any more: training diverged, try a lower train.lr")
        return log_probs

    def _estimate(self, ask: Estimate, state: ClientState) -> Steps:
        state = yield from self._arrive(ask.shared, state)
        seen = self._first_look(state) if ask.round == 0 else self._look(ask.shared, state)
        log_probs, state = state.prior.of_own(seen), replace(state, prior=replace(state.prior, view=None))
        counts = count_sure(log_probs, self.config)
        state = replace(state, log_probs=log_probs, counts=counts)
        if not self.config.is_cooperative:
            return Estimated(None), state
        reply, secrets = self._teller.counts(counts, ask, state.secrets)
        return reply, replace(state, secrets=secrets)

    def _select(self, ask: Select, state: ClientState) -> tuple[Reply, ClientState]:
        if state.log_probs is None or state.counts is None:
            raise CannotAnswer("asked to select before it was asked to estimate")
        allowed = allowed_counts(state.counts, len(state.log_probs), ask, self.config)
        selection = with_corrections(choose(state.log_probs, allowed, self.config), self.said)
        labels = state.log_probs.argmax(axis=1).astype(np.int32)
        chosen = replace(
            state,
            own={**state.own, **self.learner.remember(selection)},
            log_probs=None,
            quota=allowed,
            selection=selection,
            confidence=state.log_probs[selection.index, selection.label],
            labels=labels,
            guard=replace(state.guard, standing=None),
        )
        chosen = replace(chosen, first=chosen.first or self._exam(chosen))
        return self._tell_of(selection, labels, state.labels), chosen

    def _tell_of(self, selection: Selection, labels: Labels, before: Labels | None) -> Selected:
        if self.config.is_private:
            return Selected(None, None, None)
        unchanged = None if before is None else int((labels == before).sum())
        chosen = len(np.unique(selection.index))  # some rules choose an image for more than one class
        return Selected(chosen, len(labels), unchanged)

    def _train(self, ask: Train, state: ClientState) -> Steps:
        if state.selection is None:
            raise CannotAnswer("asked to train before it was asked to select")
        selection, state = state.selection, (yield from self._arrive(ask.shared, state))
        training, state = yield from self._learn(ask, selection, state)
        reply, secrets = self._teller.training(training, ask, state.secrets)
        return reply, replace(state, secrets=secrets)

    def _learn(self, ask: Train, selection: Selection, state: ClientState) -> StepsTo[tuple[Training, ClientState]]:
        """What there is to tell of the training, and what stays at home."""
        state = replace(state, guard=replace(state.guard, training=None))
        to_learn = without_exam(selection, self._is_exam(state))
        nothing = Training(ask.shared, 0, float("nan"), checks_of(state.guard))
        many = len(np.unique(to_learn.index))
        if many < max(1, self.least_images) or set(ask.shared) & set(state.own):  # too little, or not from this average
            return nothing, state
        if not self._is_worth_training(state):
            return replace(nothing, checks=nothing.checks._replace(too_doubtful=1.0)), state
        prompts = {**(self._prompts(ask.shared, state) or {}), **side_by_side(ask.experts)}
        beside = state.prior.beside(to_learn.index)
        trained, loss = yield TrainingWanted(prompts, to_learn, ask.round, state.guard.caution, beside)
        state = yield from self._check(trained, state)
        if state.guard.training is not None and state.guard.training.harm:
            return replace(nothing, checks=checks_of(state.guard)), state
        shared = {name: trained[name] for name in ask.shared}
        own = {name: value for name, value in trained.items() if name not in ask.shared}
        return Training(shared, len(to_learn.index), loss, checks_of(state.guard)), replace(state, own=own)

    def _is_worth_training(self, state: ClientState) -> bool:
        """Whether enough labels are right, by the priors' own calibrated posteriors; without priors nobody can tell."""
        if state.prior.learned is None or state.confidence is None:
            return True
        return is_worth_training(float(np.exp(state.confidence).sum()), len(state.confidence))

    def _check(self, trained: Prompts, state: ClientState) -> StepsTo[ClientState]:
        """The guard's verdict on what training made, by images that it did not see."""
        exam = self._exam(state)
        if exam is None or state.guard.standing is None:
            return state
        verdict, _ = yield from self._judged(judge_training, state.guard.standing, trained, exam, state)
        caution = next_caution(state.guard.caution, bool(verdict.harm))
        return replace(state, guard=replace(state.guard, training=verdict, caution=caution))

    def _arrive(self, shared: Shared, state: ClientState) -> StepsTo[ClientState]:
        """Hold an average against the last model found good; where it harms, this site keeps that one."""
        exam = self._exam(state)
        if exam is None:
            return state
        at_home = {name: value for name, value in state.own.items() if name not in shared}
        begin = self._begin(state)
        had, now = state.guard.trusted or begin, {**begin, **at_home, **shared}
        standing = state.guard.standing
        if standing is None:
            standing = yield from self._examine(had, exam.index, state)
        if are_alike(had, now):  # nothing new; what was said about an average that the server has taken back is over
            arrival = None if state.guard.arrival is None or state.guard.arrival.harm else state.guard.arrival
            own_again = replace(state.guard, trusted=now, standing=standing, arrival=arrival)
            return replace(state, own=at_home, guard=own_again)
        verdict, said = yield from self._judged(judge, standing, now, exam, state)
        guard = replace(state.guard, arrival=verdict)
        if verdict.harm:
            return replace(state, own=had, guard=replace(guard, trusted=had, standing=standing))
        return replace(state, own=at_home, guard=replace(guard, trusted=now, standing=said))

    def _judged(
        self, judge: Judge, before: NDArray[np.float64], prompts: Prompts, exam: Selection, state: ClientState
    ) -> StepsTo[tuple[GuardVerdict, NDArray[np.float64]]]:
        """The guard's verdict on a model, and what that says of the exam.

        The model is bad as well where it answers much that the priors, which are calibrated, hold for wrong: by images
        that nobody trained on, sure or not, for of those that a site is sure of the exam tells only the best.
        """
        others = self._unseen(state)
        index = np.union1d(exam.index, others)
        said = yield from self._examine(prompts, index, state)
        of_exam, of_others = (said[np.searchsorted(index, some)] for some in (exam.index, others))
        verdict = judge(before, of_exam, exam.label)
        if not verdict.harm and len(others):
            believed = state.prior.of_own(self.learner.log_probabilities(None)[others], others)
            if is_against_priors(believed, of_others.argmax(axis=1)):
                verdict = replace(verdict, harm="against the priors")
        return verdict, of_exam

    def _unseen(self, state: ClientState) -> NDArray[np.int64]:
        """Some images that are not trained on, where there are priors to hold answers against; else none."""
        if state.prior.learned is None or state.labels is None or state.selection is None:
            return np.zeros(0, np.int64)
        trained_on = np.unique(without_exam(state.selection, self._is_exam(state)).index)
        unseen = np.setdiff1d(np.arange(len(state.labels)), trained_on)
        affordable = len(trained_on) * self.config.train.epochs // LOOKS
        return unseen[at_even_distances(len(unseen), min(max(affordable, FEWEST), ENOUGH))]

    def _look_back(self, shared: Shared, state: ClientState) -> StepsTo[ClientState]:
        """At the end: a model that contradicts most of the site's first sure answers is given up for the first one."""
        prompts = self._prompts(shared, state)
        if state.first is None or prompts is None:
            return state
        found = evidence((yield from self._examine(prompts, state.first.index, state)), state.first.label)
        if found.agreed >= FEWEST_AGREE * found.images:
            return state
        return replace(state, own=self._begin(state), guard=replace(state.guard, gave_up=True))

    def _examine(self, prompts: Prompts, index: NDArray[np.int64], state: ClientState) -> StepsTo[NDArray[np.float64]]:
        """What a model says about some images, through the priors: so the answers of the key were made."""
        said = yield LookWanted(prompts, index)
        return state.prior.of_own(said, index) if np.isfinite(said).all() else said

    def _is_exam(self, state: ClientState) -> NDArray[np.bool_]:
        """Which of the site's images are never trained on."""
        images = 0 if state.labels is None else len(state.labels)
        return held_out(images, self.config.train.held_out)

    def _exam(self, state: ClientState) -> Selection | None:
        """The chosen images that are not trained on, with what the site itself answered; none: no guard."""
        if state.selection is None or state.labels is None:
            return None
        index = np.unique(state.selection.index)
        index = index[self._is_exam(state)[index]]
        return Selection(index, state.labels[index].astype(np.int64)) if len(index) else None

    def _prompts(self, shared: Shared | None, state: ClientState) -> Prompts | None:
        return None if shared is None else whole_model(self.learner.initial(), shared, state)

    def _begin(self, state: ClientState) -> Prompts:
        """Where this client began: with what an earlier run left it, or where all do."""
        return {**self.learner.initial(), **state.begun}


def whole_model(start: Prompts, shared: Shared, state: ClientState) -> Prompts:
    """A client's: where it began, what the server averaged, and what the client made or keeps of it."""
    return {**start, **state.begun, **shared, **state.own}


def without_exam(selection: Selection, is_exam: NDArray[np.bool_]) -> Selection:
    """What is left to train on."""
    kept = ~is_exam[selection.index]
    candidates = None if selection.candidates is None else selection.candidates[kept]
    return Selection(selection.index[kept], selection.label[kept], candidates)


def are_alike(one: Prompts, other: Prompts) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def checks_of(guard: GuardMemory) -> Checks:
    """What the site tells of its guard's findings: sums that sites can add up."""
    arrival, training = guard.arrival, guard.training
    return Checks(
        *(arrival.before[:2] if arrival else (0.0, 0.0)),
        arrival.after.loss if arrival else 0.0,
        float(arrival is not None and bool(arrival.harm)),
        float(training is not None and bool(training.harm)),
    )


def side_by_side(experts: Sequence[Shared]) -> Prompts:
    """Other clients' prompts as arrays of one more dimension, under names of their own; they are kept, never sent."""
    names = experts[0] if experts else ()
    return {f"experts' {name}": np.stack([expert[name] for expert in experts]) for name in names}

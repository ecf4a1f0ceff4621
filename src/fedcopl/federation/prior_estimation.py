"""The estimation of the priors in a federation: what a client replies and keeps, and what the server adds up."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..algorithm import FloatArray, IntArray
from ..config import RunConfig
from ..errors import CannotReply
from ..messages import Adapt
from ..plurals import counted
from ..priors.estimation import CLEAR, Settings, estimation_after
from ..priors.posterior import LogitAdjustment, PosteriorModel, no_priors
from ..priors.statistics import ClientScores
from ..priors.validation import invalid_sums
from ..privacy.accountant import NOISY_STEPS

ALL = slice(None)
_CONFIDENT, _MIN_CONFIDENT = 0.1, 10  # share of the images, and number, with the most confident zero-shot labels
_MIN_UNCHANGED = 0.3  # of these labels, with the priors: on the demo 0.67 and more, with poisoned priors down to 0.05
GOOD_LABELS = 0.9  # expected share of correct labels, below which training on them does more harm than good


@dataclass(frozen=True)
class PriorState:
    """What a client keeps of the priors. Never sent."""

    scores: ClientScores | None = None  # during the estimation, and until the images are labelled for the first time
    totals: tuple[FloatArray, ...] = ()  # of the steps so far
    sent: FloatArray | None = None  # its own reply to the last step
    weight: float = 1.0  # of its sums in the totals
    model: PosteriorModel | None = None  # the outcome
    class_prior: FloatArray | None = None  # pi_k, (C,)
    distances: FloatArray | None = None  # of its own images to prototypes without themselves, (n, C)
    refused: bool = False  # the estimated priors contradict its confident images: it uses zero-shot CLIP instead

    def log_posteriors(self, log_probs: FloatArray, features: FloatArray) -> FloatArray:
        """Return the log-posteriors of new images, (n, C); without priors the log-probabilities as they are."""
        if self.model is None or self.class_prior is None:
            return log_probs
        return self.model.log_posteriors(log_probs, features, self.class_prior)

    def own_log_posteriors(self, log_probs: FloatArray, index: IntArray | slice = ALL) -> FloatArray:
        """Return the log-posteriors of all or some of the client's own images, each without its part in prototypes."""
        adjustment = self.adjustment(index)
        if adjustment is None:
            return log_probs
        scores = adjustment.weight * log_probs + adjustment.offset
        normalised: FloatArray = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        return normalised

    def adjustment(self, index: IntArray | slice = ALL) -> LogitAdjustment | None:
        """Return what the priors add to the logits of some of the client's own images; None without priors."""
        if self.model is None or self.class_prior is None or self.distances is None:
            return None
        return self.model.adjustment(self.distances[index], self.class_prior)

    def view_agreement(self, log_posteriors: FloatArray) -> float | None:
        """Return the share of the client's images to which text alone and the nearest prototype give the same class.

        Args:
            log_posteriors: What `own_log_posteriors` returned for all of its images, (n, C).
        """
        adjustment = self.adjustment()
        if adjustment is None or self.model is None or self.distances is None or not len(log_posteriors):
            return None
        if self.model.prototypes is None or self.refused:
            return None
        text = (log_posteriors - adjustment.offset).argmax(axis=1)
        return float((text == self.distances.argmin(axis=1)).mean())


NO_PRIOR = PriorState()


def prior_settings(config: RunConfig, classes: int, width: int, class_prior: FloatArray | None = None) -> Settings:
    """Return the settings of the estimation: the same at the server and at every client."""
    priors = config.priors
    return Settings(
        classes,
        width,
        class_prior,
        priors.logit_bias,
        priors.label_shift,
        priors.prototypes and not config.privacy.noise_multiplier,
        NOISY_STEPS if config.privacy.noise_multiplier else 0,
    )


def prior_steps(config: RunConfig) -> int:
    """Return how many sums the estimation takes; the request after them only carries the last totals."""
    return prior_settings(config, 2, 1).max_steps


def reply_to(
    request: Adapt,
    prior: PriorState,
    config: RunConfig,
    log_probs: Callable[[], FloatArray],
    features: Callable[[], FloatArray],
    text: FloatArray,
    min_images: int = 0,
) -> tuple[FloatArray | None, PriorState]:
    """Return the sums of a step, or None after the last one, and what to keep.

    The request carries totals and nothing else; what is computed from them is the client's own decision.

    Args:
        request: The totals of the step before.
        prior: What the client kept of the step before.
        config: The settings of the run.
        log_probs: Returns log p_c(x) of all images by zero-shot CLIP, (n, C).
        features: Returns the image features, (n, d).
        text: The class embeddings of zero-shot CLIP, (C, d).
        min_images: No sum and no class feature sum is over fewer images.

    Raises:
        CannotReply: The totals are impossible, or do not continue what the client knows.
    """
    settings = prior_settings(config, len(text), text.shape[1], request.class_prior)
    before = request.step - len(request.totals)
    if prior.scores is None or before != len(prior.totals) or prior.model is not None:
        if before:
            raise CannotReply(f"request for step {request.step + 1} of the priors without the steps before it")
        prior = PriorState(ClientScores(log_probs()))
    scores = prior.scores
    assert scores is not None
    totals = (*prior.totals, *request.totals)
    if not settings.noisy_steps:
        prior = _with_weight(prior, request, config)
        _validate(settings, totals, prior, text)
    estimation = estimation_after(settings, totals, text)
    if estimation.outcome is not None and len(totals) == settings.max_steps:
        return None, _finished(replace(prior, totals=totals), estimation.outcome, settings, features)
    if len(scores.log_probs) < min_images:
        raise CannotReply(f"has fewer than {counted(min_images, 'image')}, the minimum of this site for any sum")
    sums = []
    for statistic in estimation.steps[request.step]:
        part, scores = scores.compute(statistic, features, min_images, prior.weight)
        sums.append(part.ravel())
    sent = np.concatenate(sums)
    return sent, PriorState(scores, totals, sent, prior.weight)


def _with_weight(prior: PriorState, request: Adapt, config: RunConfig) -> PriorState:
    """Take the client's weight in the totals from the first ones; it is the same in all others."""
    weight = request.weight
    if not 0 < weight <= 1 or (weight < 1 and config.privacy.secure_aggregation):
        raise CannotReply(
            f"the client's weight in the totals of the priors is {weight:g}; it must be in (0, 1], with masks 1"
        )
    if prior.totals and weight != prior.weight:
        raise CannotReply(
            f"the client's weight in the totals of the priors changed from {prior.weight:g} to {weight:g}"
        )
    return replace(prior, weight=weight)


def _validate(settings: Settings, totals: tuple[FloatArray, ...], prior: PriorState, text: FloatArray) -> None:
    """Check every new total against the images that it must be of, and against the client's own part in it."""
    for step in range(len(prior.totals), len(totals)):
        estimation = estimation_after(settings, totals[:step], text)
        if step >= settings.max_steps or totals[step].shape != (estimation.size(step),):
            raise CannotReply(f"the totals of step {step + 1} of the priors have the wrong size")
        own = None if prior.sent is None or step > len(prior.totals) else prior.weight * prior.sent
        images = None if not step else float(estimation.images or 0)
        reason = invalid_sums(estimation.steps[step], totals[step], settings.classes, settings.width, images, own)
        if reason:
            raise CannotReply(f"the totals of step {step + 1} of the priors are impossible: {reason}")


def _finished(
    prior: PriorState, model: PosteriorModel, settings: Settings, features: Callable[[], FloatArray]
) -> PriorState:
    """The outcome with the client's own class prior; where nothing was exchanged about that, by its own evidence."""
    assert prior.scores is not None
    scores = prior.scores.with_prototypes(model.prototypes, features)
    if settings.label_shift and (settings.noisy_steps or not settings.logit_bias):
        model = replace(model, strength=scores.strength(model, CLEAR))
    distances = np.broadcast_to(scores.own_distances(model.prototypes), scores.log_probs.shape).copy()
    kept = ClientScores(scores.log_probs)
    state = PriorState(kept, prior.totals, None, prior.weight, model, scores.class_prior(model), distances)
    if not contradicts_zero_shot(scores.log_probs, state.own_log_posteriors(scores.log_probs)):
        return state
    fallback = replace(no_priors(settings.classes), strength=math.inf)
    return replace(state, model=fallback, class_prior=fallback.class_prior, distances=0 * distances, refused=True)


def contradicts_zero_shot(log_probs: FloatArray, posteriors: FloatArray) -> bool:
    """Return whether priors change most of the labels of which zero-shot CLIP is most confident.

    Args:
        log_probs: By zero-shot CLIP, (n, C).
        posteriors: The log-posteriors with the priors, (n, C).
    """
    count = max(_MIN_CONFIDENT, round(_CONFIDENT * len(log_probs)))
    if len(log_probs) < count:
        return False
    confident = np.argsort(-log_probs.max(axis=1), kind="stable")[:count]
    unchanged = log_probs[confident].argmax(axis=1) == posteriors[confident].argmax(axis=1)
    return bool(unchanged.mean() < _MIN_UNCHANGED)


def is_worth_training(confidence: FloatArray) -> bool:
    """Return whether enough pseudo labels are expected to be correct, from their calibrated log-posteriors, (m,)."""
    return len(confidence) > 0 and float(np.exp(confidence).sum()) >= GOOD_LABELS * len(confidence)

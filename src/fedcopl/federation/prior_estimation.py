"""The prior estimation in a federation: a client's sums and state of each step, and the settings of both sides."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..algorithm import FloatArray, IntArray
from ..config import RunConfig
from ..errors import CannotReply
from ..messages import Adapt
from ..plurals import counted
from ..priors.estimation import CLEAR, PriorSettings, estimation_after
from ..priors.posterior import LogitAdjustment, PosteriorModel, no_priors
from ..priors.statistics import ClientScores
from ..priors.validation import validate_sums
from ..privacy.accountant import NOISY_STEPS

ALL = slice(None)
_CONFIDENT, _MIN_CONFIDENT = 0.1, 10  # share and minimum number of images that count as the most confident ones
_MIN_UNCHANGED = 0.3  # share of their labels that priors must keep: 0.67 and more on the demo, 0.05 if poisoned
MIN_EXPECTED_ACCURACY = 0.9  # of pseudo labels; below it, training on them does more harm than good


@dataclass(frozen=True)
class PriorState:
    """A client's state of the priors. Never sent."""

    scores: ClientScores | None = None  # during the estimation, and until the images are labelled for the first time
    totals: tuple[FloatArray, ...] = ()  # of the steps so far
    sent: FloatArray | None = None  # the client's sums of the last step
    weight: float = 1.0  # of the client's sums in the totals
    model: PosteriorModel | None = None  # the outcome of the estimation
    class_prior: FloatArray | None = None  # pi_k, (C,)
    distances: FloatArray | None = None  # (n, C), of each image to prototypes without that image
    refused: bool = False  # the client rejected the priors, which contradict its confident images: zero-shot CLIP

    def log_posteriors(self, log_probs: FloatArray, features: FloatArray) -> FloatArray:
        """Return the log-posteriors of new images, (n, C); without priors the unchanged log-probabilities."""
        if self.model is None or self.class_prior is None:
            return log_probs
        return self.model.log_posteriors(log_probs, features, self.class_prior)

    def own_log_posteriors(self, log_probs: FloatArray, index: IntArray | slice = ALL) -> FloatArray:
        """Return the leave-one-out log-posteriors of the client's images, (n, C): no image is in its own prototypes."""
        adjustment = self.adjustment(index)
        if adjustment is None:
            return log_probs
        scores = adjustment.weight * log_probs + adjustment.offset
        normalised: FloatArray = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        return normalised

    def adjustment(self, index: IntArray | slice = ALL) -> LogitAdjustment | None:
        """Return the logit adjustment for the client's own images; None without priors."""
        if self.model is None or self.class_prior is None or self.distances is None:
            return None
        return self.model.adjustment(self.distances[index], self.class_prior)

    def prototype_agreement(self, log_posteriors: FloatArray) -> float | None:
        """Return the share of images to which text and the nearest prototype give the same class.

        None without prototypes or images, or if the client rejected the priors. `log_posteriors` is the result of
        `own_log_posteriors` for all images, (n, C).
        """
        adjustment = self.adjustment()
        if adjustment is None or self.model is None or self.distances is None or not len(log_posteriors):
            return None
        if self.model.prototypes is None or self.refused:
            return None
        text_labels = (log_posteriors - adjustment.offset).argmax(axis=1)
        return float((text_labels == self.distances.argmin(axis=1)).mean())


NO_PRIOR = PriorState()


def prior_settings(config: RunConfig, classes: int, width: int, class_prior: FloatArray | None = None) -> PriorSettings:
    """Return the settings of the estimation, which server and clients derive from those of the run."""
    priors = config.priors
    return PriorSettings(
        classes,
        width,
        class_prior,
        priors.logit_bias,
        priors.label_shift,
        priors.prototypes and not config.privacy.noise_multiplier,
        NOISY_STEPS if config.privacy.noise_multiplier else 0,
    )


def prior_steps(config: RunConfig) -> int:
    """Return the number of steps with sums; one more request then sends the last totals."""
    return prior_settings(config, classes=2, width=1).max_steps  # it does not depend on classes or width


def compute_sums(
    request: Adapt,
    prior: PriorState,
    config: RunConfig,
    log_probs: Callable[[], FloatArray],
    features: Callable[[], FloatArray],
    text: FloatArray,
    min_images: int = 0,
) -> tuple[FloatArray | None, PriorState]:
    """Return the client's sums of a step (None for the request after the last step), and its new state.

    A request only has totals: the client itself decides by the settings of the run what to compute from them.

    Args:
        request: The totals of the step before.
        prior: The state after the step before.
        config: The settings of the run.
        log_probs: Returns log p_c(x) of all images by zero-shot CLIP, (n, C).
        features: Returns the image features, (n, d).
        text: The class embeddings of zero-shot CLIP, (C, d).
        min_images: Minimum number of images behind any sum or class feature sum.

    Raises:
        CannotReply: The totals are impossible, or a step is missing.
    """
    settings = prior_settings(config, len(text), text.shape[1], request.class_prior)
    first_step = request.step - len(request.totals)
    if prior.scores is None or first_step != len(prior.totals) or prior.model is not None:
        if first_step:
            raise CannotReply(f"prior estimation, step {request.step + 1}: an earlier step was missed")
        prior = PriorState(ClientScores(log_probs()))  # the estimation starts, or starts again
    scores = prior.scores
    assert scores is not None
    totals = (*prior.totals, *request.totals)
    if not settings.noisy_steps:
        prior = _with_weight(prior, request, config)
        _check_totals(settings, totals, prior, text)
    estimation = estimation_after(settings, totals, text)
    if estimation.outcome is not None and len(totals) == settings.max_steps:
        return None, _with_outcome(replace(prior, totals=totals), estimation.outcome, settings, features)
    if len(scores.log_probs) < min_images:
        raise CannotReply(
            f"has fewer than {counted(min_images, 'image')}, the minimum over which this site sends sums (min-images)"
        )
    sums = []
    for statistic in estimation.steps[request.step]:
        values, scores = scores.compute(statistic, features, min_images, prior.weight)
        sums.append(values.ravel())
    sent = np.concatenate(sums)
    return sent, PriorState(scores, totals, sent, prior.weight)


def _with_weight(prior: PriorState, request: Adapt, config: RunConfig) -> PriorState:
    """Return the state with the client's weight in the totals, which may not change after the first totals."""
    weight, subject = request.weight, "the client's weight in the totals of the priors"
    if not 0 < weight <= 1 or (weight < 1 and config.privacy.secure_aggregation):
        raise CannotReply(f"{subject} is {weight:g}; it must be in (0, 1], and 1 with secure aggregation")
    if prior.totals and weight != prior.weight:
        raise CannotReply(f"{subject} changed from {prior.weight:g} to {weight:g}")
    return replace(prior, weight=weight)


def _check_totals(settings: PriorSettings, totals: tuple[FloatArray, ...], prior: PriorState, text: FloatArray) -> None:
    """Raise CannotReply if a new total contradicts the number of images, or lacks the client's own sums."""
    for step in range(len(prior.totals), len(totals)):
        estimation = estimation_after(settings, totals[:step], text)
        if step >= settings.max_steps or totals[step].shape != (estimation.size(step),):
            raise CannotReply(f"prior estimation, step {step + 1}: the totals have the wrong size")
        own = None if prior.sent is None or step > len(prior.totals) else prior.weight * prior.sent
        images = None if not step else float(estimation.images or 0)
        reason = validate_sums(estimation.steps[step], totals[step], settings.classes, settings.width, images, own)
        if reason:
            raise CannotReply(f"prior estimation, step {step + 1}: the totals are impossible: {reason}")


def _with_outcome(
    prior: PriorState, model: PosteriorModel, settings: PriorSettings, features: Callable[[], FloatArray]
) -> PriorState:
    """Return the state after the estimation: with the client's own class prior, or with the priors rejected.

    If no step chose the strength of client priors over all clients, the client chooses its own.
    """
    assert prior.scores is not None
    scores = prior.scores.with_prototypes(model.prototypes, features)
    if settings.label_shift and (settings.noisy_steps or not settings.logit_bias):
        model = replace(model, strength=scores.best_prior_strength(model, CLEAR))
    distances = np.broadcast_to(scores.own_distances(model.prototypes), scores.log_probs.shape).copy()
    log_probs_only = ClientScores(scores.log_probs)  # which the first labels need
    state = PriorState(log_probs_only, prior.totals, None, prior.weight, model, scores.class_prior(model), distances)
    if not _contradicts_zero_shot(scores.log_probs, state.own_log_posteriors(scores.log_probs)):
        return state
    fallback = replace(no_priors(settings.classes), strength=math.inf)
    return replace(state, model=fallback, class_prior=fallback.class_prior, distances=0 * distances, refused=True)


def _contradicts_zero_shot(log_probs: FloatArray, posteriors: FloatArray) -> bool:
    """Return whether log-posteriors change most of the most confident zero-shot labels; both arguments are (n, C)."""
    count = max(_MIN_CONFIDENT, round(_CONFIDENT * len(log_probs)))
    if len(log_probs) < count:
        return False
    confident = np.argsort(-log_probs.max(axis=1), kind="stable")[:count]
    unchanged = log_probs[confident].argmax(axis=1) == posteriors[confident].argmax(axis=1)
    return bool(unchanged.mean() < _MIN_UNCHANGED)


def is_worth_training(confidence: FloatArray) -> bool:
    """Return whether at least 90 % of pseudo labels are expected to be correct, by their log-posteriors, (m,)."""
    return len(confidence) > 0 and float(np.exp(confidence).sum()) >= MIN_EXPECTED_ACCURACY * len(confidence)

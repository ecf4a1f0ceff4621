"""The estimation of the priors: a state machine on the totals of each step, the same at server and clients.

Each step requests statistics from the clients, and the server adds them up. Their totals determine, by fixed grids and
thresholds, the statistics of the next step and finally the posterior model. docs/priors.md has the model, the criterion
and the assumptions.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..algorithm import FloatArray
from .label_shift import STRENGTHS
from .posterior import TINY, PosteriorModel, make_prototypes, no_priors, uniform
from .statistics import Statistic, Step, split_sums, symmetric

EVEN_SPREAD = 0.25  # standard deviation of the log shares that CLIP predicts for equally frequent classes (measured)
SIGNIFICANT = 4.0  # F statistic above which mean logits explain the predicted log shares
CLEAR = 0.06  # nats per image: smaller differences in evidence do not count (experiments: priors_study)
CLEAR_PRIOR = 0.01  # nats per image, for a class prior after the bias explained by mean logits is removed
CLEAR_GAIN = 0.085  # nats per image by which the agreement of the views must rise at the larger feature scale
FEW_IMAGES = 16  # images per class below which features have a smaller scale, because class means are uncertain
FEATURE_SCALES = (0.1, 0.2)  # below 1, because the dimensions of features are correlated
SCALES = (1.0, 0.7, 0.5, 0.35, 0.25)  # of text and features together, relative to a client's class prior
_BALANCE_STEPS, _EM_STEPS, _SCALE_STEPS = 3, 4, 2
_MIN_CLASS = 0.01  # least share of a class in the common class prior, in units of 1 / C

Steps = Generator[Step, list[FloatArray], PosteriorModel]


@dataclass(frozen=True)
class PriorSettings:
    """The inputs of the estimation that are equal at the server and all clients."""

    classes: int  # C
    width: int  # d
    class_prior: FloatArray | None = None  # over all clients, if known
    logit_bias: bool = True
    label_shift: bool = True
    prototypes: bool = True
    noisy_steps: int = 0  # with differential privacy: the number of steps, all for the logit bias

    @property
    def max_steps(self) -> int:
        """The maximum number of steps."""
        if not self.logit_bias:
            return 0
        if self.noisy_steps:
            return self.noisy_steps
        em = 1 + 2 * _EM_STEPS if self.prototypes else 0  # with the class sums of `_choose_parts`
        return 2 + _BALANCE_STEPS + 2 + em + _SCALE_STEPS + 1

    def equals(self, other: "PriorSettings") -> bool:
        """Return whether both settings lead to the same estimation."""
        same_prior = _equal(self.class_prior, other.class_prior)
        return same_prior and replace(self, class_prior=None) == replace(other, class_prior=None)


class Estimation:
    """A prior estimation, advanced by the totals received so far.

    Args:
        settings: Equal at the server and all clients.
        text: Class embeddings, (C, d), which clients need for their statistics; None: at the server.
    """

    def __init__(self, settings: PriorSettings, text: FloatArray | None = None):
        self.settings, self.text = settings, text
        self.totals: list[FloatArray] = []
        self.steps: list[Step] = []  # requested so far
        self.outcome: PosteriorModel | None = None
        self._machine = _estimate(settings, text)
        self._advance(None)

    def add(self, total: FloatArray) -> None:
        """Continue with the totals of the last step, as one flat array."""
        self.totals.append(total)
        self._advance(split_sums(self.steps[-1], total, self.settings.classes, self.settings.width))

    def size(self, step: int) -> int:
        """Return the number of values in a step."""
        shapes = (statistic.shape(self.settings.classes, self.settings.width) for statistic in self.steps[step])
        return sum(math.prod(shape) for shape in shapes)

    @property
    def images(self) -> float | None:
        """The number of images of all clients, by the first step; None before it, and with noise."""
        if not self.totals or self.settings.noisy_steps:
            return None
        return float(self.totals[0][0] if self.settings.prototypes else self.totals[0][: self.settings.classes].sum())

    def matches(self, settings: PriorSettings, totals: Sequence[FloatArray], text: FloatArray | None) -> bool:
        """Return whether settings and text are those of this estimation, and the totals agree in all common steps."""
        pairs = zip(self.totals, totals, strict=False)
        same_totals = all(np.array_equal(*pair) for pair in pairs)
        return same_totals and _equal(text, self.text) and settings.equals(self.settings)

    def _advance(self, totals: list[FloatArray] | None) -> None:
        try:
            self.steps.append(next(self._machine) if totals is None else self._machine.send(totals))
        except StopIteration as stop:
            self.outcome = stop.value


_recent: list[Estimation] = []  # shared by all clients of this process, which run the same estimation


def estimation_after(
    settings: PriorSettings, totals: Sequence[FloatArray], text: FloatArray | None = None
) -> Estimation:
    """Return an estimation that has received `totals` or more, from the cache of this process if possible."""
    estimation = next((recent for recent in _recent if recent.matches(settings, totals, text)), None)
    if estimation is None:
        estimation = Estimation(settings, text)
        _recent[:] = [estimation, *_recent[:3]]
    for total in totals[len(estimation.totals) :]:
        estimation.add(total)
    return estimation


def _equal(one: FloatArray | None, other: FloatArray | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


def _estimate(settings: PriorSettings, text: FloatArray | None) -> Steps:
    """Yield the statistics of each step, receive their totals, and return the posterior model (docs/priors.md)."""
    if not settings.logit_bias:
        return no_priors(settings.classes)
    if settings.noisy_steps:
        return (yield from _estimate_bias(settings))
    classes, width, known_prior = settings.classes, settings.width, settings.class_prior
    zero_shot = no_priors(classes)
    first_statistic = Statistic("moments") if settings.prototypes else Statistic("predicted", (zero_shot,))
    first_sums, logits = yield (first_statistic, Statistic("logits"))
    if settings.prototypes:
        images, predicted = float(first_sums[0]), first_sums[1 : 1 + classes]
        mean = first_sums[1 + classes : 1 + classes + width] / images
        square = symmetric(first_sums[1 + classes + width :], width)
    else:
        predicted = first_sums[0]
        images, mean, square = float(predicted.sum()), np.zeros(width), np.zeros((width, width))
    mean_logits = logits / np.maximum(images - predicted, 1.0)  # of each class on the images of the other classes
    corrected = replace(zero_shot, logit_bias=mean_logits.mean() - mean_logits)
    [[corrected_predicted]] = yield (Statistic("predicted", (corrected,)),)
    model, shares = zero_shot, _floored(predicted / predicted.sum())
    corrected_shares = _floored(corrected_predicted / images)
    # Variance of the log shares that the mean logits explain, relative to the rest; times C - 2 it is an F statistic.
    variance_ratio = (_spread(shares) / max(_spread(corrected_shares), TINY)) ** 2 - 1
    if explained := variance_ratio * (classes - 2) > SIGNIFICANT:
        model, shares = corrected, corrected_shares
    shrunk = shares ** max(0.0, 1 - (EVEN_SPREAD / max(_spread(shares), EVEN_SPREAD)) ** 2)
    shrunk /= shrunk.sum()  # nearer to uniform, by as much of the spread as CLIP predicts for equal shares
    priors = [uniform(classes), shrunk] if settings.prototypes else [shrunk]
    if known_prior is not None:
        priors = [known_prior]
    models = [PosteriorModel(prior, model.logit_bias - np.log(shares)) for prior in priors]
    for _ in range(_BALANCE_STEPS):
        [sums] = yield (Statistic("predicted", tuple(models)),)
        models = [model.rebalanced(predicted) for model, predicted in zip(models, sums, strict=True)]

    min_gain = CLEAR_PRIOR if explained else CLEAR
    model = yield from _choose_parts(models, min_gain, images, mean, square, settings.prototypes, text)
    if settings.prototypes:
        # A uniform class prior is not estimated again: the evidence for another one was too small.
        estimate_prior = known_prior is None and bool(np.ptp(model.class_prior) > TINY)
        model = yield from _fit_prototypes(model, estimate_prior, len(models), images, mean, square)
    model = yield from _choose_scale(model, images)
    return model if settings.label_shift else replace(model, strength=math.inf)


def _fit_prototypes(
    model: PosteriorModel, estimate_prior: bool, first_number: int, images: float, mean: FloatArray, square: FloatArray
) -> Generator[Step, list[FloatArray], PosteriorModel]:
    """Fit class means and the logit bias by EM, and with `estimate_prior` also the common class prior.

    The prototypes of the steps are numbered from `first_number`; clients refer to them by these numbers.
    """
    for step in range(_EM_STEPS):
        [sums] = yield (Statistic("class_sums", (model,), number=first_number + step),)
        if estimate_prior:
            model = replace(model, class_prior=_floored(sums[0][:, 0] / images))
        model = replace(model, prototypes=make_prototypes(sums[0], images, mean, square, first_number + step, None))
        [sums] = yield (Statistic("predicted", (model,)),)
        model = model.rebalanced(sums[0])
    return model


def _estimate_bias(settings: PriorSettings) -> Steps:
    """Estimate only the logit bias, because each step costs privacy; clients choose `strength` themselves."""
    prior = uniform(settings.classes) if settings.class_prior is None else settings.class_prior
    model = PosteriorModel(prior, np.zeros(settings.classes))
    for _ in range(settings.noisy_steps):
        [sums] = yield (Statistic("predicted", (model,)),)
        model = model.rebalanced(sums[0])
    return model


def _choose_parts(
    models: list[PosteriorModel],
    min_gain: float,
    images: float,
    mean: FloatArray,
    square: FloatArray,
    prototypes: bool,
    text: FloatArray | None,
) -> Generator[Step, list[FloatArray], PosteriorModel]:
    """Choose the common class prior, the feature scale and the strength of client priors, by evidence before any EM.

    The class prior of `models[0]` is kept unless the last model has `min_gain` nats per image more evidence.
    """
    with_prototypes: list[PosteriorModel] = []
    if prototypes:
        [sums] = yield (Statistic("class_sums", tuple(models)),)
        for number, (model, class_sums) in enumerate(zip(models, sums, strict=True)):
            fitted = replace(model, prototypes=make_prototypes(class_sums, images, mean, square, number, text))
            with_prototypes += [replace(fitted, feature_scale=scale) for scale in FEATURE_SCALES]
    views = (Statistic("view_sums", tuple(with_prototypes)),) if prototypes else ()
    text_sums, *view_sums = yield (Statistic("predicted", tuple(models)), *views)
    shift_statistic = Statistic("evidence", tuple(models), np.maximum(text_sums / images, TINY))
    shares = np.maximum(view_sums[0] / images, TINY) if prototypes else None
    agreement_statistics = (Statistic("agreement", tuple(with_prototypes), shares),) if prototypes else ()
    evidence, *agreements = yield (shift_statistic, *agreement_statistics)
    evidence = evidence / images
    # Of the two views, for each class prior at the smaller and at the larger feature scale.
    agreement = agreements[0].reshape(len(models), -1) / images if prototypes else np.zeros((len(models), 1))
    total_evidence = agreement[:, -1] + evidence.max(axis=1)
    chosen = int(total_evidence[-1] >= total_evidence[0] + min_gain)
    scale_index = int(agreement[chosen, -1] >= agreement[chosen, 0] + CLEAR_GAIN)  # 0: the smaller one
    best = int(evidence[chosen].argmax())
    strength = STRENGTHS[best] if evidence[chosen, best] >= _min_shift_evidence(images) else math.inf
    per_class = images / len(models[0].class_prior)
    feature_scale = FEATURE_SCALES[scale_index] * min(1.0, per_class / FEW_IMAGES) if prototypes else 0.0
    return replace(models[chosen], strength=strength, feature_scale=feature_scale)


def _choose_scale(model: PosteriorModel, images: float) -> Generator[Step, list[FloatArray], PosteriorModel]:
    """Choose the scale of the likelihoods relative to a client's class prior, and the prior's strength, by evidence."""
    scaled = [
        replace(
            model,
            text_scale=scale * model.text_scale,
            feature_scale=scale * model.feature_scale,
            logit_bias=scale * model.logit_bias,
        )
        for scale in (SCALES if model.prototypes else SCALES[:1])  # text alone is not overconfident
    ]
    sums = np.zeros((len(scaled), len(model.class_prior)))
    for step in range(_SCALE_STEPS):
        [sums] = yield (Statistic("predicted", tuple(scaled)),)
        if step + 1 < _SCALE_STEPS:
            scaled = [candidate.rebalanced(predicted) for candidate, predicted in zip(scaled, sums, strict=True)]
    [evidence] = yield (Statistic("evidence", tuple(scaled), np.maximum(sums / images, TINY)),)
    best = evidence.max(axis=1) / images
    if best.max() < _min_shift_evidence(images):
        return replace(model, strength=math.inf)
    # The smallest scale whose evidence is at most 6 % below the highest (less where that is below 1 nat per image).
    min_evidence = best.max() * (1 - CLEAR * min(1.0, float(best.max())))
    smallest = int(np.flatnonzero(best >= min_evidence)[-1])
    return replace(scaled[smallest].rebalanced(sums[smallest]), strength=STRENGTHS[int(evidence[smallest].argmax())])


def _min_shift_evidence(images: float) -> float:
    """Return the least evidence for clients' own class priors, in nats per image: at least its standard error."""
    return max(CLEAR, 1 / math.sqrt(images))


def _spread(shares: FloatArray) -> float:
    return float(np.log(shares).std())


def _floored(shares: FloatArray) -> FloatArray:
    """Return class shares raised to at least _MIN_CLASS / C, normalised."""
    raised = np.maximum(shares, _MIN_CLASS / len(shares))
    floored: FloatArray = raised / raised.sum()
    return floored

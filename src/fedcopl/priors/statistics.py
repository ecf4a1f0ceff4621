"""The sums over its images that a client computes for the estimation of the priors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from ..algorithm import FloatArray
from .label_shift import STRENGTHS, label_shift, shift_evidence
from .posterior import PosteriorModel, Prototypes, log_softmax

LOWEST = -100.0  # to which log-probabilities are raised in sums of logits

_Kind = Literal["moments", "logits", "predicted", "class_sums", "view_sums", "agreement", "evidence"]


class Statistic(NamedTuple):
    """A sum over images that the estimation requests, for J models.

    moments      n, sum p (C), sum f (d), the upper triangle of sum f f^T
    logits       (C,): log p minus its mean over classes, weighted by 1 - p of the class
    predicted    (J, C): posteriors under the common class prior
    class_sums   (J, C, 1 + d): N_c and S_c, posteriors under the client's class prior and features weighted by them
    view_sums    (J, 2, C): posteriors of the text view and of the residual view
    agreement    (J,): log-likelihood ratio of the two views having the same class, against independence
    evidence     (J, len(STRENGTHS)): held-out evidence for the client's class prior
    """

    kind: _Kind
    models: tuple[PosteriorModel, ...] = ()
    shares: FloatArray | None = None  # mean posteriors: (J, 2, C) for agreement, (J, C) for evidence
    number: int = 0  # for class_sums: number of the prototypes made from the first model's sums

    def shape(self, classes: int, width: int) -> tuple[int, ...]:
        """Return the shape of the sum."""
        models = len(self.models)
        return {
            "moments": (1 + classes + width + width * (width + 1) // 2,),
            "logits": (classes,),
            "predicted": (models, classes),
            "class_sums": (models, classes, 1 + width),
            "view_sums": (models, 2, classes),
            "agreement": (models,),
            "evidence": (models, len(STRENGTHS)),
        }[self.kind]


Step = tuple[Statistic, ...]


def split_sums(step: Step, sums: FloatArray, classes: int, width: int) -> list[FloatArray]:
    """Return the sum of each statistic in its shape, from all values of a step in one flat array."""
    shapes = [statistic.shape(classes, width) for statistic in step]
    parts = np.split(sums, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def symmetric(triangle: FloatArray, width: int) -> FloatArray:
    """Return the symmetric matrix, (d, d), with this upper triangle."""
    upper = np.zeros((width, width))
    upper[np.triu_indices(width)] = triangle
    matrix: FloatArray = upper + np.triu(upper, 1).T
    return matrix


@dataclass(frozen=True)
class ClientScores:
    """Log-probabilities of a client's images, and their distances to the prototypes.

    Distances are to leave-one-out class means: each image's contribution is subtracted. So a client keeps the
    posteriors with which it added up its images.
    """

    log_probs: FloatArray  # (n, C) by CLIP's text
    contributions: dict[int, FloatArray] = field(default_factory=dict)  # number of the prototypes -> (n, C) posteriors
    distances: dict[int, FloatArray] = field(default_factory=dict)  # number -> (2, n, C): in the text axes, and all

    def compute(
        self, statistic: Statistic, features: Callable[[], FloatArray], min_images: int = 0, weight: float = 1.0
    ) -> tuple[FloatArray, "ClientScores"]:
        """Return the sum of a statistic, and these scores with the values computed for it, to use for the next one.

        Args:
            features: Returns the image features, (n, d), of unit length.
            min_images: Class feature sums of fewer images are withheld.
            weight: The weight of the client's sums in the totals.
        """
        match statistic.kind:
            case "moments":
                f = features()
                products = (f.T @ f)[np.triu_indices(f.shape[1])]
                return np.concatenate([[len(f)], np.exp(self.log_probs).sum(axis=0), f.sum(axis=0), products]), self
            case "logits":
                log_probs = np.maximum(self.log_probs, LOWEST)
                centred = log_probs - log_probs.mean(axis=1, keepdims=True)
                return ((1 - np.exp(self.log_probs)) * centred).sum(axis=0), self
            case "class_sums":
                return self._class_sums(statistic, features, min_images, weight)
            case "predicted":
                scores = self._with_distances(statistic.models, features)
                sums = [np.exp(scores.log_posteriors(model)).sum(axis=0) for model in statistic.models]
                return np.stack(sums), scores
            case "view_sums":
                scores = self._with_distances(statistic.models, features)
                views = [scores._views(model) for model in statistic.models]
                return np.stack([[text.sum(axis=0), residual.sum(axis=0)] for text, residual in views]), scores
        assert statistic.shares is not None
        scores = self._with_distances(statistic.models, features)
        pairs = zip(statistic.models, statistic.shares, strict=True)
        if statistic.kind == "agreement":
            return np.array([scores._agreement(model, shares) for model, shares in pairs]), scores
        ratios = ((np.exp(scores.log_posteriors(model)) / shares, model) for model, shares in pairs)
        rows = [shift_evidence(ratio, model.class_prior, self._min_strength(model)) for ratio, model in ratios]
        return np.stack(rows), scores

    def log_posteriors(self, model: PosteriorModel, class_prior: FloatArray | None = None) -> FloatArray:
        """Return the log-posteriors of the client's images, (n, C), under a class prior; None: the common one."""
        prior = model.class_prior if class_prior is None else class_prior
        return log_softmax(model.scores(self.log_probs, self.own_distances(model.prototypes)) + np.log(prior))

    def class_prior(self, model: PosteriorModel) -> FloatArray:
        """Return the client's class prior under a model, (C,). It is never sent."""
        ratios = np.exp(self.log_posteriors(model)) / model.class_prior
        return label_shift(ratios, model.class_prior, max(model.strength, self._min_strength(model)))

    def _min_strength(self, model: PosteriorModel) -> float:
        """Return the least strength of the common class prior, in units of n: with text alone, one image per class.

        Text confuses classes, and with few images per class an estimated class prior follows the confusion.
        """
        images, classes = self.log_probs.shape
        return 0.0 if model.feature_scale else classes / max(images, 1)

    def own_distances(self, prototypes: Prototypes | None) -> FloatArray | float:
        """Return the distances of the client's images to leave-one-out class means, (n, C); 0 without prototypes."""
        return 0.0 if prototypes is None else self.distances[prototypes.number][1]

    def best_prior_strength(self, model: PosteriorModel, threshold: float) -> float:
        """Return the weight of the common class prior (`STRENGTHS`) with the highest evidence at this client alone.

        It is inf, for the common prior itself, below `threshold` nats per image and with fewer than two images.
        """
        posteriors = np.exp(self.log_posteriors(model))
        if len(posteriors) < 2:
            return math.inf
        evidence = shift_evidence(posteriors / model.class_prior, model.class_prior, self._min_strength(model))
        best = int(evidence.argmax())
        return STRENGTHS[best] if evidence[best] >= threshold * len(posteriors) else math.inf

    def with_prototypes(self, prototypes: Prototypes | None, features: Callable[[], FloatArray]) -> "ClientScores":
        """Return the scores with the images' distances to the prototypes; unchanged without prototypes."""
        if prototypes is None or prototypes.number in self.distances:
            return self
        posteriors, f = self.contributions.get(prototypes.number), features()
        distances = np.stack([prototypes.text_distances(f, posteriors), prototypes.distances(f, posteriors)])
        return replace(self, distances={**self.distances, prototypes.number: distances})

    def _with_distances(self, models: tuple[PosteriorModel, ...], features: Callable[[], FloatArray]) -> "ClientScores":
        scores = self
        for model in models:
            scores = scores.with_prototypes(model.prototypes, features)
        return scores

    def _class_sums(
        self, statistic: Statistic, features: Callable[[], FloatArray], min_images: int, weight: float
    ) -> tuple[FloatArray, "ClientScores"]:
        """Return N_c and S_c of each model's posteriors under the client's class prior, (J, C, 1 + d)."""
        scores, f = self._with_distances(statistic.models, features), features()
        contributions, sums = {}, []
        for number, model in enumerate(statistic.models, start=statistic.number):
            q = _withhold_small(scores.log_posteriors(model, scores.class_prior(model)), min_images)
            contributions[number] = weight * q
            sums.append(np.concatenate([q.sum(axis=0)[:, None], q.T @ f], axis=1))
        return np.stack(sums), replace(scores, contributions=contributions, distances={})

    def _views(self, model: PosteriorModel) -> tuple[FloatArray, FloatArray]:
        """Return the posteriors, (n, C), of the text view (text, and features in its span) and of the residual view."""
        assert model.prototypes is not None
        text_distances, distances = self.distances[model.prototypes.number]
        log_prior = np.log(model.class_prior)
        by_text = log_softmax(model.scores(self.log_probs, text_distances) + log_prior)
        by_residual = log_softmax(-model.feature_scale / 2 * (distances - text_distances) + log_prior)
        return np.exp(by_text), np.exp(by_residual)

    def _agreement(self, model: PosteriorModel, shares: FloatArray) -> float:
        """Return sum_i log sum_c q_ic r_ic pi_c / (mean q_c mean r_c) for posteriors q and r by the two views."""
        text, residual = self._views(model)
        ratio = (text * residual * (model.class_prior / (shares[0] * shares[1]))).sum(axis=1)
        return float(np.log(np.maximum(ratio, 1e-300)).sum())


def _withhold_small(log_posteriors: FloatArray, min_images: int) -> FloatArray:
    """Return the posteriors, (n, C), with 0 for each class whose sum is below `min_images`.

    A posterior is at most 1, so no image has more than 1 / min_images of the weight in a sum that is sent. The server
    can compute the total of the withheld sums, as the sum over all images minus the sent sums. If that total is below
    `min_images` too, the posteriors are normalised over the other classes, so that the total is 0.
    """
    q: FloatArray = np.exp(log_posteriors)
    sums = q.sum(axis=0)
    kept = sums >= min_images
    if kept.any() and sums[~kept].sum() < min_images and not kept.all():
        q = np.zeros_like(q)
        q[:, kept] = np.exp(log_softmax(log_posteriors[:, kept]))
    q[:, ~kept] = 0.0
    return q

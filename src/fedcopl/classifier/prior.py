"""The priors of a classifier: the posterior model of its federation, and the class prior of the images to predict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..algorithm import FloatArray
from ..errors import ModelError
from ..priors.label_shift import label_shift
from ..priors.posterior import PosteriorModel, log_softmax, no_priors
from ..run.folder import SITE_PRIOR

PRIOR = "prior/"  # prefix of the names of its arrays among the arrays of a classifier
_STRENGTH = 0.1  # weight of the common class prior in `Prior.fitted_to`, if the run's is inf: it would not adapt


@dataclass(frozen=True)
class Prior:
    """The posterior model of all sites, and the class prior of the predictions, by default that of the site."""

    model: PosteriorModel
    class_prior: FloatArray  # (C,), positive, of sum 1

    @classmethod
    def uniform(cls, classes: int) -> "Prior":
        """Return a prior without logit bias and prototypes, with a uniform class prior."""
        model = no_priors(classes)
        return cls(model, model.class_prior)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray], classes: int, width: int) -> "Prior":
        """Build a prior from the arrays of `to_arrays`; `width` is the number of features d.

        Raises:
            ModelError: An array is missing, or its shape or values are invalid.
        """
        shapes: dict[str, tuple[int, ...]] = {
            "logit_bias": (classes,),
            "class_prior": (classes,),
            "numbers": (2,),  # text_scale and feature_scale
            SITE_PRIOR: (classes,),
        }
        if "strength" in arrays:
            shapes["strength"] = (1,)
        if "whiten" in arrays:
            shapes |= {"counts": (classes,), "totals": (classes, width), "whiten": (width, width)}
        for name, shape in shapes.items():
            if name not in arrays:
                raise ModelError(f"the array {name!r} of the priors is missing")
            if arrays[name].shape != shape:
                raise ModelError(f"the array {name!r} of the priors has the shape {arrays[name].shape}, not {shape}")
        for class_prior in (arrays["class_prior"], arrays[SITE_PRIOR]):
            if not (class_prior > 0).all() or not math.isclose(class_prior.sum(), 1):
                raise ModelError("a class prior must be positive shares that sum to 1")
        return cls(PosteriorModel.from_arrays({name: arrays[name] for name in shapes}), arrays[SITE_PRIOR])

    def log_posteriors(self, log_probs: FloatArray, features: FloatArray) -> FloatArray:
        """Compute log p~, (n, C), from log p, (n, C), and features of zero-shot CLIP, (n, d)."""
        return self.model.log_posteriors(log_probs, features, self.class_prior)

    def with_class_prior(self, class_prior: FloatArray) -> "Prior":
        """Return a copy with this class prior, (C,)."""
        return replace(self, class_prior=class_prior)

    def fitted_to(self, log_probs: FloatArray, features: FloatArray) -> "Prior":
        """Return a copy with the class prior estimated from images by label-shift estimation."""
        model = self.model
        distances = 0.0 if model.prototypes is None else model.prototypes.distances(features)
        posteriors = np.exp(log_softmax(model.scores(log_probs, distances) + np.log(model.class_prior)))
        strength = _STRENGTH if math.isinf(model.strength) else model.strength
        return self.with_class_prior(label_shift(posteriors / model.class_prior, model.class_prior, strength))

    def named_class_prior(self, classes: Sequence[str]) -> dict[str, float]:
        """Return the class prior as share by class name."""
        return dict(zip(classes, self.class_prior.tolist(), strict=True))

    def to_arrays(self) -> dict[str, FloatArray]:
        """Return all arrays for storage."""
        return {**self.model.to_arrays(), SITE_PRIOR: self.class_prior}

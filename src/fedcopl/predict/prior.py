"""What a classifier knows before it sees an image: the priors of its federation, and in what mix classes occur here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithm import FloatArray
from ..data.label_files import read_class_prior
from ..errors import ConfigError, ModelError
from ..priors.label_shift import label_shift
from ..priors.posterior import PosteriorModel, log_softmax, no_priors
from ..run.folder import SITE_PRIOR

PRIOR = "prior/"  # before the names of its arrays, among a classifier's others
NUMBERS = ("text_scale", "feature_scale")  # of `PosteriorModel`, in the order of their array
STRENGTH = 0.1  # of a class prior estimated from given images, where the run found none for its clients
WORDS = ("site", "none")  # for --prior of a classifier; anything else is a file
IMAGES = "images"  # for --prior where there are images to find it out from


@dataclass(frozen=True)
class Prior:
    """What all sites know, and the mix of classes that answers are given for: the site's own, unless it was changed."""

    model: PosteriorModel
    class_prior: FloatArray  # (C,), positive, of sum 1

    @classmethod
    def of_nothing(cls, classes: int) -> "Prior":
        """For a classifier without priors: no lean, no prototypes, and all classes equally common."""
        model = no_priors(classes)
        return cls(model, model.class_prior)

    def answers(self, log_probs: FloatArray, features: FloatArray) -> FloatArray:
        """log p~ of new images, (n, C), from log p and the features of plain CLIP."""
        return self.model.log_posteriors(log_probs, features, self.class_prior)

    def pooled(self) -> "Prior":
        """For images of anywhere: the mix of all sites together."""
        return self.with_class_prior(self.model.class_prior)

    def with_class_prior(self, class_prior: FloatArray) -> "Prior":
        return replace(self, class_prior=class_prior)

    def fitted_to(self, log_probs: FloatArray, features: FloatArray) -> "Prior":
        """For these images: in the mix that they themselves show."""
        model = self.model
        distances = 0.0 if model.prototypes is None else model.prototypes.distances(features)
        posteriors = np.exp(log_softmax(model.scores(log_probs, distances) + np.log(model.class_prior)))
        strength = STRENGTH if math.isinf(model.strength) else model.strength
        return self.with_class_prior(label_shift(posteriors / model.class_prior, model.class_prior, strength))

    def named_class_prior(self, classes: Sequence[str]) -> dict[str, float]:
        return dict(zip(classes, self.class_prior.tolist(), strict=True))

    def to_arrays(self) -> dict[str, FloatArray]:
        """All of it, to be stored."""
        return {**self.model.to_arrays(), SITE_PRIOR: self.class_prior}

    def to_numbers(self) -> dict[str, float]:
        """What can be read without the arrays."""
        return dict(zip(NUMBERS, self.model.to_arrays()["numbers"].tolist(), strict=True))


def prior_from(arrays: Mapping[str, FloatArray], classes: int, width: int) -> Prior:
    """What `Prior.to_arrays` gave; ModelError for anything that could not have been."""
    fitting: dict[str, tuple[int, ...]] = {
        "logit_bias": (classes,),
        "class_prior": (classes,),
        "numbers": (len(NUMBERS),),
        SITE_PRIOR: (classes,),
    }
    if "strength" in arrays:
        fitting["strength"] = (1,)
    if "whiten" in arrays:
        fitting |= {"counts": (classes,), "totals": (classes, width), "whiten": (width, width)}
    for name, shape in fitting.items():
        if name not in arrays:
            raise ModelError(f"the priors lack the array {name!r}")
        if arrays[name].shape != shape:
            raise ModelError(f"the array {name!r} of the priors has the shape {arrays[name].shape}, not {shape}")
    if any(
        not (class_prior > 0).all() or not math.isclose(class_prior.sum(), 1)
        for class_prior in (arrays["class_prior"], arrays[SITE_PRIOR])
    ):
        raise ModelError("a mix of classes in the priors is not positive shares that add up to 1")
    return Prior(PosteriorModel.from_arrays({name: arrays[name] for name in fitting}), arrays[SITE_PRIOR])


def shares_for(prior: str, words: Sequence[str] = WORDS) -> dict[str, Any] | None:
    """The shares in a file that --prior names; None for one of its words."""
    if prior in words:
        return None
    if not Path(prior).is_file():
        raise ConfigError(f"--prior: {prior!r} is neither {', '.join(words)} nor a file of shares")
    return read_class_prior(Path(prior))

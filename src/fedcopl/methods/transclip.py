"""TransCLIP (Zanella et al., NeurIPS 2024) at each site alone: transductive prediction, nothing is trained.

A Gaussian mixture is fitted to the site's own images and never sent; test images are predicted by it.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..algorithm import FloatArray
from ..algorithm.select import Selection
from ..algorithm.transduction import Mixture, MixtureWeights, scores_of, transduce
from ..clip.encoder import Array, Encoder
from ..config import Section
from .base import Named, as_numpy, in_double
from .fedcopl import ZeroShot

FEATURES = "site's features"


class TransCLIPOptions(Section):
    """Settings of TransCLIP, as its authors' for zero-shot."""

    text_weight: float = Field(1.0, ge=0)
    """lambda: weight of the text probabilities"""
    mixture_weight: float = Field(0.02, ge=0)
    """kappa: weight of the mixture, as in its authors' code"""
    neighbours: int = Field(3, ge=0)
    """neighbours of an image in the Laplacian term"""
    turns: int = Field(10, ge=1)
    """outer iterations over assignments and mixture"""
    passes: int = Field(5, ge=1)
    """inner iterations over the assignments"""


class TransCLIP(ZeroShot):
    """Transductive prediction at each site by a mixture, nothing trained or shared (TransCLIP)."""

    title = "TransCLIP"
    single_round = True
    personal_without_training = True
    Options = TransCLIPOptions

    def remember(self, frozen: Callable[[], Tensor], selection: Selection, classes: int) -> dict[str, Array]:
        return {FEATURES: as_numpy(frozen())}

    def personal(self, encoder: Encoder, images: Tensor, classes: Tensor, named: Named) -> Tensor:
        """Return the scores of the mixture, or of zero-shot CLIP before there is one."""
        logits = self.logits(encoder, images, classes, named)
        if FEATURES not in named:
            return logits
        options: TransCLIPOptions = self.options
        texts, scale = as_numpy(classes), float(encoder.clip.logit_scale)
        mixture = _mixture(as_numpy(named[FEATURES]).tobytes(), texts.tobytes(), texts.shape, scale, options)
        scores = scores_of(in_double(images), in_double(logits.log_softmax(-1)), mixture, _weights(options))
        return torch.from_numpy(scores).to(logits)


@lru_cache(maxsize=32)
def _mixture(seen: bytes, texts: bytes, shape: tuple[int, int], scale: float, options: TransCLIPOptions) -> Mixture:
    """Fit the mixture of a site once for all batches."""
    features, classes = _rows(seen, shape[1]), _rows(texts, shape[1])
    logits = torch.from_numpy(scale * features @ classes.T)
    log_probs = logits.log_softmax(-1).numpy()
    return transduce(features, log_probs, _weights(options), turns=options.turns, passes=options.passes)


def _weights(options: TransCLIPOptions) -> MixtureWeights:
    return MixtureWeights(options.text_weight, options.mixture_weight, options.neighbours)


def _rows(data: bytes, width: int) -> FloatArray:
    return np.frombuffer(data, np.float32).reshape(-1, width).astype(np.float64)

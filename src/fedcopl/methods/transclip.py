"""TransCLIP (Zanella et al., NeurIPS 2024) at each site alone: its images are answered together, nothing is trained.

The mixture is of the site's own images, and stays there; what comes later (its test images) is answered through it.
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
from ..config import RunConfig, Section
from .base import Named, as_numpy, in_double
from .fedcopl import ZeroShot

SEEN = "site's features"


class TransCLIPOptions(Section):
    """Settings of TransCLIP, as its authors' for zero-shot."""

    text_weight: float = Field(1.0, ge=0)
    """lambda: how much the text's probabilities count"""
    mixture_weight: float = Field(0.02, ge=0)
    """kappa: how much the mixture counts; a fiftieth, as in its authors' code"""
    neighbours: int = Field(3, ge=0)
    """images that pull an image to their own answer"""
    turns: int = Field(10, ge=1)
    """of assignments and mixture"""
    passes: int = Field(5, ge=1)
    """over the assignments in each turn"""


class TransCLIP(ZeroShot):
    """A site remembers its images' features, and answers through the mixture that they and the texts make."""

    title = "TransCLIP"
    single_round = True
    personal_without_training = True
    Options = TransCLIPOptions

    def remember(self, frozen: Callable[[], Tensor], selection: Selection, classes: int) -> dict[str, Array]:
        return {SEEN: as_numpy(frozen())}

    def personal(self, encoder: Encoder, images: Tensor, classes: Tensor, named: Named) -> Tensor:
        """Before there is a mixture, plain CLIP."""
        logits = self.logits(encoder, images, classes, named)
        if SEEN not in named:
            return logits
        options: TransCLIPOptions = self.options
        texts, scale = as_numpy(classes), float(encoder.clip.logit_scale)
        mixture = _mixture(as_numpy(named[SEEN]).tobytes(), texts.tobytes(), texts.shape, scale, options)
        scores = scores_of(in_double(images), in_double(logits.log_softmax(-1)), mixture, _weights(options))
        return torch.from_numpy(scores).to(logits)


@lru_cache(maxsize=32)
def _mixture(seen: bytes, texts: bytes, shape: tuple[int, int], scale: float, options: TransCLIPOptions) -> Mixture:
    """The mixture of a site, fitted once however many batches ask for it."""
    features, classes = _rows(seen, shape[1]), _rows(texts, shape[1])
    logits = torch.from_numpy(scale * features @ classes.T)
    said = logits.log_softmax(-1).numpy()
    return transduce(features, said, _weights(options), turns=options.turns, passes=options.passes)


def _weights(options: TransCLIPOptions) -> MixtureWeights:
    return MixtureWeights(options.text_weight, options.mixture_weight, options.neighbours)


def _rows(data: bytes, width: int) -> FloatArray:
    return np.frombuffer(data, np.float32).reshape(-1, width).astype(np.float64)


def transclip(config: RunConfig) -> TransCLIP:
    """Each site's images answered together by a mixture, nothing trained or shared (TransCLIP)."""
    return TransCLIP(config)

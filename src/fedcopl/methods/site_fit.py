"""The base class of methods that fit a model to a site's unlabelled images; nothing is trained by SGD or sent."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor

from ..algorithm import FloatArray
from ..algorithm.select import Selection
from ..clip.encoder import Array, Encoder
from ..config import RunConfig
from .base import NamedTensors, as_numpy, in_double
from .fedcopl import ZeroShot
from .prompted_model import Key, key_of

_FEATURES = "site's features"  # f of the site's images, (n, d), which stay at the site
_MODELS = 32  # fitted models in memory, enough for all clients of a usual simulation

Scores = Callable[[FloatArray, FloatArray], FloatArray]
"""Maps features f, (m, d), and zero-shot log-probabilities, (m, C), of any images to unnormalised log p, (m, C)."""


class SiteFit(ZeroShot, ABC):
    """Zero-shot CLIP, corrected by a model of the site's images; a subclass implements `fit`.

    The model is fitted at its first use and cached for all batches of a site. Test images do not change it, as for a
    site that predicts single images later.
    """

    personal_without_training = True

    def __init__(self, config: RunConfig):
        super().__init__(config)
        self._fitted: OrderedDict[Key, Scores] = OrderedDict()

    @abstractmethod
    def fit(self, features: FloatArray, log_probs: FloatArray, texts: FloatArray, scale: float) -> Scores:
        """Fit a model to the site's images, and return its scores of any images.

        Args:
            features: f of the site's images, (n, d), of length one.
            log_probs: log p_c(x) of zero-shot CLIP for them, (n, C).
            texts: The class features w, (C, d), of length one.
            scale: CLIP's scale s of the logits.
        """

    def build_memory(self, frozen: Callable[[], Tensor], selection: Selection, classes: int) -> dict[str, Array]:
        return {_FEATURES: as_numpy(frozen())}

    def inference_logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        """Return the scores of the site's model, or zero-shot CLIP's logits before images are selected."""
        logits = self.logits(encoder, images, classes, params)
        if _FEATURES not in params:
            return logits
        fitted = self._fitted_model(encoder, params[_FEATURES], classes)
        return torch.from_numpy(fitted(in_double(images), in_double(logits.log_softmax(-1)))).to(logits)

    def _fitted_model(self, encoder: Encoder, features: Tensor, classes: Tensor) -> Scores:
        key = key_of({"features": as_numpy(features), "classes": as_numpy(classes)}, ("features", "classes"))
        if key not in self._fitted:
            image_features, texts, scale = in_double(features), in_double(classes), float(encoder.clip.logit_scale)
            log_probs = torch.from_numpy(scale * image_features @ texts.T).log_softmax(-1).numpy()
            self._fitted[key] = self.fit(image_features, log_probs, texts, scale)
            if len(self._fitted) > _MODELS:
                self._fitted.popitem(last=False)
        return self._fitted[key]

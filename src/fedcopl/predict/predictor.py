"""A client's finished model: pixels in, probabilities out. Nothing is trained here."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..clip.image_tokens import ENCODE_BATCH, ClientImages, TokenStore
from ..clip.preprocess import ImageTransform
from ..errors import ModelError
from ..methods.prompted_model import ImageSide, PromptedModel, Prompts

BATCH = ENCODE_BATCH  # as in a client's exam: the same images in the same order have the same bits there and here


class Predictor:
    """One client's prompts on a model that several clients may share."""

    def __init__(self, model: PromptedModel, prompts: Prompts):
        self.model, self.prompts = model, prompts
        _refuse_misfits(model, prompts)

    @property
    def transform(self) -> ImageTransform:
        """What makes pixels of an image."""
        return self.model.encoder.clip.preprocess

    def log_probabilities(
        self, pixels: NDArray[np.uint8], places: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """log p_c(x), (n, C), of images that are cut to size (n, 3, side, side), or of those at some places."""
        wanted = np.arange(len(pixels)) if places is None else places
        batches = (pixels[wanted[start : start + BATCH]] for start in range(0, len(wanted), BATCH))
        rows = [np.zeros((0, self.model.encoder.classes)), *map(self._of_batch, batches)]
        return np.concatenate(rows)

    def _of_batch(self, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
        return self.logits(pixels).double().log_softmax(-1).numpy()

    def logits(self, pixels: NDArray[np.uint8]) -> Tensor:
        """z of one batch, (n, C), on the CPU."""
        images = ClientImages(TokenStore(self.model.encoder.clip, pixels), np.arange(len(pixels)))
        return ImageSide(self.model, images).logits(self.prompts)


def _refuse_misfits(model: PromptedModel, prompts: Prompts) -> None:
    """Arrays of another model or method would fail later, and less clearly."""
    clip = model.encoder.clip
    for name, shape in model.method.shapes(clip, model.encoder.classes).items():
        if name not in prompts:
            raise ModelError(f"the prompts lack the array {name!r} that {model.method.config.method} needs")
        if prompts[name].shape != shape:
            found = prompts[name].shape
            raise ModelError(f"the prompt {name!r} has the shape {found}; with {clip.name} it must have {shape}")

"""FedPHA (Fang et al., ICML 2025): an averaged text prompt, and a personal one whose length each client may choose.

The global prompt P_g (m, w) is averaged and has the same length everywhere; the local prompt P_l (m_k, w) stays and may
be shorter or longer, so clients with different resources can take part. With the singular value decomposition
P_g = U S V^T, V (w, r) without its first floor((1 - rho) r) columns is V_2, and

    P' = P_l V_2 V_2^T

is the local prompt without the dominant directions of the global one. With T_l, T_g and T' (C, d) the class features,
of length one, by P_l, P_g and P', the loss on the pseudo labels adds

    pull = mean over classes and coordinates of (T_l - T')^2,
    push = mean over classes of max(0, alpha - |T_l - T_g|),

and the same loss on the logits of T_g, which trains the global prompt: local features stay near
the part that does not conflict with the global prompt, at a distance alpha from its features. Predictions use P_l only.

Choices, as in the authors' code: rho = 0.8, alpha = 1, weights of one for all four terms, and V_2 from the reduced
decomposition (w x r), so that P' has only minor directions of P_g and not its whole null space. Ours: no gradient flows
through the decomposition, which has none where singular values are equal; the prompts begin differently, as in FedOTP;
all local prompts have the length of the global one unless `options.longest` is set (32, and 4 as the shortest, in the
authors' code for CIFAR with different lengths). They are stored with `longest` rows, of which unused ones stay zero.
Not built: class-specific contexts and other positions of the class name. The text of the paper was not available: this
follows its abstract and a public copy of its code, which has no sliding window over prompts.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..clip.encoder import Array, Encoder
from ..clip.frozen_clip import Clip
from ..config import Section
from ..errors import ConfigError
from ..rng import stream
from .base import Batch, Criterion, FrozenImages, NamedTensors, TwoTextPrompts
from .prompts import Shape, text_shape


class _FedPHAOptions(Section):
    """Settings of FedPHA."""

    longest: int = Field(0, ge=0)
    """maximum number of vectors in a client's local prompt; 0: model.text_prompts for all clients"""
    shortest: int = Field(4, ge=1)
    """minimum number of vectors in a client's local prompt, drawn for each client if `longest` is set"""
    ratio: float = Field(0.8, gt=0, le=1)
    """rho: share of the global prompt's directions, the minor ones, that local features are pulled to"""
    margin: float = Field(1.0, ge=0)
    """alpha: distance to the features of the global prompt that local features are pushed to"""


class FedPHA(TwoTextPrompts, FrozenImages):
    """An averaged text prompt, and a personal one of any length with a pull and a push loss (FedPHA)."""

    title = "FedPHA"
    class_arrays = ("local text",)
    Options = _FedPHAOptions

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        (vectors, width), options = text_shape(clip, self.config.model), self.options
        if 0 < options.longest < options.shortest:
            raise ConfigError(f"options.longest: must be 0 or at least options.shortest, {options.shortest}")
        return {"global text": (vectors, width), "local text": (options.longest or vectors, width)}

    def start_at(self, start: Mapping[str, Array], client: int) -> Mapping[str, Array]:
        """Return the initial values with the local prompt in the client's own length: rows beyond it are zero."""
        options = self.options
        if not options.longest:
            return start
        rng = stream(self.config.seed, "prompt length", client)
        local = start["local text"].copy()
        local[rng.integers(options.shortest, options.longest, endpoint=True) :] = 0
        return {**start, "local text": local}

    def class_features(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        """Return T_l, (C, d)."""
        return encoder.class_features(_used_rows(params["local text"]))

    def loss(self, batch: Batch, criterion: Criterion) -> Tensor:
        """Return the losses of the local and of the global prompt on the same pseudo labels, plus pull and push."""
        encoder, images, local_classes = batch.encoder, batch.images, batch.classes
        local, shared = _used_rows(batch.params["local text"]), batch.params["global text"]
        projected = encoder.class_features(_project_on_minor_directions(local, shared, self.options.ratio))
        global_classes = encoder.class_features(shared)
        label_loss = criterion(encoder.logits(images, global_classes)) + criterion(
            encoder.logits(images, local_classes)
        )
        return (
            label_loss
            + F.mse_loss(local_classes, projected)
            + _push(local_classes, global_classes, self.options.margin)
        )


def _used_rows(prompt: Tensor) -> Tensor:
    """Return the rows of a prompt within the client's length: those that are not zero."""
    rows: Tensor = prompt[(prompt != 0).any(-1)]
    return rows


def _project_on_minor_directions(local: Tensor, shared: Tensor, ratio: float) -> Tensor:
    """Return P' = P_l V_2 V_2^T, (m_k, w): V_2 is the share `ratio` of P_g's right singular vectors, the minor ones."""
    rows = torch.linalg.svd(shared.detach().double(), full_matrices=False).Vh  # (r, w), by descending singular value
    # floor((1 - rho) r) rows are dropped; rounded first, because 5 (1 - 0.8) is slightly less than 1.
    minor = rows[int(round(len(rows) * (1 - ratio), 6)) :].to(local)
    projected: Tensor = local @ minor.T @ minor
    return projected


def _push(local: Tensor, shared: Tensor, margin: float) -> Tensor:
    """Return the mean over classes of max(0, alpha - |T_l - T_g|) for features, (C, d) each."""
    distances: Tensor = torch.linalg.vector_norm(local - shared, dim=-1)
    return F.relu(margin - distances).mean()

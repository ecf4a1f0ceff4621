"""FedOTP (Li et al., CVPR 2024; "FedOPT" in the paper): optimal transport of patches to a global and a local prompt.

An image has M patch features g_m and a class has two features h_{c,j}, by the global (j = 0) and the local prompt
(j = 1), all of length one. With S_mj = <g_m, h_{c,j}>, the plan T (M, 2) with the largest <T, S> + lambda entropy(T)
takes at most 1 / M of each patch and gives gamma / 2 to each prompt, and

    z_c = s sum_mj T_mj S_mj.

Patches that fit neither prompt keep their mass. The server averages the global prompt; the local one stays. The two
begin differently, because equal prompts would stay equal. No gradient flows through the plan, as in the authors' code.

The plan is T = diag(u) K diag(v) with K = exp(S / lambda), where u is the same in all rows that are not full, and
smaller in those that are. The authors start from u = 1 and repeat v <- gamma / (N K^T u), u <- min(1 / (M K v), 1),
which converges slowly once many rows are full, because u then hardly changes the total. Here the rows are filled to
gamma in one step (`_capped_row_sums`): coordinate ascent on the same dual problem with larger steps, which starts
from and converges to the same plans, in about 10 iterations instead of 80 with their gamma = 0.8, lambda = 0.1. (They
update u first, from v = 1, but exp(-(1 - S) / lambda) is so small that no row is full then.)
"""

import math
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..algorithm import FloatArray
from ..clip.encoder import Encoder
from ..clip.frozen_clip import Clip
from ..clip.vision_towers import ResNetTower
from ..config import Section
from .base import NamedTensors, TwoTextPrompts, in_double

_Smoothing = Annotated[float, Field(gt=0)]
# Similarities are raised to at least the highest of their column minus this multiple of lambda, so that u, v and their
# products with K stay within float64.
_MAX_EXPONENT = 500.0


class _FedOTPOptions(Section):
    """Settings of FedOTP, as in its authors' scripts."""

    mass: float = Field(0.8, gt=0, le=1)
    """gamma: the share of the patches' mass that must be transported; 1 is balanced transport"""
    smoothing: _Smoothing | Literal["auto"] = "auto"
    """lambda of the entropy; auto: 0.1, and 0.01 with a ResNet, as its authors' scripts for each"""


class FedOTP(TwoTextPrompts):
    """A shared and a personal text prompt, joined by optimal transport over patches (FedOTP)."""

    title = "FedOTP"
    caches_frozen = True
    full_first_round = True
    image_arrays = ()
    Options = _FedOTPOptions

    def frozen_features(self, encoder: Encoder, tokens: Tensor) -> Tensor:
        return encoder.patch_features(tokens)

    def image_features(self, encoder: Encoder, frozen: Tensor, params: NamedTensors) -> Tensor:
        return frozen

    def class_features(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        """Return h_{c,j}, (2, C, d): the class features by both prompts."""
        return torch.stack([encoder.class_features(params[name]) for name in self.class_arrays])

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        """Return z_c = s sum_mj T_mj S_mj, (B, C); the gradient flows through S only, not through the plan T."""
        similarity = torch.einsum("bmd,jcd->bcmj", images, classes)
        plan = _transport(in_double(similarity), mass=self.options.mass, smoothing=self.smoothing(encoder.clip))
        weighed = torch.from_numpy(plan).to(similarity) * similarity
        return encoder.clip.logit_scale * weighed.sum((-1, -2))

    def smoothing(self, clip: Clip) -> float:
        """Return the weight lambda of the entropy."""
        if self.options.smoothing != "auto":
            return float(self.options.smoothing)
        return 0.01 if isinstance(clip.vision, ResNetTower) else 0.1


def _transport(
    similarity: FloatArray, *, mass: float, smoothing: float, tolerance: float = 1e-6, iterations: int = 1000
) -> FloatArray:
    """Return the plans T, float64 and shaped (..., M, N) like similarity (S); one problem for each leading index.

    mass is gamma in (0, 1], smoothing is lambda > 0. With mass = 1 every row is full: the problem is balanced, and the
    iteration is Sinkhorn's. A problem is solved if the next iteration changes no row sum by more than tolerance / M.
    The columns sum to gamma / N after every iteration, but rows may sum to slightly more than 1 / M if similarities
    differ by a very large multiple of lambda and the iterations end before convergence.
    """
    if not 0 < mass <= 1 or smoothing <= 0:
        raise ValueError(f"transport needs a mass in (0, 1] and a positive smoothing, not {mass} and {smoothing}")
    patches, prompts = similarity.shape[-2:]
    kernel = _kernel(similarity, smoothing)
    u = np.ones(kernel.shape[1:])
    v = _column_scales(kernel, u, mass / prompts)
    active, active_kernel = np.arange(len(u)), kernel  # the problems that are not solved yet
    for _ in range(iterations - 1):
        unscaled = np.einsum("jbi,jb->bi", active_kernel, v[:, active])
        rows = _capped_row_sums(unscaled, mass)
        unsolved = (abs(rows - u[active] * unscaled) > tolerance / patches).any(axis=1)
        if not unsolved.any():
            break
        if not unsolved.all():
            active, active_kernel = active[unsolved], active_kernel[:, unsolved]
            rows, unscaled = rows[unsolved], unscaled[unsolved]
        u[active] = rows / unscaled
        v[:, active] = _column_scales(active_kernel, u[active], mass / prompts)
    return np.moveaxis(kernel * u * v[..., None], 0, -1).reshape(similarity.shape)


def _kernel(similarity: FloatArray, smoothing: float) -> FloatArray:
    """Return K as (N, problems, M), each column divided by its highest entry, which v compensates.

    The prompts are the first axis, because sums along a last axis of length one or two would be slow.
    """
    *leading, patches, prompts = similarity.shape
    flat = np.asarray(similarity, np.float64).reshape(math.prod(leading), patches, prompts)
    scores = np.ascontiguousarray(np.moveaxis(flat, -1, 0)) / smoothing
    kernel: FloatArray = np.exp(np.maximum(scores - scores.max(axis=-1, keepdims=True), -_MAX_EXPONENT))
    return kernel


def _column_scales(kernel: FloatArray, u: FloatArray, column_sum: float) -> FloatArray:
    """Return v, (N, problems), so that all columns of the plan sum to column_sum."""
    scales: FloatArray = column_sum / np.einsum("jbi,bi->jb", kernel, u)
    return scales


def _capped_row_sums(rows: FloatArray, mass: float) -> FloatArray:
    """Scale the row sums x of transport plans, (problems, M), by t and cap each at 1/M; t makes them sum to mass.

    sum_i min(t x_i, 1/M) is the minimum of k/M + t (sum of the M - k smallest x) over the number k of capped rows, so t
    is the maximum of the values for which one of these equals mass.
    """
    patches = rows.shape[1]
    if mass == 1:
        return np.full_like(rows, 1 / patches)
    capped_rows = np.arange(patches)
    sum_of_smallest = np.cumsum(np.sort(rows, axis=1), axis=1)[:, ::-1]
    t = ((mass - capped_rows / patches) / sum_of_smallest).max(axis=1, keepdims=True)
    capped: FloatArray = np.minimum(t * rows, 1 / patches)
    return capped

"""FedOTP (Li et al., CVPR 2024; "FedOPT" in the paper): optimal transport of patches to a global and a local prompt.

An image has M patch features g_m and a class has two features h_{c,j}, by the global (j = 0) and the local prompt
(j = 1), all of length one. With S_mj = <g_m, h_{c,j}>, the plan T (M, 2) with the largest <T, S> + lambda entropy(T)
takes at most 1 / M of each patch and gives gamma / 2 to each prompt, and

    z_c = s sum_mj T_mj S_mj.

Patches that fit neither prompt keep their mass. The server averages the global prompt; the local one stays. The two
begin differently, because equal prompts would stay equal. No gradient flows through the plan, as in the authors' code.

The plan is T = diag(u) K diag(v) with K = exp(S / lambda), where u is the same in all rows that are not full, and
smaller in those that are. The authors start from u = 1 and repeat v <- gamma / (N K^T u), u <- min(1 / (M K v), 1),
which creeps once many rows are full: then u can hardly change the total. Here the rows are filled to gamma in one go
(`_fill`). Like theirs it is coordinate ascent on the dual problem, with larger steps: from the same first plan it comes
to the same last one, in about 10 iterations instead of 80 at their gamma = 0.8 and lambda = 0.1. (They update u first,
from v = 1, but exp(-(1 - S) / lambda) is so small that no row is full then.)
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
# A similarity further below the highest of its column than this many lambda counts as this far below it: u, v and
# their products with K then stay within float64, whatever lambda.
_DEEPEST = 500.0


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

    def frozen(self, encoder: Encoder, tokens: Tensor) -> Tensor:
        return encoder.patch_features(tokens)

    def image_features(self, encoder: Encoder, frozen: Tensor, params: NamedTensors) -> Tensor:
        return frozen

    def class_features(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        """Return h_{c,j}, (2, C, d): the class features by both prompts."""
        return torch.stack([encoder.class_features(params[name]) for name in self.class_arrays])

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        """Return z_c = s sum_ij T_ij S_ij, (B, C); the gradient flows through S only, not through the plan T."""
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

    mass is gamma in (0, 1], smoothing is lambda > 0. With mass = 1 every row is full: the balanced problem, and the
    iteration is Sinkhorn's.
    A problem is solved when the next iteration would move no row sum by more than tolerance / M. The columns sum to
    gamma / N after every iteration, the rows to at most 1 / M only in the end: where similarities differ by very many
    lambda, the last of the `iterations` may leave some rows a little too full.
    """
    if not 0 < mass <= 1 or smoothing <= 0:
        raise ValueError(f"transport needs a mass in (0, 1] and a positive smoothing, not {mass} and {smoothing}")
    patches, prompts = similarity.shape[-2:]
    kernel = _kernel(similarity, smoothing)
    u = np.ones(kernel.shape[1:])
    v = _column_scales(kernel, u, mass / prompts)
    moving, part = np.arange(len(u)), kernel  # the problems not yet solved, and their kernels
    for _ in range(iterations - 1):
        unscaled = np.einsum("jbi,jb->bi", part, v[:, moving])
        rows = _fill(unscaled, mass)
        unsolved = (abs(rows - u[moving] * unscaled) > tolerance / patches).any(axis=1)
        if not unsolved.any():
            break
        if not unsolved.all():
            moving, part, rows, unscaled = moving[unsolved], part[:, unsolved], rows[unsolved], unscaled[unsolved]
        u[moving] = rows / unscaled
        v[:, moving] = _column_scales(part, u[moving], mass / prompts)
    return np.moveaxis(kernel * u * v[..., None], 0, -1).reshape(similarity.shape)


def _kernel(similarity: FloatArray, smoothing: float) -> FloatArray:
    """Return K as (N, problems, M), each column divided by its highest entry, which v compensates.

    Prompts come first because there are one or two of them: sums along such a short last axis would be slow.
    """
    *leading, patches, prompts = similarity.shape
    flat = np.asarray(similarity, np.float64).reshape(math.prod(leading), patches, prompts)
    scores = np.ascontiguousarray(np.moveaxis(flat, -1, 0)) / smoothing
    kernel: FloatArray = np.exp(np.maximum(scores - scores.max(axis=-1, keepdims=True), -_DEEPEST))
    return kernel


def _column_scales(kernel: FloatArray, u: FloatArray, column_sum: float) -> FloatArray:
    """Return the v, (N, problems), for which all columns of the plan sum to column_sum."""
    scales: FloatArray = column_sum / np.einsum("jbi,bi->jb", kernel, u)
    return scales


def _fill(rows: FloatArray, mass: float) -> FloatArray:
    """Return the row sums min(t x_i, 1/M) nearest to x (problems, M), with t such that they sum to mass.

    sum_i min(t x_i, 1/M) is the least of k/M + t (sum of the M - k smallest x) over the number k of full rows,
    so t is the greatest of the values that make one of these equal to mass.
    """
    patches = rows.shape[1]
    if mass == 1:
        return np.full_like(rows, 1 / patches)
    full = np.arange(patches)
    sum_of_smallest = np.cumsum(np.sort(rows, axis=1), axis=1)[:, ::-1]
    level = ((mass - full / patches) / sum_of_smallest).max(axis=1, keepdims=True)
    filled: FloatArray = np.minimum(level * rows, 1 / patches)
    return filled

"""FedOTP (Li et al., CVPR 2024; "FedOPT" in the paper): optimal transport of patches to a global and a local prompt.

An image has M patch features g_m and a class has two features h_{c,j}, by the global (j = 0) and the local prompt
(j = 1), all of length one. With S_mj = <g_m, h_{c,j}>, the plan T (M, 2) with the largest <T, S> + lambda entropy(T)
takes at most 1 / M of each patch and gives gamma / 2 to each prompt (`algorithm/optimal_transport.py`), and

    z_c = s sum_mj T_mj S_mj.

Patches that fit neither prompt keep their mass. The server averages the global prompt; the local one stays. The two
begin differently, because equal prompts would stay equal. No gradient flows through the plan, as in the authors' code.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..algorithm.optimal_transport import transport
from ..clip.encoder import Encoder
from ..clip.frozen_clip import Clip
from ..clip.vision_towers import ResNetTower
from ..config import Section
from .base import NamedTensors, TwoTextPrompts, in_double

_Smoothing = Annotated[float, Field(gt=0)]


class _FedOTPOptions(Section):
    """Settings of FedOTP, as in its authors' scripts."""

    mass: float = Field(0.8, gt=0, le=1)
    """gamma: the share of the patches' mass that must be transported; 1 is balanced transport"""
    smoothing: _Smoothing | Literal["auto"] = "auto"
    """lambda of the entropy; auto: 0.1, and 0.01 with a ResNet, as its authors' scripts for each"""


class FedOTP(TwoTextPrompts):
    """A shared and a personal text prompt, joined by optimal transport over patches (FedOTP)."""

    title = "FedOTP"
    keeps_images = True
    everyone_first = True
    of_images = ()
    Options = _FedOTPOptions

    def frozen(self, encoder: Encoder, tokens: Tensor) -> Tensor:
        return encoder.patch_features(tokens)

    def images(self, encoder: Encoder, frozen: Tensor, params: NamedTensors) -> Tensor:
        return frozen

    def classes(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        """Return h_{c,j}, (2, C, d): the class features by both prompts."""
        return torch.stack([encoder.class_features(params[name]) for name in self.of_classes])

    def logits(self, encoder: Encoder, images: Tensor, classes: Tensor, params: NamedTensors) -> Tensor:
        """Return z_c = s sum_ij T_ij S_ij, (B, C); the gradient flows through S only, not through the plan T."""
        similarity = torch.einsum("bmd,jcd->bcmj", images, classes)
        plan = transport(in_double(similarity), mass=self.options.mass, smoothing=self.smoothing(encoder.clip))
        weighed = torch.from_numpy(plan).to(similarity) * similarity
        return encoder.clip.logit_scale * weighed.sum((-1, -2))

    def smoothing(self, clip: Clip) -> float:
        """Return the weight lambda of the entropy."""
        if self.options.smoothing != "auto":
            return float(self.options.smoothing)
        return 0.01 if isinstance(clip.vision, ResNetTower) else 0.1

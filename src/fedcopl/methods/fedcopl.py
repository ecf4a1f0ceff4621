"""FedCoPL (Guo et al., ICCV 2025), and what remains of it when something is left out."""

from typing import Literal

from torch import Tensor

from ..clip.encoder import Encoder
from ..clip.frozen_clip import Clip
from ..config import RunConfig, Section
from .base import Method, Named
from .promptfl import FrozenImages
from .prompts import Shape, visual_shape

SHARED = {"visual": ("visual",), "text": ("text",), "both": ("visual", "text"), "none": ()}


class FedCoPL(Method):
    """Visual and text prompts are trained; which are averaged is the setting `sharing.aggregate`: the visual ones."""

    title = "FedCoPL"
    is_ours = True

    def shared(self) -> tuple[str, ...]:
        return SHARED[self.config.sharing.aggregate]


class FedVPTOptions(Section):
    """Settings of FedVPT."""

    every_block: bool = True
    """prompts at every vision block, as VPT-deep has them; false: at as many as model.visual_depth says"""


class FedVPT(Method):
    """Visual prompts alone; the classes are CLIP's hand-written sentences."""

    title = "FedVPT"
    Options = FedVPTOptions
    of_classes = ()

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        model = self.config.model
        depth = "all" if self.options.every_block else model.visual_depth
        return {"visual": visual_shape(clip, model.model_copy(update={"visual_depth": depth}))}

    def shared(self) -> tuple[str, ...]:
        return ("visual",)

    def classes(self, encoder: Encoder, named: Named) -> Tensor:
        return encoder.class_features(None)


class ZeroShot(FrozenImages):
    """Nothing is trained."""

    title = "CLIP"
    trains = False
    single_round = True
    of_classes = ()

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        return {}

    def classes(self, encoder: Encoder, named: Named) -> Tensor:
        return encoder.class_features(None)


class PriorsOnly(ZeroShot):
    """Nothing is trained; answers are made through what the sites know without labels (`algorithm.priors`)."""

    is_ours = True


class CentralOptions(Section):
    """Settings of the centralised bounds."""

    labels: Literal["pseudo", "truth"] = "pseudo"
    """train on pseudo labels of all images in one place, or on their true labels: the upper bound"""


class Central(Method):
    """Both prompts, one client that holds everything."""

    title = "Central"
    pools = True
    Options = CentralOptions


def fedcopl(config: RunConfig) -> Method:
    """Visual prompts averaged, text prompts personal (FedCoPL)."""
    return FedCoPL(config)


def local(config: RunConfig) -> Method:
    """Both prompts trained by each client alone."""
    return Method(config)


def central(config: RunConfig) -> Method:
    """Both prompts trained on all images in one place: what federation is measured against."""
    return Central(config)


def fedvpt(config: RunConfig) -> Method:
    """Visual prompts averaged, hand-written sentences for the classes (FedVPT)."""
    return FedVPT(config)


def priors(config: RunConfig) -> Method:
    """No training: how the model leans, each site's mix of classes, and what classes look like, from sums."""
    return PriorsOnly(config)


def zeroshot(config: RunConfig) -> Method:
    """Plain CLIP, nothing trained."""
    return ZeroShot(config)

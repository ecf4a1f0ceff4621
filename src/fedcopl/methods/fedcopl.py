"""FedCoPL (Guo et al., ICCV 2025), its ablations, and baselines without federation."""

from typing import Literal

from ..clip.frozen_clip import Clip
from ..config import Section
from .base import FrozenImages, FrozenTexts, Method
from .prompts import Shape, visual_shape

_SHARED = {"visual": ("visual",), "text": ("text",), "both": ("visual", "text"), "none": ()}


class FedCoPL(Method):
    """Averaged visual prompts and personal text prompts (FedCoPL); `sharing.aggregate` changes which are averaged."""

    title = "FedCoPL"
    is_ours = True

    def shared(self) -> tuple[str, ...]:
        return _SHARED[self.config.sharing.aggregate]


class Local(Method):
    """Both prompts, trained by each client alone."""

    title = "Local"


class _FedVPTOptions(Section):
    """Settings of FedVPT."""

    every_block: bool = True
    """prompts at every vision block, as in VPT-deep; false: at the first model.visual_depth blocks"""


class FedVPT(FrozenTexts):
    """Averaged visual prompts and a fixed text template for the classes (FedVPT)."""

    title = "FedVPT"
    Options = _FedVPTOptions

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        model = self.config.model
        depth = "all" if self.options.every_block else model.visual_depth
        return {"visual": visual_shape(clip, model.model_copy(update={"visual_depth": depth}))}

    def shared(self) -> tuple[str, ...]:
        return ("visual",)


class ZeroShot(FrozenTexts, FrozenImages):
    """Zero-shot CLIP, nothing trained."""

    title = "CLIP"
    trains = False


class PriorsOnly(ZeroShot):
    """No training: logit bias, class priors and prototypes, estimated without labels."""

    is_ours = True


class _CentralOptions(Section):
    """Settings of the centralised baselines."""

    labels: Literal["pseudo", "truth"] = "pseudo"
    """train on pseudo labels of all images, or on their true labels (an upper bound)"""


class Central(Method):
    """Both prompts, trained on all images in one place (centralised baseline)."""

    title = "Central"
    centralised = True
    Options = _CentralOptions

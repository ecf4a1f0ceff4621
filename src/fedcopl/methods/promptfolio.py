"""PromptFolio (Pan et al., NeurIPS 2024): a fixed mixture of the features of a global and a local text prompt.

With h_G(c) and h_L(c) the normalised class features by the global and the local prompt,

    z_c(x) = s <f(x), (1 - theta) h_G(c) + theta h_L(c)>.

Both prompts are trained on this loss; the server averages the global one, the local one stays. The paper shows that
mixing them is like a portfolio of two assets: their noise partly cancels, and the best theta follows from variances.

Choices: theta = 0.4, as in the example of the authors' README; the mixture is not normalised again, as in a public
copy of their code (their own repository has byte code only), so that theta = 0 and 1 are exactly PromptFL and a local
prompt; the two prompts begin differently, as in FedOTP. Not built: a theta computed from the data.
"""

from pydantic import Field
from torch import Tensor

from ..clip.encoder import Encoder
from ..config import Section
from .base import FrozenImages, NamedTensors, TwoTextPrompts


class _PromptFolioOptions(Section):
    """Settings of PromptFolio."""

    theta: float = Field(0.4, ge=0, le=1)
    """weight of the local prompt's class features; 1 - theta is that of the global prompt's"""


class PromptFolio(TwoTextPrompts, FrozenImages):
    """A mixture of the class features by an averaged and a personal text prompt (PromptFolio)."""

    title = "PromptFolio"
    Options = _PromptFolioOptions

    def class_features(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        """Return (1 - theta) h_G + theta h_L, (C, d), not normalised."""
        h_global, h_local = (encoder.class_features(params[name]) for name in self.class_arrays)
        theta: float = self.options.theta
        return (1 - theta) * h_global + theta * h_local

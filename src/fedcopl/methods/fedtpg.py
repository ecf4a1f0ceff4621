"""FedTPG (Qiu et al., ICLR 2024): a prompt generator, averaged, that makes the text prompt from the class names.

With E (C, d) the frozen class features from the text template and learnt queries Q (m, w),

    A = attention(LN(Q) W_q, LN(E) W_k, LN(E) W_v) W_o,    P = A + W_2 GEGLU(W_1 LN(A)),

where attention has four heads with scores over sqrt(w / 4), and GEGLU(a, b) = a gelu(b) has four times the width. P is
the context of all classes. The server averages the whole generator, so clients with different classes share it, and it
makes a prompt for classes that nobody trained on.

Choices: one cross-attention and one feed-forward block. E is from the run's template; the authors' code encodes the
class names alone. The layer norms have no scale and offset and the keys no bias, which would change nothing. Layers
begin uniform in +- 1 / sqrt(inputs), torch's default, and the queries normal, as in the authors' code; so the first
prompt is not neutral. Training is our SGD. Not built: the self-attention blocks and prompts of deeper layers that the
authors' generator can also have.
"""

from pydantic import Field
from torch import Tensor

from ..clip.encoder import Array, Encoder
from ..clip.frozen_clip import Clip
from ..config import Section
from ..errors import ConfigError
from .base import FrozenImages, NamedTensors
from .cross_attention import LAYERS, cross_attention, layer_shapes, standardised
from .prompts import Shape, initial_layers, random_prompts, text_shape

_GENERATOR = ("queries", *LAYERS)


class _FedTPGOptions(Section):
    """Settings of FedTPG."""

    heads: int = Field(4, ge=1)
    """heads of the cross-attention"""


class FedTPG(FrozenImages):
    """A generator of the text prompt from the class names, averaged (FedTPG)."""

    title, display_names = "FedTPG", dict.fromkeys(_GENERATOR, "prompt generators")
    class_arrays = _GENERATOR
    Options = _FedTPGOptions

    def shapes(self, clip: Clip, classes: int) -> dict[str, Shape]:
        vectors, width = text_shape(clip, self.config.model)
        if width % self.options.heads:
            raise ConfigError(f"options.heads: must divide the {width} dimensions of a text prompt")
        return {"queries": (vectors, width)} | layer_shapes(width, clip.feature_size)

    def shared(self) -> tuple[str, ...]:
        return _GENERATOR

    def start(self, clip: Clip, classes: int) -> dict[str, Array]:
        """Return normal queries, and layers uniform in +- 1 / sqrt(inputs)."""
        shapes, config = self.shapes(clip, classes), self.config
        queries = random_prompts({"queries": shapes.pop("queries")}, config.train.init_std, config.seed)
        return queries | initial_layers(shapes, config.seed)

    def class_features(self, encoder: Encoder, params: NamedTensors) -> Tensor:
        """Return the class features, (C, d), by the generated context P, (m, w)."""
        texts = standardised(encoder.class_features(None))
        context = cross_attention(standardised(params["queries"]), texts, texts, params, self.options.heads)
        return encoder.class_features(context)

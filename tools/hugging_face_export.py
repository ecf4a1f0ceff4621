"""Export of our towers in the layout of a Hugging Face `CLIPModel`."""

from collections.abc import Iterator

from torch import Tensor, nn

from fedcopl.clip.formats.hugging_face import CLIP_TEXT, CLIP_VISION
from fedcopl.clip.formats.layouts import WeightNames
from fedcopl.clip.text_towers import TextTower
from fedcopl.clip.vision_towers import VisionTower


def to_hugging_face(vision: VisionTower, text: TextTower, scale: Tensor) -> dict[str, Tensor]:
    """Convert our towers to the state dict of a Hugging Face `CLIPModel`."""
    weights = dict(_export(vision, CLIP_VISION)) | dict(_export(text, CLIP_TEXT)) | {"logit_scale": scale}
    return {name: value.detach().contiguous() for name, value in weights.items()}


def _export(tower: nn.Module, names: WeightNames) -> Iterator[tuple[str, Tensor]]:
    for parameter, weight in tower.state_dict().items():
        stored = names.all_of(parameter)
        yield from zip(stored, weight.chunk(len(stored)), strict=True)

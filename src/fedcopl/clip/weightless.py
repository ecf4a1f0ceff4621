"""The paper's models in their true sizes but without weights: for working out what a run costs before they are here."""

from collections.abc import Callable, Mapping

from .blocks import TowerShape
from .formats.layouts import Parts, unfilled
from .frozen_clip import Clip
from .preprocess import ImageTransform
from .resnet import ResNetTower
from .text_towers import CausalText, ReadUpToEnd
from .tokenizer import clip_tokenizer
from .vision_tower import VisionTower

SIDE = 224
BASE, LARGE = TowerShape(768, 12, 12, 3072), TowerShape(1024, 24, 16, 4096)
BASE_TEXT, LARGE_TEXT = TowerShape(512, 12, 8, 2048), TowerShape(768, 12, 12, 3072)


def _transformer(shape: TowerShape, patch: int, output: int) -> VisionTower:
    return VisionTower(shape, patch=patch, image=SIDE, output=output, patch_bias=False, norm_first=True)


def _text(shape: TowerShape, output: int) -> CausalText:
    return CausalText(shape, vocabulary=49408, positions=77, output=output)


NAMED: Mapping[str, Callable[[], tuple[VisionTower | ResNetTower, CausalText]]] = {
    "ViT-B/32": lambda: (_transformer(BASE, 32, 512), _text(BASE_TEXT, 512)),
    "ViT-B/16": lambda: (_transformer(BASE, 16, 512), _text(BASE_TEXT, 512)),
    "ViT-L/14": lambda: (_transformer(LARGE, 14, 768), _text(LARGE_TEXT, 768)),
    "RN50": lambda: (ResNetTower(stem=64, depths=(3, 4, 6, 3), image=SIDE, output=1024), _text(BASE_TEXT, 1024)),
}


def weightless_clip(name: str) -> Clip:
    """One of OpenAI's, by its short name. Computing with it gives shapes and no numbers."""
    with unfilled():
        vision, text = NAMED[name]()
    parts = Parts(vision, text, 100.0, clip_tokenizer(pad_id=0), ImageTransform(SIDE, SIDE), ReadUpToEnd(None))
    return Clip(name, parts)

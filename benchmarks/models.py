"""CLIP models of real size with random weights; the speed does not depend on the weights."""

import torch

from fedcopl.clip.blocks import TowerShape
from fedcopl.clip.text_towers import CausalText
from fedcopl.clip.vision_towers import VisionTower

START, END = 49406, 49407


def towers() -> tuple[VisionTower, CausalText]:
    """Return the towers of ViT-B/32 with uninitialised weights."""
    vision = VisionTower(
        TowerShape(768, 12, 12, 3072), patch_size=32, image_size=224, output=512, patch_bias=False, norm_first=True
    )
    return vision, CausalText(TowerShape(512, 12, 8, 2048), vocabulary=49408, positions=77, output=512)


def vit_b32() -> tuple[VisionTower, CausalText]:
    """Return frozen towers of ViT-B/32 with random weights."""
    vision, text = towers()
    generator = torch.Generator().manual_seed(0)
    for tower in (vision, text):
        for parameter in tower.parameters():
            torch.nn.init.normal_(parameter, std=0.02, generator=generator)
        tower.requires_grad_(False).eval()
    return vision, text


def class_rows(classes: int) -> list[list[int]]:
    """Return token ids of class names with 1 to 5 tokens and a full stop, in CLIP's vocabulary."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 6, (classes,), generator=generator).tolist()
    return [
        [START, *torch.randint(1000, 40000, (length,), generator=generator).tolist(), 269, END] for length in lengths
    ]

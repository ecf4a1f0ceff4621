"""One way of doing the training step, in a process of its own: does a step for each line it reads, and tells the time.

    python -m benchmarks.step_worker fast|plain CLASSES

Processes of their own, because how memory is kept is a choice for a whole process, and it is part of the fast path.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcopl.clip.device import keep_freed_memory
from fedcopl.clip.towers import TextTower, VisionTower, split_sentences

from .measure import seconds
from .models import class_rows, vit_b32

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from clip.plain_clip import by_torch, plain_text, plain_vision

BATCH, VECTORS, CONTEXT = 64, 5, 16


class Step:
    """Loss and gradients of one batch, both ways, from the same numbers."""

    def __init__(self, vision: VisionTower, text: TextTower, classes: int):
        generator = torch.Generator().manual_seed(2)
        self.vision, self.text = vision, text
        self.rows = class_rows(classes)
        self.sentences = split_sentences(self.rows)
        self.pixels = torch.randn(BATCH, 3, vision.image, vision.image, generator=generator)
        self.tokens = vision.embed(self.pixels)
        self.label = torch.randint(classes, (BATCH,), generator=generator)
        levels, width = vision.usual_prompt_levels, vision.prompt_width
        self.visual = (torch.randn(levels, VECTORS, width, generator=generator) * 0.02).requires_grad_()
        self.context = (torch.randn(CONTEXT, text.shape.width, generator=generator) * 0.02).requires_grad_()

    def fast(self) -> None:
        self._backward(self.vision(self.tokens, tuple(self.visual)), self.text(self.sentences, self.context))

    def plain(self) -> None:
        images = plain_vision(self.vision, self.vision.embed(self.pixels), self.visual, by_torch)
        self._backward(images, plain_text(self.text, self.rows, self.context, by_torch))

    def _backward(self, images: Tensor, classes: Tensor) -> None:
        self.visual.grad = self.context.grad = None
        logits = 100 * F.normalize(images, dim=-1) @ F.normalize(classes, dim=-1).T
        F.cross_entropy(logits, self.label).backward()


def quick_gelu_of_the_public_code(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def main(way: str, classes: int) -> None:
    vision, text = vit_b32()
    if way == "fast":
        keep_freed_memory()
    else:
        for block in (*vision.blocks, *text.blocks):
            block.activate = quick_gelu_of_the_public_code
    step = Step(vision, text, classes)
    work = step.fast if way == "fast" else step.plain
    work()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(seconds(work), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""One training step of both prompts on ViT-B/32: the fast path against the plain one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcopl.model.towers import TextTower, VisionTower, split_sentences

from .measure import Line, matmul_peak, side_by_side
from .models import class_rows, vit_b32

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from model.plain_clip import by_torch, plain_text, plain_vision

BATCH, VECTORS, CONTEXT = 64, 5, 16
REACH = {47: 1.9, 100: 2.8, 200: 4.0}


def training_step() -> Iterator[Line]:
    vision, text = vit_b32()
    for classes, reach in REACH.items():
        step = Step(vision, text, classes)
        ours, plain = side_by_side(step.fast, step.plain, repeats=3)
        detail = f"{ours:.2f} s against {plain:.2f} s"
        yield Line(
            f"training step, B/32, batch {BATCH}, {classes} classes",
            "plain",
            plain / ours,
            reach,
            detail=detail,
        )
        if classes == 47:
            yield efficiency(vision, text, ours, step)


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


def efficiency(vision: VisionTower, text: TextTower, took: float, step: Step) -> Line:
    """The share of the machine's matrix-product peak that the training step gets."""
    peak = matmul_peak(BATCH * step.tokens.shape[1], vision.shape.width, vision.shape.hidden)
    rate = step_flops(vision, text, step) / took
    detail = f"{rate / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s"
    return Line("FLOP/s of the training step", "a bare torch.mm", rate / peak, 0.75, detail=detail)


def step_flops(vision: VisionTower, text: TextTower, step: Step) -> float:
    """FLOP that the fast path really does, forward and backward through activations (no weight gradients)."""
    tokens = step.tokens.shape[1]
    image = vision_forward_flops(vision, tokens)
    shared, rest = len(step.sentences.shared) + CONTEXT, step.sentences.rest.shape[1]
    words = text_forward_flops(text, shared, rest, len(step.rows))
    first = vision_forward_flops(vision, tokens) / vision.shape.depth  # its image path needs no backward
    return BATCH * (2 * image - first) + 2 * words


def vision_forward_flops(vision: VisionTower, tokens: int) -> float:
    width, hidden, depth = vision.shape.width, vision.shape.hidden, vision.shape.depth
    per_token = 2 * (4 * width * width + 2 * width * hidden)
    attention = 4 * tokens * (tokens + VECTORS) * width
    last = 2 * (2 * width * width) * tokens + 2 * (2 * width * width + 2 * width * hidden) + 4 * tokens * width
    return (depth - 1) * (tokens * per_token + attention) + last


def text_forward_flops(text: TextTower, shared: int, rest: int, classes: int) -> float:
    width, hidden, depth = text.shape.width, text.shape.hidden, text.shape.depth
    tokens = shared + classes * rest
    per_token = 2 * (4 * width * width + 2 * width * hidden)
    attention = 4 * width * (shared * shared + classes * rest * (shared + rest))
    return (depth - 1) * (tokens * per_token + attention)

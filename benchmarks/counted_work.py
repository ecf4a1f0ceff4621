"""FLOP that the fast path saves, by torch's counter; they do not depend on the machine."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedcopl.clip.formats.layouts import without_weights
from fedcopl.clip.text_towers import split_sentences

from .measure import Line, counted
from .models import class_rows, towers
from .step_worker import CONTEXT, VECTORS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from clip.plain_clip import attention_by_torch, plain_text, plain_vision

BATCH, CLASSES = 64, (47, 100, 200)


def counted_work() -> Iterator[Line]:
    for classes in CLASSES:
        fast, plain = step_flop(classes)
        detail = f"{fast / 1e12:.2f} TFLOP against {plain / 1e12:.2f} TFLOP"
        what = f"FLOP of a training step, batch {BATCH}, {classes} classes"
        yield Line(f"flop-{classes}", what, "plain", counted(plain / fast), detail=detail)


def step_flop(classes: int, batch: int = BATCH) -> tuple[int, int]:
    """Return the FLOP of a training step of ViT-B/32 on the fast path and on the plain one, without weights."""
    with without_weights():
        vision, text = towers()
    rows = class_rows(classes)
    with torch.device("meta"):
        pixels = torch.empty(batch, 3, vision.image_size, vision.image_size)
        visual = torch.empty(vision.usual_prompt_levels, VECTORS, vision.prompt_width, requires_grad=True)
        context = torch.empty(CONTEXT, text.shape.width, requires_grad=True)
        tokens, sentences = vision.embed(pixels), split_sentences(rows).to(torch.device("meta"))

        def fast() -> Tensor:
            return vision(tokens, tuple(visual)) @ text(sentences, context).T

        def plain() -> Tensor:
            images = plain_vision(vision, vision.embed(pixels), visual, attention_by_torch)
            return images @ plain_text(text, rows, context, attention_by_torch).T

        return _flop(fast), _flop(plain)


def _flop(work: Callable[[], Tensor]) -> int:
    with FlopCounterMode(display=False) as counter:
        work().sum().backward()
    return counter.get_total_flops()

"""A process that measures training steps on the fast path or on the plain one.

    python -m benchmarks.step_worker fast|plain CLASSES BATCH

For each line `step` on stdin it prints the seconds of a step, for each line `peak` the FLOP/s of bare matrix products
with the same threads. Each path has its own process, because memory allocation, a part of the fast path, is configured
for a whole process.
"""

import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fedcopl.clip.device import keep_freed_memory
from fedcopl.clip.text_towers import CausalText, split_sentences
from fedcopl.clip.vision_towers import VisionTower

from .measure import seconds
from .models import class_rows, vit_b32

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from clip.plain_clip import attention_by_torch, plain_text, plain_vision

VECTORS, CONTEXT = 5, 16
PATHS = ("fast", "plain")
PEAK_TRIES = 3


class Step:
    """Loss and gradients of one batch, on the fast path and on the plain one, from the same inputs."""

    def __init__(self, vision: VisionTower, text: CausalText, classes: int, batch: int):
        generator = torch.Generator().manual_seed(2)
        self.vision, self.text = vision, text
        self.rows = class_rows(classes)
        self.sentences = split_sentences(self.rows)
        self.pixels = torch.randn(batch, 3, vision.image_size, vision.image_size, generator=generator)
        self.tokens = vision.embed(self.pixels)
        self.label = torch.randint(classes, (batch,), generator=generator)
        levels, width = vision.usual_prompt_levels, vision.prompt_width
        self.visual = (torch.randn(levels, VECTORS, width, generator=generator) * 0.02).requires_grad_()
        self.context = (torch.randn(CONTEXT, text.shape.width, generator=generator) * 0.02).requires_grad_()

    def fast(self) -> None:
        self._backward(self.vision(self.tokens, tuple(self.visual)), self.text(self.sentences, self.context))

    def plain(self) -> None:
        images = plain_vision(self.vision, self.vision.embed(self.pixels), self.visual, attention_by_torch)
        self._backward(images, plain_text(self.text, self.rows, self.context, attention_by_torch))

    def _backward(self, images: Tensor, classes: Tensor) -> None:
        self.visual.grad = self.context.grad = None
        logits = 100 * F.normalize(images, dim=-1) @ F.normalize(classes, dim=-1).T
        F.cross_entropy(logits, self.label).backward()


def plain_quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def matmul_peak(step: Step) -> float:
    """Return the highest FLOP per second of bare matrix products with the shapes of the image encoder."""
    width, hidden, rows = step.vision.shape.width, step.vision.shape.hidden, step.tokens.shape[0] * step.tokens.shape[1]
    return max(_product_rate(rows, *shape) for shape in ((width, hidden), (hidden, width), (width, 3 * width)))


def _product_rate(rows: int, inner: int, columns: int) -> float:
    a, b = torch.randn(rows, inner), torch.randn(columns, inner)
    out = torch.empty(rows, columns)
    best = min(seconds(lambda: torch.mm(a, b.T, out=out)) for _ in range(PEAK_TRIES))
    return 2 * rows * inner * columns / best


class StepWorker:
    """A started `step_worker` process that is ready for requests."""

    def __init__(self, path: str, classes: int, batch: int):
        command = [sys.executable, "-m", "benchmarks.step_worker", path, str(classes), str(batch)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._line() != "ready":
            raise RuntimeError(f"the {path} step failed")

    def request(self, measurement: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{measurement}\n")
        self._process.stdin.flush()
        return float(self._line())

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def main(path: str, classes: int, batch: int) -> None:
    vision, text = vit_b32()
    if path == "fast":
        keep_freed_memory()
    else:
        for block in (*vision.blocks, *text.blocks):
            block.activate = plain_quick_gelu
    step = Step(vision, text, classes, batch)
    work = step.fast if path == "fast" else step.plain
    work()
    print("ready", flush=True)
    for line in sys.stdin:
        print(seconds(work) if line == "step\n" else matmul_peak(step), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

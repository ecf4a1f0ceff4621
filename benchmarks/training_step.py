"""One training step of both prompts on ViT-B/32: the fast path against the plain one."""

import statistics
import subprocess
import sys
from collections.abc import Iterator

from fedcopl.clip.towers import TextTower, VisionTower

from .measure import Line, matmul_peak
from .models import vit_b32
from .step_worker import BATCH, CONTEXT, VECTORS, Step

REACH = {47: 1.9, 100: 2.8, 200: 4.0}
TURNS = 3


def training_step() -> Iterator[Line]:
    for classes, reach in REACH.items():
        ours, plain = in_turns(classes)
        what = f"training step, B/32, batch {BATCH}, {classes} classes"
        yield Line(what, "plain", plain / ours, reach, detail=f"{ours:.2f} s against {plain:.2f} s")
        if classes == min(REACH):
            yield efficiency(ours, classes)


def in_turns(classes: int) -> tuple[float, float]:
    """Median seconds of a fast and of a plain step, each in its own process, one at a time and by turns."""
    workers = [_worker(way, classes) for way in ("fast", "plain")]
    try:
        turns = [[_one_step(worker) for worker in workers] for _ in range(TURNS)]
    finally:
        for worker in workers:
            worker.kill()
    ours, plain = (statistics.median(column) for column in zip(*turns, strict=True))
    return ours, plain


def _worker(way: str, classes: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.step_worker", way, str(classes)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    if worker.stdout.readline().strip() != "ready":
        raise RuntimeError(f"the {way} step failed")
    return worker


def _one_step(worker: "subprocess.Popen[str]") -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def efficiency(took: float, classes: int) -> Line:
    """The share of the machine's matrix-product peak that the training step gets."""
    vision, text = vit_b32()
    step = Step(vision, text, classes)
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
    first = 2 * 3 * vision.shape.width**2 * tokens  # queries, keys and values of the first block need no backward
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

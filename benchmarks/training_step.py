"""One training step of both prompts on ViT-B/32: the fast path against the plain one and the machine's peak."""

from collections.abc import Iterator
from contextlib import contextmanager

from .counted_work import step_flop
from .measure import Line, Turns, by_turns, share_of_peak
from .step_worker import WAYS, StepWorker

BATCH = 64
REACH = {47: 2.2, 100: 4.0, 200: 5.5}
PEAK_REACH = 0.75
TURNS = 5


def training_step() -> Iterator[Line]:
    for classes, reach in REACH.items():
        with workers(classes, BATCH) as (fast, plain):
            yield from measured_step(fast, plain, classes, BATCH, reach, PEAK_REACH)


@contextmanager
def workers(classes: int, batch: int) -> Iterator[tuple[StepWorker, ...]]:
    """The fast and the plain step, each in its own process."""
    started = [StepWorker(way, classes, batch) for way in WAYS]
    try:
        yield tuple(started)
    finally:
        for worker in started:
            worker.stop()


def measured_step(
    fast: StepWorker,
    plain: StepWorker,
    classes: int,
    batch: int,
    reach: float | None = None,
    peak_reach: float | None = None,
    turns: int = TURNS,
) -> Iterator[Line]:
    """Against the plain step; then the share of the machine's peak in products of matrices that the step gets."""
    against = by_turns(lambda: fast.request("step"), lambda: plain.request("step"), turns)
    shape = f"B/32, batch {batch}, {classes} classes"
    key = f"{classes}-batch-{batch}"
    yield Line(f"step-{key}", f"training step, {shape}", "plain", against.ratio, reach, detail=against.in_seconds)
    work, peaks = (
        step_flop(classes, batch)[0],
        by_turns(lambda: fast.request("step"), lambda: fast.request("peak"), turns),
    )
    share = peaks.why_not or share_of_peak([work / took for took, _ in peaks.pairs], [peak for _, peak in peaks.pairs])
    detail = roofline(work, peaks, against)
    yield Line(f"peak-{key}", f"FLOP/s of the step, {shape}", "a bare torch.mm", share, peak_reach, detail=detail)


def roofline(work: float, peaks: Turns, against: Turns) -> str:
    """What the step reaches, and how it would stand against the plain one if it reached all of the peak."""
    (took, _), (_, plain) = peaks.medians, against.medians
    best = max((peak for _, peak in peaks.pairs), default=float("nan"))
    reached = f"{work / took / 1e9:.0f} of {best / 1e9:.0f} GFLOP/s"
    return f"{reached}; with all of them it would be {plain * best / work:.2f}x of plain"

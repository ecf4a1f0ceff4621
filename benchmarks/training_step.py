"""A training step of both prompts on ViT-B/32: the fast path compared with the plain one and the machine's peak."""

from collections.abc import Iterator
from contextlib import contextmanager

from .counted_work import step_flop
from .measure import Line, PairedTurns, measure_alternately, share_of_peak
from .step_worker import PATHS, StepWorker

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
    """Start a process for the fast path and one for the plain path."""
    started = [StepWorker(path, classes, batch) for path in PATHS]
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
    """Measure the step against the plain one, then its share of the machine's peak in matrix products."""
    against = measure_alternately(lambda: fast.request("step"), lambda: plain.request("step"), turns)
    shape = f"B/32, batch {batch}, {classes} classes"
    key = f"{classes}-batch-{batch}"
    yield Line(f"step-{key}", f"training step, {shape}", "plain", against.ratio, reach, detail=against.in_seconds)
    work, _ = step_flop(classes, batch)
    peaks = measure_alternately(lambda: fast.request("step"), lambda: fast.request("peak"), turns)
    rates = [work / seconds for seconds, _ in peaks.pairs]
    share = peaks.failure or share_of_peak(rates, [peak for _, peak in peaks.pairs])
    detail = roofline(work, peaks, against)
    yield Line(f"peak-{key}", f"FLOP/s of the step, {shape}", "a bare torch.mm", share, peak_reach, detail=detail)


def roofline(work: float, peaks: PairedTurns, against: PairedTurns) -> str:
    """Describe the FLOP/s of the step, and its ratio to the plain step if it reached the peak."""
    (seconds, _), (_, plain) = peaks.medians, against.medians
    best = max((peak for _, peak in peaks.pairs), default=float("nan"))
    reached = f"{work / seconds / 1e9:.0f} of {best / 1e9:.0f} GFLOP/s"
    return f"{reached}; with all of them it would be {plain * best / work:.2f}x of plain"

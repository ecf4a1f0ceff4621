"""Checks on the sums of the estimation, in clients' replies and in the totals of the server."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..algorithm import FloatArray
from ..plurals import counted
from .statistics import LOWEST, Statistic, Step, split_sums, symmetric

SLACK = 1e-3  # relative tolerance for rounding errors
_MAX_LOG_RATIO = 700.0  # nats: the maximum evidence of one image


def validate_sums(
    step: Step, sums: FloatArray, classes: int, width: int, images: float | None, own: FloatArray | None = None
) -> str | None:
    """Return why `sums` cannot be the sums of a step's statistics over any set of images; None if they can.

    Args:
        step: The statistics.
        sums: The sums of one client, or the totals over all clients, as one flat array.
        classes: C.
        width: d.
        images: The number of images; None: not known yet.
        own: The sums of the client that checks the totals, which must contain them; None: not checked.
    """
    if not np.isfinite(sums).all():
        return "not all sums are finite"
    parts = split_sums(step, sums, classes, width)
    own_parts = [None] * len(step) if own is None else split_sums(step, own, classes, width)
    for statistic, part, own_part in zip(step, parts, own_parts, strict=True):
        if statistic.kind == "logits":  # in the first step, which has the number of images
            count = float(sums[0] if step[0].kind == "moments" else sums[:classes].sum())
            if np.abs(part).max(initial=0.0) > -LOWEST * count + 1:
                return "the logits are too large for the number of images"
            continue
        for error in _errors_in_sums(statistic, part, own_part, classes, width, images):
            return error
    return None


def _errors_in_sums(
    statistic: Statistic, sums: FloatArray, own: FloatArray | None, classes: int, width: int, images: float | None
) -> Iterator[str]:
    """Yield each reason why no images can have these sums of one statistic."""
    match statistic.kind:
        case "moments":
            yield from _errors_in_moments(sums, own, classes, width, images)
        case "predicted" | "view_sums":
            rows, own_rows = sums.reshape(-1, classes), None if own is None else own.reshape(-1, classes)
            yield from _errors_in_class_counts(rows, own_rows, images, exact=True)
        case "class_sums":
            counts, totals = sums[:, :, 0], sums[:, :, 1:]
            own_counts = None if own is None else own[:, :, 0]
            yield from _errors_in_class_counts(counts, own_counts, images, exact=False)  # small classes are withheld
            if (np.linalg.norm(totals, axis=2) > counts + _slack(counts.sum())).any():
                yield "the feature sum of a class has a norm above its number of images"
        case _:
            if images is not None and np.abs(sums).max(initial=0.0) > _MAX_LOG_RATIO * images + 1:
                yield "the evidence is too large for the number of images"


def _errors_in_moments(
    sums: FloatArray, own: FloatArray | None, classes: int, width: int, images: float | None
) -> Iterator[str]:
    """Yield each reason why no images can have these moments (`Statistic`) and this number."""
    count, total = float(sums[0]), sums[1 + classes : 1 + classes + width]
    if count < 0 or (images is not None and abs(count - images) > _slack(images)):
        yield f"the sums are over {counted(count, 'image')} instead of {0 if images is None else images:,.0f}"
        return
    own_counts = None if own is None else own[None, 1 : 1 + classes]
    yield from _errors_in_class_counts(sums[None, 1 : 1 + classes], own_counts, count, exact=True)
    if np.linalg.norm(total) > count + _slack(count):
        yield "the feature sum has a norm above the number of images"
    square = symmetric(sums[1 + classes + width :], width)
    if abs(np.trace(square) - count) > _slack(count):
        yield "the features do not have unit norm"
    contained = square if own is None else square - symmetric(own[1 + classes + width :], width)
    if own is not None and count < own[0] - _slack(count):
        yield "the totals do not contain this client's own images"
    try:
        np.linalg.cholesky(contained + _slack(count) * np.eye(width))
    except np.linalg.LinAlgError:
        yield "the second moments are not positive semidefinite"


def _errors_in_class_counts(
    rows: FloatArray, own: FloatArray | None, images: float | None, *, exact: bool
) -> Iterator[str]:
    """Yield each reason why no images have these class counts, (J, C); a row may sum to less unless `exact`."""
    slack = _slack(0.0 if images is None else images)
    if rows.min(initial=0.0) < -slack:
        yield "a class has a negative number of images"
    if images is not None:
        difference = rows.sum(axis=1) - images
        if (np.abs(difference) if exact else difference).max(initial=0.0) > slack:
            yield f"the classes do not add up to {counted(images, 'image')}"
    if own is not None and (rows < own - slack).any():
        yield "the totals do not contain this client's own images"


def _slack(images: float) -> float:
    return float(SLACK * (1 + abs(images)))


def images_of(step: Step, sums: Sequence[float] | FloatArray, classes: int) -> int | None:
    """Return the number of images in the sums of a first step; None if they do not contain it."""
    match step[0].kind:
        case "moments":
            return round(float(sums[0]))
        case "predicted":
            return round(float(np.sum(sums[:classes])))
    return None

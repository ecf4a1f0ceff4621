"""Which sums over images no images have: what many sites tell for the priors, looked at in one go."""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..messages import Adapt
from ..privacy.masked_layout import Values
from .adaptation import LARGEST_SQUARE

SLACK = 1e-3  # share by which sums of rounded numbers may differ from what they are exactly
UNKNOWN = math.nan  # number of images: nothing is more or less than that

Doubt = tuple[NDArray[np.bool_], Callable[[int], str]]
"""Which rows are impossible, and the words for one of them."""


def images_in(ask: Adapt, sums: Values) -> int:
    """n, as the first sums of the priors tell it."""
    return round(float(_images_said(ask, sums[None])[0]))


def tells_images(ask: Adapt) -> bool:
    return ask.wanted in ("features", "predicted")


def _images_said(ask: Adapt, rows: Values) -> Values:
    """n, row by row."""
    return rows[:, 0] if ask.wanted == "features" else rows[:, : rows.shape[1] // max(len(ask.readings), 1)].sum(axis=1)


def impossible_sums(ask: Adapt, rows: Values, classes: int, images: Values) -> dict[int, str]:
    """Row -> why no images have these sums; (K, S), of one site each, or of all together.

    `images` is n of each row, UNKNOWN where nobody has said it. A row that is not named is fine.
    """
    if tells_images(ask):
        images = np.where(np.isnan(images), np.round(_images_said(ask, rows)), images)
    found: dict[int, str] = {}
    for is_wrong, words in _doubts(ask, rows, classes, images):
        for row in np.flatnonzero(is_wrong).tolist():
            found.setdefault(row, words(row))
    return found


def _doubts(ask: Adapt, rows: Values, classes: int, images: Values) -> Iterator[Doubt]:
    match ask.wanted:
        case "features":
            yield from _about_features(rows, ask.width, images)
        case "predicted":
            yield from _about_mixes(rows.reshape(len(rows), -1, classes), images)
        case "explained":
            yield from _about_evidence(ask, rows, classes, images)
        case "classes":
            yield from _about_classes(rows[:, :classes], rows[:, classes:].reshape(len(rows), classes, -1), images)


def _about_features(rows: Values, width: int, images: Values) -> Iterator[Doubt]:
    """n, F and G of features of length one: |F| <= n, trace G = n, and n G - F F^T has no negative direction."""
    count, total, square = rows[:, 0], rows[:, 1 : 1 + width], rows[:, 1 + width :]
    yield (
        _differ(count, images),
        lambda row: f"its features are of {count[row]:,.0f} images, but it has {images[row]:,.0f} by its own word",
    )
    too_long = np.linalg.norm(total, axis=1) > _at_most(count)
    yield too_long, lambda row: f"its features are too long for {count[row]:,.0f} images"
    if width > LARGEST_SQUARE:
        yield _differ(square[:, 0], count), lambda _: "its features do not have length one"
        return
    spread = square.reshape(-1, width, width)
    yield _differ(np.trace(spread, axis1=1, axis2=2), count), lambda _: "its features do not have length one"
    around = count[:, None, None] * (spread + spread.swapaxes(1, 2)) / 2 - total[:, :, None] * total[:, None, :]
    least = -_slack(count) * np.maximum(count, 1.0)
    yield ~_have_no_direction_below(least, around), lambda _: "no features have such a spread"


def _have_no_direction_below(least: Values, squares: Values) -> NDArray[np.bool_]:
    """Whose eigenvalues are all at least that: if Cholesky's roots exist, which is a tenth of the work."""
    try:
        np.linalg.cholesky(squares - least[:, None, None] * np.eye(squares.shape[1]))
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.eigvalsh(squares)[:, 0] >= least)
    return np.ones(len(squares), bool)


def _about_mixes(mixes: Values, images: Values) -> Iterator[Doubt]:
    """Posteriors of each image sum to one, so each mix, (K, J, C), sums to n."""
    slack = _slack(np.nan_to_num(images))
    yield mixes.min(axis=(1, 2), initial=0.0) < -slack, lambda _: "tells less than no image of a class"
    furthest = abs(mixes.sum(axis=2) - images[:, None]).max(axis=1, initial=0.0)
    yield furthest > slack, lambda row: f"its classes are not of {images[row]:,.0f} images in all"


def _about_evidence(ask: Adapt, rows: Values, classes: int, images: Values) -> Iterator[Doubt]:
    """The site's own mix explains its images no worse than that of all, and by at most log 1/t an image."""
    readings = len(ask.readings)
    evidence, sure = rows[:, :readings], rows[:, readings * (classes + 1) :]
    yield from _about_mixes(rows[:, readings : readings * (classes + 1)].reshape(len(rows), readings, classes), images)
    rarest = min((float(reading["mix"].min()) for reading in ask.readings), default=1.0)
    most = images * max(math.log(1 / max(rarest, 1e-300)), 0.0)
    beyond = (evidence.min(axis=1, initial=0.0) < -_slack(images)) | (
        evidence.max(axis=1, initial=0.0) > _at_most(most)
    )
    yield beyond, lambda row: f"its evidence is beyond that of {images[row]:,.0f} images"
    surer = (sure.min(axis=1) < -_slack(images)) | (sure.max(axis=1) > _at_most(images))
    yield surer, lambda _: "is surer than of all its images"


def _about_classes(held: Values, total: Values, images: Values) -> Iterator[Doubt]:
    """N and S of features of length one: N >= 0, sum N = n, |S_c| <= N_c."""
    yield from _about_mixes(held[:, None], images)
    far = np.linalg.norm(total, axis=2) > held + _slack(held.sum(axis=1))[:, None]
    yield far.any(axis=1), lambda _: "the features of a class are too long for its images"


def _differ(numbers: Values, wanted: Values) -> NDArray[np.bool_]:
    return np.asarray(abs(numbers - wanted) > _slack(wanted))


def _at_most(numbers: Values) -> Values:
    return numbers + _slack(numbers)


def _slack(numbers: Values) -> Values:
    slack: Values = SLACK * (1 + abs(numbers))
    return slack

"""What a classifier says about images, batch by batch, however many there are."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..clip.encoder import ENCODE_BATCH as BATCH  # as in an exam: the same images have the same bits
from ..data.cache import Cut
from ..data.decoding import BadImage, DecodeOptions
from ..data.images import silence_decoders
from ..data.in_memory import GivenPicture, open_picture, pages_of
from ..data.parallel import in_order

AskClassifier = Callable[[NDArray[np.uint8]], NDArray[np.float64]]
"""Pixels (n, 3, side, side) to log p (n, C)."""


class NamedImages(NamedTuple):
    """An image and what to call it."""

    name: str
    picture: GivenPicture


class Answer(NamedTuple):
    """What is said about one image."""

    image: str
    label: str | None  # None when the classifier abstains, or the image cannot be read
    probability: float | None  # of the most probable class
    abstains: bool | None  # None when no threshold is known
    problem: str | None  # why the image cannot be read
    top: tuple[tuple[str, float], ...]  # the most probable classes, whether it abstains or not


@dataclass(frozen=True)
class AnswerBatch:
    """Some images, decoded and cut to the model's size; those that cannot be have a reason instead."""

    names: Sequence[str]
    pixels: NDArray[np.uint8]  # of the good ones, in their order
    problems: Mapping[int, str]


def every_page(pictures: Iterable[NamedImages], reading: DecodeOptions) -> Iterator[NamedImages]:
    """Each page of a file as an image of its own, called file#1, file#2 ..., where files are read so."""
    for named in pictures:
        pages = pages_of(named.picture, reading)
        several = len(pages) > 1
        yield from (
            NamedImages(f"{named.name}#{number}" if several else named.name, page)
            for number, page in enumerate(pages, start=1)
        )


def batches(pictures: Iterable[NamedImages], cut: Cut, reading: DecodeOptions) -> Iterator[AnswerBatch]:
    """All images, a fixed number at a time, so that memory does not grow with them."""
    waiting = iter(pictures)
    while chunk := list(islice(waiting, BATCH)):
        opened = _open_all([named.picture for named in chunk], cut, reading)
        good = [pixels for pixels in opened if not isinstance(pixels, str)]
        problems = {index: reason for index, reason in enumerate(opened) if isinstance(reason, str)}
        yield AnswerBatch(
            [named.name for named in chunk], np.stack(good) if good else np.zeros((0,), np.uint8), problems
        )


def _open_all(pictures: Sequence[GivenPicture], cut: Cut, reading: DecodeOptions) -> list[NDArray[np.uint8] | str]:
    with silence_decoders():
        return list(in_order(lambda index: _open(pictures[index], cut, reading), len(pictures)))


def _open(picture: GivenPicture, cut: Cut, reading: DecodeOptions) -> NDArray[np.uint8] | str:
    try:
        return cut(open_picture(picture, reading))
    except BadImage as reason:
        return str(reason)


def answers(
    batch: AnswerBatch, request: AskClassifier, classes: Sequence[str], top: int, threshold: float | None
) -> list[Answer]:
    """One answer for each image of a batch, in their order."""
    rows = iter(np.exp(request(batch.pixels)) if len(batch.pixels) else ())
    return [
        _broken(name, batch.problems[index])
        if index in batch.problems
        else _answer(name, next(rows), classes, top, threshold)
        for index, name in enumerate(batch.names)
    ]


def _broken(name: str, problem: str) -> Answer:
    return Answer(name, None, None, None, problem, ())


def _answer(
    name: str, probabilities: NDArray[np.float64], classes: Sequence[str], top: int, threshold: float | None
) -> Answer:
    order = np.argsort(-probabilities, kind="stable")[: max(top, 1)]
    best = tuple((classes[index], float(probabilities[index])) for index in order)
    label, highest = best[0]
    abstains = None if threshold is None else highest < threshold
    return Answer(name, None if abstains else label, highest, abstains, None, best[:top])

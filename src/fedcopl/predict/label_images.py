"""Labelling images of any number, batch by batch, into a file or onto standard output."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from ..data.cache import Cut, in_order
from ..data.dataset import Skipped
from ..data.handed_over import GivenPicture, open_picture
from ..data.images import BadImage, quiet
from ..errors import DataError
from .answer_file import AnswerFile, AnswerRows
from .classifier import Classifier, named_below
from .predictor import BATCH

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


def batches(pictures: Iterable[NamedImages], cut: Cut) -> Iterator[AnswerBatch]:
    """All images, a fixed number at a time, so that memory does not grow with them."""
    waiting = iter(pictures)
    while chunk := list(islice(waiting, BATCH)):
        opened = _open_all([named.picture for named in chunk], cut)
        good = [pixels for pixels in opened if not isinstance(pixels, str)]
        problems = {place: reason for place, reason in enumerate(opened) if isinstance(reason, str)}
        yield AnswerBatch(
            [named.name for named in chunk], np.stack(good) if good else np.zeros((0,), np.uint8), problems
        )


def _open_all(pictures: Sequence[GivenPicture], cut: Cut) -> list[NDArray[np.uint8] | str]:
    with quiet():
        return list(in_order(lambda place: _open(pictures[place], cut), len(pictures)))


def _open(picture: GivenPicture, cut: Cut) -> NDArray[np.uint8] | str:
    try:
        return cut(open_picture(picture))
    except BadImage as reason:
        return str(reason)


def answers(
    batch: AnswerBatch, ask: AskClassifier, classes: Sequence[str], top: int, threshold: float | None
) -> list[Answer]:
    """One answer for each image of a batch, in their order."""
    rows = iter(np.exp(ask(batch.pixels)) if len(batch.pixels) else ())
    return [
        _broken(name, batch.problems[place])
        if place in batch.problems
        else _answer(name, next(rows), classes, top, threshold)
        for place, name in enumerate(batch.names)
    ]


def _broken(name: str, problem: str) -> Answer:
    return Answer(name, None, None, None, problem, ())


def _answer(
    name: str, probabilities: NDArray[np.float64], classes: Sequence[str], top: int, threshold: float | None
) -> Answer:
    order = np.argsort(-probabilities, kind="stable")[: max(top, 1)]
    best = tuple((classes[place], float(probabilities[place])) for place in order)
    label, highest = best[0]
    abstains = None if threshold is None else highest < threshold
    return Answer(name, None if abstains else label, highest, abstains, None, best[:top])


TallyProgress = Callable[["Tally"], None]


@dataclass
class Tally:
    """What was done so far."""

    images: int = 0
    abstained: int = 0
    broken: int = 0
    resumed: int = 0  # rows that were there already
    passed_over: int = 0  # files in folders that are no images
    first_passed_over: Skipped | None = None
    skipped: list[Skipped] = field(default_factory=list)  # of these, the ones not yet counted

    def add(self, answers: Sequence[Answer]) -> None:
        self.images += len(answers)
        self.abstained += sum(answer.abstains is True for answer in answers)
        self.broken += sum(answer.problem is not None for answer in answers)
        self.count_skipped()

    def count_skipped(self) -> None:
        """Only the first is kept: a folder may hold any number of other files."""
        self.passed_over += len(self.skipped)
        self.first_passed_over = self.first_passed_over or next(iter(self.skipped), None)
        self.skipped.clear()


def pictures_at(paths: Sequence[str], skipped: list[Skipped]) -> Iterator[NamedImages]:
    """All images that were named, in their order, and those below folders, sorted; called by the path to open."""
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        raise DataError(f"{missing[0]}: there is no such file or folder")
    return _pictures_at(paths, skipped)


def _pictures_at(paths: Sequence[str], skipped: list[Skipped]) -> Iterator[NamedImages]:
    for path in paths:
        if Path(path).is_dir():
            below = named_below(Path(path), skipped)
            yield from (NamedImages((Path(path) / named.name).as_posix(), named.picture) for named in below)
        else:
            yield NamedImages(Path(path).as_posix(), Path(path))


def label_to_stream(
    classifier: Classifier,
    paths: Sequence[str],
    rows: AnswerRows,
    threshold: float | None,
    out: TextIO,
    progress: TallyProgress,
) -> Tally:
    """Every answer as soon as its batch is done."""
    tally = Tally()
    pictures = pictures_at(paths, tally.skipped)
    out.write(rows.header)
    for batch in classifier.answer_batches(pictures, top=rows.top, threshold=threshold):
        out.write("".join(map(rows.line, batch)))
        out.flush()
        tally.add(batch)
        progress(tally)
    tally.count_skipped()
    return tally


def label_to_file(
    classifier: Classifier,
    paths: Sequence[str],
    rows: AnswerRows,
    threshold: float | None,
    out: Path,
    progress: TallyProgress,
    *,
    overwrite: bool = False,
) -> Tally:
    """The same into a file, going on where an earlier attempt was stopped."""
    tally = Tally()
    pictures = pictures_at(paths, tally.skipped)
    file = AnswerFile(out, rows, _asked(classifier, rows, threshold))
    with file.held():
        tally.resumed = file.open(overwrite)
        file.skip_answered(pictures)
        for batch in classifier.answer_batches(pictures, top=rows.top, threshold=threshold):
            file.append(batch)
            tally.add(batch)
            progress(tally)
        file.finish()
    tally.count_skipped()
    return tally


def _asked(classifier: Classifier, rows: AnswerRows, threshold: float | None) -> dict[str, Any]:
    limit = classifier.threshold if threshold is None else threshold
    form = {"format": type(rows).__name__, "top": rows.top}
    return {"classifier": classifier.fingerprint, "threshold": limit, **form}

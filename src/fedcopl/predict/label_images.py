"""Labelling images of any number into a file or onto standard output."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ..data.dataset import Skipped
from ..data.decoding import DecodeOptions
from ..errors import DataError
from .answer_file import AnswerFile, AnswerRows
from .answers import Answer, NamedImages, every_page
from .classifier import Classifier, named_below

TallyProgress = Callable[["Tally"], None]


@dataclass
class Tally:
    """What was done so far."""

    images: int = 0
    abstained: int = 0
    broken: int = 0
    unsure: int = 0  # no class is as probable as all others together
    labels: Counter[str] = field(default_factory=Counter)
    resumed: int = 0  # rows that were there already
    passed_over: int = 0  # files in folders that are no images
    first_passed_over: Skipped | None = None
    skipped: list[Skipped] = field(default_factory=list)  # of these, the ones not yet counted

    def add(self, answers: Sequence[Answer]) -> None:
        self.images += len(answers)
        self.abstained += sum(answer.abstains is True for answer in answers)
        self.broken += sum(answer.problem is not None for answer in answers)
        self.unsure += sum(answer.probability is not None and answer.probability < 0.5 for answer in answers)
        self.labels.update(answer.label for answer in answers if answer.label is not None)
        self.count_skipped()

    def count_skipped(self) -> None:
        """Only the first is kept: a folder may hold any number of other files."""
        self.passed_over += len(self.skipped)
        self.first_passed_over = self.first_passed_over or next(iter(self.skipped), None)
        self.skipped.clear()


def pictures_at(paths: Sequence[str], skipped: list[Skipped], reading: DecodeOptions) -> Iterator[NamedImages]:
    """All images that were named, in their order, and those below folders, sorted; called by the path to open."""
    refuse_missing(paths)
    return every_page(_pictures_at(paths, skipped), reading)


def refuse_missing(paths: Sequence[str]) -> None:
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        raise DataError(f"{missing[0]}: there is no such file or folder")


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
    pictures = pictures_at(paths, tally.skipped, classifier.recipe.reading)
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
    pictures = pictures_at(paths, tally.skipped, classifier.recipe.reading)
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

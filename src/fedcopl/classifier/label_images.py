"""Labelling any number of images, to a file or to standard output."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from ..data.dataset import Skipped
from ..data.decoding import DecodeOptions
from ..errors import DataError
from .predict import Classifier, named_below
from .prediction_file import PredictionFile, PredictionRows
from .predictions import NamedImages, Prediction, every_page

_TallyProgress = Callable[["Tally"], None]


@dataclass
class Tally:
    """The progress of a labelling."""

    images: int = 0
    abstained: int = 0
    broken: int = 0
    unsure: int = 0  # no class is as probable as all others together
    labels: Counter[str] = field(default_factory=Counter)
    resumed: int = 0  # rows of an interrupted labelling
    passed_over: int = 0  # files in folders that are not images
    first_passed_over: Skipped | None = None
    skipped: list[Skipped] = field(default_factory=list)  # files that are not images and not yet counted

    def add(self, predictions: Sequence[Prediction]) -> None:
        """Count a batch of predictions."""
        self.images += len(predictions)
        self.abstained += sum(one.abstains is True for one in predictions)
        self.broken += sum(one.problem is not None for one in predictions)
        self.unsure += sum(one.probability is not None and one.probability < 0.5 for one in predictions)
        self.labels.update(one.label for one in predictions if one.label is not None)
        self.count_skipped()

    def count_skipped(self) -> None:
        """Count the skipped files, and keep only the first, because there may be any number."""
        self.passed_over += len(self.skipped)
        self.first_passed_over = self.first_passed_over or next(iter(self.skipped), None)
        self.skipped.clear()


def pictures_at(paths: Sequence[str], skipped: list[Skipped], reading: DecodeOptions) -> Iterator[NamedImages]:
    """Yield the images at these paths and below folders, sorted there; each is named by its path.

    Raises:
        DataError: A path does not exist.
    """
    refuse_missing(paths)
    return every_page(_pictures_at(paths, skipped), reading)


def refuse_missing(paths: Sequence[str]) -> None:
    """Raise DataError if a path does not exist."""
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
    rows: PredictionRows,
    threshold: float | None,
    out: TextIO,
    progress: _TallyProgress,
) -> Tally:
    """Write predictions to a stream, batch by batch."""
    tally = Tally()
    pictures = pictures_at(paths, tally.skipped, classifier.recipe.reading)
    out.write(rows.header)
    for batch in classifier.prediction_batches(pictures, top=rows.top, threshold=threshold):
        out.write("".join(map(rows.line, batch)))
        out.flush()
        tally.add(batch)
        progress(tally)
    tally.count_skipped()
    return tally


def label_to_file(
    classifier: Classifier,
    paths: Sequence[str],
    rows: PredictionRows,
    threshold: float | None,
    out: Path,
    progress: _TallyProgress,
    *,
    overwrite: bool = False,
) -> Tally:
    """Write predictions to a file, resuming an interrupted labelling."""
    tally = Tally()
    pictures = pictures_at(paths, tally.skipped, classifier.recipe.reading)
    limit = classifier.threshold if threshold is None else threshold
    options = {"classifier": classifier.fingerprint, "threshold": limit, "format": type(rows).__name__, "top": rows.top}
    file = PredictionFile(out, rows, options)
    with file.held():
        tally.resumed = file.open(overwrite)
        file.skip_written(pictures)
        for batch in classifier.prediction_batches(pictures, top=rows.top, threshold=threshold):
            file.append(batch)
            tally.add(batch)
            progress(tally)
        file.finish()
    tally.count_skipped()
    return tally

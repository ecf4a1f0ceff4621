"""Accuracy of a client's labels, estimated from the expert's answers.

Only the random sample is used: the images of one fixed random order, up to the first image without an answer in that
order. Images that the expert chose, such as uncertain ones, would bias the estimate.

The answers can be written as a CSV table or as a manifest with the random sample as test images, and answers of a
second reviewer can be merged.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..algorithm.accuracy_from_sample import AccuracyEstimate, drawn_order, estimate_share, images_needed, strata_of
from ..data.label_files import read_answer_rows
from ..errors import DataError
from ..files import write_text
from ..report.label_free import write_review
from ..rng import stream
from .expert_answers import AnswerKind, Answers, ExpertAnswer, NewAnswer
from .images import Gallery

Numbers = NDArray[np.int64]  # of images of the gallery
SAMPLE, ANSWERED = "sample", "answered"
ORDERS: Mapping[str, str] = {
    SAMPLE: "Random sample",
    "doubtful": "Least confident first",
    "sure": "Most confident first",
    "changed": "Changed most often",
    ANSWERED: "Reviewed",
}
_CACHED_ORDERS = 64  # 0.8 MB each for 100,000 images
_HALF_WIDTH = 0.05  # of the interval that the page recommends


@dataclass(frozen=True)
class _ClassShare:
    """Estimated accuracy of the images predicted as one class."""

    name: str
    images: int
    estimate: AccuracyEstimate


@dataclass(frozen=True)
class SampleOutcome:
    """Result of all answers so far."""

    estimate: AccuracyEstimate
    classes: Sequence[_ClassShare]
    unclear: int  # images of the sample that are unclear to the expert
    answered: int
    corrected: int  # answers that name another class than the shown label, or none of the classes
    images: int

    @property
    def has_estimate(self) -> bool:
        return self.estimate.reviewed > 0

    @property
    def images_to_review(self) -> int:
        """Number of further images to review until the interval is at most _HALF_WIDTH to either side."""
        share = self.estimate.share if self.has_estimate else 0.5
        return max(0, images_needed(share, self.images, _HALF_WIDTH) - self.estimate.reviewed)


class SampleSurvey:
    """One client's images, the answers about them, and the orders in which they are shown."""

    def __init__(self, gallery: Gallery, answers: Answers):
        self.gallery, self.answers = gallery, answers
        predictions, stored = gallery.predictions, answers.plan_round()
        refresh = predictions.rounds.index(stored) if stored in predictions.rounds else len(predictions.rounds) - 1
        self.plan_round = predictions.rounds[refresh]  # its labels determine the random order
        self._strata = strata_of(predictions.labels[refresh], predictions.log_probability[refresh])
        self.numbers = lru_cache(maxsize=_CACHED_ORDERS)(self._numbers)

    def _numbers(self, order: str, label: int | None = None) -> Numbers:
        """Return the indices of all images, or of those predicted as `label`, sorted by one of ORDERS."""
        predictions = self.gallery.predictions
        if label is not None:
            numbers = self.numbers(order)
            return np.asarray(numbers[predictions.label[numbers] == label])
        if order == SAMPLE:
            return drawn_order(self._strata, stream(0, "review"))
        confidence = predictions.confidence
        sorted_by = {"doubtful": (confidence,), "sure": (-confidence,), "changed": (confidence, -predictions.changes)}
        return np.lexsort(sorted_by[order])

    @cached_property
    def number_of(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.gallery.names)}

    def sample(self, current: Mapping[str, ExpertAnswer]) -> Iterator[tuple[int, ExpertAnswer]]:
        """Yield number and answer of each reviewed image of the random sample, up to the first without an answer."""
        for number in self.numbers(SAMPLE):
            answer = current.get(self.gallery.names[number])
            if answer is None or not answer.sampled:
                return
            yield int(number), answer

    def is_right(self, number: int, answer: ExpertAnswer) -> bool:
        """Return whether the expert's answer is the shown label."""
        return answer.kind == "class" and self.gallery.classes[self.gallery.predictions.label[number]] == answer.label

    def outcome(self, current: Mapping[str, ExpertAnswer]) -> SampleOutcome:
        """Return the estimate and the counts of the current answers, by image name."""
        sampled = list(self.sample(current))
        judged = [(number, self.is_right(number, answer)) for number, answer in sampled if answer.kind != "unclear"]
        reviewed = np.array([number for number, _ in judged], np.int64)
        right = np.array([is_right for _, is_right in judged], np.bool_)
        return SampleOutcome(
            estimate=estimate_share(self._strata, reviewed, right),
            classes=list(self._by_class(reviewed, right)),
            unclear=len(sampled) - len(judged),
            answered=len(current),
            corrected=sum(
                not self.is_right(self.number_of[answer.image], answer)
                for answer in current.values()
                if answer.kind != "unclear" and answer.image in self.number_of
            ),
            images=len(self.gallery.names),
        )

    def save_estimate(self) -> SampleOutcome:
        """Return the outcome of all answers so far, and write its estimate into the run's folder for the report."""
        outcome = self.outcome(self.answers.current())
        write_review(self.answers.folder, self.gallery.client, outcome.estimate)
        return outcome

    def _by_class(self, reviewed: NDArray[np.int64], right: NDArray[np.bool_]) -> Iterator[_ClassShare]:
        """Yield the estimate of each class with reviewed images, which are a random sample of the class."""
        label = self.gallery.predictions.label
        for c in np.unique(label[reviewed]):
            in_class, images = label[reviewed] == c, int(self.class_sizes[c])
            one_stratum = np.zeros(images, np.int64)
            estimate = estimate_share(one_stratum, np.arange(int(in_class.sum())), right[in_class])
            yield _ClassShare(self.gallery.classes[c], images, estimate)

    @cached_property
    def class_sizes(self) -> NDArray[np.int64]:
        """Return the number of images with each label, (C,)."""
        return np.bincount(self.gallery.predictions.label, minlength=len(self.gallery.classes))


_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would evaluate such a cell
_KIND_TEXT = {"none": "(none of the classes)", "unclear": "(cannot tell)"}


def answers_csv(answers: Iterable[ExpertAnswer]) -> str:
    """Return a CSV table with one row per answer; cells that a spreadsheet would evaluate are escaped."""
    rows = [("file", "pseudo label", "label", "when", "digest")]
    for answer in answers:
        label = answer.label or _KIND_TEXT[answer.kind]
        rows.append((answer.image, answer.pseudo, label, answer.answered, answer.digest))
    return _csv([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in row] for row in rows)


def write_manifest(survey: SampleSurvey, path: Path) -> tuple[int, Path]:
    """Write a list of classes, and a manifest with the random sample as test images and all others unlabelled.

    Returns:
        The number of test images, and the path of the list of classes.
    """
    tested = {number: answer.label for number, answer in survey.sample(survey.answers.current()) if answer.label}
    if not tested:
        raise DataError("no image of the random sample has an answer, so there are no test images to write")
    rows = [
        (_file_path(survey, number), tested.get(number, ""), "test" if number in tested else "train")
        for number in range(len(survey.gallery.names))
    ]
    classes = path.with_name(f"{path.stem}-classes.txt")
    write_text(classes, "".join(f"{name}\n" for name in survey.gallery.classes))
    write_text(path, _csv([("path", "label", "split"), *rows]))
    return len(tested), classes


def _file_path(survey: SampleSurvey, number: int) -> str:
    file = survey.gallery.file(number)
    if file is None:
        raise DataError(f"{survey.gallery.client}: its images are not separate files, which a manifest needs")
    try:
        str(file).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{survey.gallery.names[number]}: its name is not valid UTF-8; rename the file to list it in a manifest"
        ) from error
    return str(file)


def _csv(rows: Iterable[Sequence[str | None]]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows(rows)  # with line ends \r\n; a name with a line break is quoted
    return file.getvalue()


_KIND_OF: dict[str, AnswerKind] = {_KIND_TEXT["none"]: "none", _KIND_TEXT["unclear"]: "unclear"}


@dataclass
class _MergeResult:
    """The result of merging a second reviewer's answers."""

    added: int = 0
    agreed: int = 0
    disagreements: list[tuple[str, str, str]] = field(default_factory=list)  # image, stored answer, other answer
    skipped: list[tuple[str, str]] = field(default_factory=list)  # image, and the reason


def merge_answers(survey: SampleSurvey, file: Path) -> _MergeResult:
    """Add new answers of a CSV file of `fedcopl review --export`; they are not part of the random sample."""
    merged, current = _MergeResult(), survey.answers.current()
    for row in read_answer_rows(file):
        image, text = row["file"], row["label"]
        kind = _KIND_OF.get(text, "class")
        label = text if kind == "class" else None
        reason = _rejection_reason(survey, image, label, row.get("digest") or "")
        if reason:
            merged.skipped.append((image, reason))
        elif image not in current:
            digest = survey.gallery.digest(survey.number_of[image])
            answer = NewAnswer(image, digest, row.get("pseudo label") or "", kind, label, tab=f"merged {file.name}")
            survey.answers.add(answer)
            merged.added += 1
        elif (current[image].kind, current[image].label) == (kind, label):
            merged.agreed += 1
        else:
            merged.disagreements.append((image, current[image].text, text))
    return merged


def _rejection_reason(survey: SampleSurvey, image: str, label: str | None, digest: str) -> str | None:
    """Return why another reviewer's answer cannot be used; None if it can."""
    if image not in survey.number_of:
        return "this client has no such image"
    if label is not None and label not in survey.gallery.classes:
        return f"the run has no class {label!r}"
    if digest and survey.gallery.digest(survey.number_of[image]) != digest:
        return "the image of this client differs from the one that the other reviewer saw"
    return None

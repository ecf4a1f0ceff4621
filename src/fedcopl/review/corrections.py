"""Answers as files: a CSV table, a manifest with the random sample as test images, and merging a second table."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..data.label_files import read_answer_rows
from ..errors import DataError
from ..files import write_text
from .expert_answers import AnswerKind, ExpertAnswer, Given
from .sample_survey import SampleSurvey

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would work such a cell out
WORDS = {"none": "(none of the classes)", "unclear": "(cannot tell)"}


def answers_csv(answers: Iterable[ExpertAnswer]) -> str:
    """Format one CSV row per answered image; names that look like formulas are escaped."""
    rows = [("file", "pseudo label", "label", "when", "digest")]
    for answer in answers:
        label = answer.label or WORDS[answer.kind]
        rows.append((answer.image, answer.pseudo, label, answer.answered, answer.digest))
    return _csv([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in row] for row in rows)


def write_manifest(survey: SampleSurvey, path: Path) -> tuple[int, Path]:
    """Write a manifest with the random sample as labelled test images, all others unlabelled, and a list of classes.

    Returns:
        The number of test images, and the path of the list of classes.
    """
    tested = {
        number: answer.label for number, answer in survey.sample(survey.answers.current()) if answer.label is not None
    }
    if not tested:
        raise DataError("no image of the random sample is answered, so there are no test images to write")
    rows = [
        (_file(survey, number), tested.get(number, ""), "test" if number in tested else "train")
        for number in range(len(survey.gallery.names))
    ]
    classes = path.with_name(f"{path.stem}-classes.txt")
    write_text(classes, "".join(f"{name}\n" for name in survey.gallery.classes))
    write_text(path, _csv([("path", "label", "split"), *rows]))
    return len(tested), classes


def _file(survey: SampleSurvey, number: int) -> str:
    file = survey.gallery.file(number)
    if file is None:
        raise DataError(f"{survey.gallery.client}: its images are not separate files, which a manifest needs")
    try:
        str(file).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{survey.gallery.names[number]}: its name is not valid text; rename it to list it in a manifest"
        ) from error
    return str(file)


def _csv(rows: Iterable[Sequence[str | None]]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows(rows)  # its own line ends, so that a name with one gets quotes
    return file.getvalue()


_KIND_OF: dict[str, AnswerKind] = {WORDS["none"]: "none", WORDS["unclear"]: "unclear"}


@dataclass
class _Merged:
    """The result of merging a second reviewer's answers."""

    added: int = 0
    agreed: int = 0
    disagreements: list[tuple[str, str, str]] = field(default_factory=list)  # image, answer here, answer there
    passed_over: list[tuple[str, str]] = field(default_factory=list)  # image, and why


def merge_answers(survey: SampleSurvey, file: Path) -> _Merged:
    """Add new answers of a CSV file of `fedcopl review --export`; they are not part of the random sample."""
    merged, current = _Merged(), survey.answers.current()
    for row in read_answer_rows(file):
        image, text = row["file"], row["label"]
        kind = _KIND_OF.get(text, "class")
        label = text if kind == "class" else None
        reason = _rejection_reason(survey, image, label, row.get("digest") or "")
        if reason:
            merged.passed_over.append((image, reason))
        elif image not in current:
            digest = survey.gallery.digest(survey.number_of[image])
            survey.answers.add(
                Given(image, digest, row.get("pseudo label") or "", kind, label, tab=f"merged {file.name}")
            )
            merged.added += 1
        elif (current[image].kind, current[image].label) == (kind, label):
            merged.agreed += 1
        else:
            merged.disagreements.append((image, current[image].text, text))
    return merged


def _rejection_reason(survey: SampleSurvey, image: str, label: str | None, digest: str) -> str | None:
    if image not in survey.number_of:
        return "there is no such image here"
    if label is not None and label not in survey.gallery.classes:
        return f"there is no class {label!r}"
    if digest and survey.gallery.digest(survey.number_of[image]) != digest:
        return "the image is another one here"
    return None

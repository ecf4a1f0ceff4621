"""The expert's answers for others: a table of all, and a manifest with the random sample as labelled test images."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import DataError
from ..files import write_text
from .expert_answers import ExpertAnswer
from .sample_survey import SampleSurvey

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would work such a cell out
WORDS = {"none": "(none of the classes)", "unclear": "(cannot tell)"}


def answers_csv(answers: Iterable[ExpertAnswer]) -> str:
    """One row per answered image; harmless in a spreadsheet whatever the names are."""
    rows = [
        (answer.image, answer.pseudo, answer.label or WORDS[answer.kind], answer.answered, answer.digest)
        for answer in answers
    ]
    return _csv([("file", "pseudo label", "label", "when", "digest"), *(tuple(map(_harmless, row)) for row in rows)])


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.startswith(FORMULA) else cell


def write_manifest(survey: SampleSurvey, path: Path) -> tuple[int, Path]:
    """A manifest with the random sample as labelled test images and all others as training images without labels.

    Beside it the list of classes. The number of test images, and that list's path.
    """
    tested = {
        number: answer.label for number, answer in survey.sample(survey.answers.current()) if answer.label is not None
    }
    if not tested:
        raise DataError("no image of the random sample is answered, so there are no test images to write down")
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
        raise DataError(f"{survey.gallery.client}: its images are no files of their own, and a manifest names files")
    try:
        str(file).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{survey.gallery.names[number]}: its name is no text; rename it to list it in a manifest"
        ) from error
    return str(file)


def _csv(rows: Iterable[Sequence[str | None]]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows(rows)  # its own line ends, so that a name with one gets quotes
    return file.getvalue()

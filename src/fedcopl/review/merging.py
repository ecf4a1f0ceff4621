"""A second reviewer's answers beside the first one's: what is new is taken, what differs is listed and left."""

from dataclasses import dataclass, field
from pathlib import Path

from ..data.label_files import read_answer_rows
from .cards import words_of
from .corrections import WORDS
from .expert_answers import AnswerKind, Given
from .sample_survey import SampleSurvey

KIND_OF: dict[str, AnswerKind] = {WORDS["none"]: "none", WORDS["unclear"]: "unclear"}


@dataclass
class Merged:
    """What came of it."""

    added: int = 0
    agreed: int = 0
    disagreements: list[tuple[str, str, str]] = field(default_factory=list)  # image, what is said here, and there
    passed_over: list[tuple[str, str]] = field(default_factory=list)  # image, and why


def merge_answers(survey: SampleSurvey, file: Path) -> Merged:
    """Take the answers of a CSV file of `fedcopl review --export`. They count in no estimate: others drew them."""
    merged, current = Merged(), survey.answers.current()
    for row in read_answer_rows(file):
        image, said = row["file"], row["label"]
        kind = KIND_OF.get(said, "class")
        label = said if kind == "class" else None
        why = _why_not(survey, image, label, row.get("digest") or "")
        if why:
            merged.passed_over.append((image, why))
        elif image not in current:
            digest = survey.gallery.digest(survey.number_of[image])
            survey.answers.add(
                Given(image, digest, row.get("pseudo label") or "", kind, label, tab=f"merged {file.name}")
            )
            merged.added += 1
        elif (current[image].kind, current[image].label) == (kind, label):
            merged.agreed += 1
        else:
            merged.disagreements.append((image, words_of(current[image]), said))
    return merged


def _why_not(survey: SampleSurvey, image: str, label: str | None, digest: str) -> str | None:
    if image not in survey.number_of:
        return "there is no such image here"
    if label is not None and label not in survey.gallery.classes:
        return f"there is no class {label!r}"
    if digest and survey.gallery.digest(survey.number_of[image]) != digest:
        return "the image is another one here"
    return None

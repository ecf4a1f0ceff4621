"""An image as the review page shows it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .expert_answers import ExpertAnswer
from .images import NOT_TRAINED, Gallery
from .sample_survey import SampleSurvey

HISTORY = 12  # refreshes shown of an image


@dataclass(frozen=True)
class Card:
    """An image among others."""

    number: int
    at: int  # its position in the order
    name: str
    predicted: str
    share: float  # its probability
    changes: int
    state: str  # "", "confirmed", "corrected", "none" or "unclear"
    answer: str  # the expert's answer as text, or ""


@dataclass(frozen=True)
class Guess:
    """A class an image may have."""

    label: int
    name: str
    share: float


@dataclass(frozen=True)
class Detail:
    """The image in question, with its likeliest classes and the history of its label."""

    card: Card
    guesses: Sequence[Guess]
    history: Sequence[tuple[str, str, float]]  # round as people count, or "end"; label, its probability
    trained_as: str | None  # None: not trained on
    trained_known: bool


def card(survey: SampleSurvey, number: int, at: int, current: Mapping[str, ExpertAnswer]) -> Card:
    gallery, predictions = survey.gallery, survey.gallery.predictions
    name = gallery.names[number]
    answer = current.get(name)
    return Card(
        number,
        at,
        name,
        gallery.classes[predictions.label[number]],
        probability(predictions.confidence[number]),
        int(predictions.changes[number]),
        state_of(survey, number, answer),
        answer_text(answer) if answer else "",
    )


def detail(survey: SampleSurvey, number: int, at: int, current: Mapping[str, ExpertAnswer]) -> Detail:
    gallery = survey.gallery
    trained = gallery.predictions.trained_as
    label = NOT_TRAINED if trained is None else int(trained[number])
    return Detail(
        card(survey, number, at, current),
        guesses(gallery, number),
        history(gallery, number),
        None if label == NOT_TRAINED else gallery.classes[label],
        trained is not None,
    )


def guesses(gallery: Gallery, number: int) -> list[Guess]:
    """The likeliest classes, those without any chance left out."""
    predictions = gallery.predictions
    likeliest = zip(predictions.top[number], predictions.top_log_probability[number], strict=True)
    return [
        Guess(int(label), gallery.classes[label], probability(log_share))
        for rank, (label, log_share) in enumerate(likeliest)
        if rank == 0 or log_share > -math.inf
    ]


def history(gallery: Gallery, number: int) -> list[tuple[str, str, float]]:
    """The label at each of the last refreshes, and at the end."""
    predictions = gallery.predictions
    when = [str(round + 1) for round in predictions.rounds[: -1 if predictions.is_final else None]]
    when += ["end"] if predictions.is_final else []
    return [
        (when[refresh], gallery.classes[predictions.labels[refresh, number]], probability(log_share))
        for refresh, log_share in enumerate(predictions.log_probability[:, number])
    ][-HISTORY:]


def state_of(survey: SampleSurvey, number: int, answer: ExpertAnswer | None) -> str:
    if answer is None:
        return ""
    if answer.kind != "class":
        return answer.kind
    return "confirmed" if survey.is_right(number, answer) else "corrected"


def answer_text(answer: ExpertAnswer) -> str:
    return {"none": "none of the classes", "unclear": "cannot tell"}.get(answer.kind) or answer.label or ""


def probability(log_share: float) -> float:
    return min(1.0, math.exp(log_share))

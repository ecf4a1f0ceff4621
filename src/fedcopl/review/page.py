"""The local page of `fedcopl review`: an expert confirms or corrects the labels of images."""

import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlencode

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..data.dataset import clean_class_name
from ..errors import RunFolderError
from ..local_page.access import AccessControl, Keys, read_form
from ..local_page.serving import file_route, page
from .expert_answers import AnswerKind, ExpertAnswer, NewAnswer
from .images import NOT_TRAINED, SIDES, ShownPictures
from .sample_survey import ANSWERED, ORDERS, SAMPLE, Numbers, SampleSurvey, answers_csv

_PER_PAGE = 48
_WITHOUT_CLASS: Mapping[str, AnswerKind] = {"none": "none", "unclear": "unclear"}
_MAX_MATCHES = 8  # classes named if a search fits several
_MAX_DIGITS = 9  # of a number in an address


@dataclass(frozen=True)
class _Position:
    """An order of the images, restricted to a class or not, and the position in it."""

    order: str = SAMPLE
    label: int | None = None
    at: int | None = None  # index in the order; None: the first image without an answer
    tab: str = ""  # identifies the browser tab, for undo

    @classmethod
    def read(cls, fields: Mapping[str, str], classes: int) -> "_Position":
        """Parse an address or a form; invalid values are ignored."""
        order = fields.get("order", SAMPLE)
        order = order if order in ORDERS else SAMPLE
        label = _whole_number(fields.get("class"))
        fits = label is not None and label < classes and order != SAMPLE  # the random sample covers all classes
        tab = fields.get("tab", "")
        tab = tab if re.fullmatch(r"[0-9a-f]{8}", tab) else secrets.token_hex(4)
        return cls(order, label if fits else None, _whole_number(fields.get("at")), tab)

    def link(self, **changes: Any) -> str:
        """Return the address of this position with changes."""
        return f"/?{replace(self, **changes).query()}"

    def query(self) -> str:
        fields = {"order": self.order, "class": self.label, "at": self.at, "tab": self.tab}
        return urlencode({name: value for name, value in fields.items() if value is not None})


def _whole_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


class ReviewPage:
    """Handlers of all requests of one review."""

    def __init__(self, survey: SampleSurvey, keys: Keys):
        self.survey, self.keys = survey, keys
        self.pictures = ShownPictures(survey.gallery)

    def app(self) -> ASGIApp:
        routes = [
            Route("/", self.show),
            Route("/image/{size}/{number:int}", self.image),
            Route("/answers.csv", self.export),
            *(Route(path, self.post, methods=["POST"]) for path in ("/answer", "/undo")),
            *map(file_route, ("icon.svg", "pages.css", "review.js")),
        ]
        app = Starlette(
            routes=routes,
            exception_handlers={RunFolderError: lambda request, error: PlainTextResponse(f"{error}\n", 500)},
        )
        return AccessControl(app, self.keys, writes=True)

    def show(self, request: Request) -> Response:
        position = _Position.read(request.query_params, len(self.survey.gallery.classes))
        return self._page(position, saved_id=_whole_number(request.query_params.get("did")))

    def _page(
        self, position: _Position, saved_id: int | None = None, error_message: str = "", status: int = 200
    ) -> Response:
        """Return the page at a position, with the answer that was just saved or an error message."""
        current = self.survey.answers.current()
        numbers = self._numbers(position, current)
        first_unanswered = sum(1 for _ in self.survey.sample(current)) if position.order == SAMPLE else 0
        at = min(first_unanswered if position.at is None else position.at, max(len(numbers) - 1, 0))
        start = at - at % _PER_PAGE
        on_page = enumerate(numbers[start : start + _PER_PAGE], start)
        gallery = self.survey.gallery
        return page(
            "review.html.jinja",
            status,
            client=gallery.client,
            classes=gallery.classes,
            sizes=self.survey.class_sizes.tolist(),
            labels_origin=gallery.predictions.origin,
            refreshes=len(gallery.predictions.rounds),
            position=replace(position, at=at),
            orders=ORDERS,
            total=len(numbers),
            per_page=_PER_PAGE,
            detail=_detail(self.survey, int(numbers[at]), at, current) if len(numbers) else None,
            cards=[_card(self.survey, int(number), index, current) for index, number in on_page],
            outcome=self.survey.outcome(current),
            saved=next((answer for answer in current.values() if answer.id == saved_id), None),
            error_message=error_message,
            can_undo=self.survey.answers.can_undo(position.tab),
            key=self.keys.form_key,
            version=self.keys.form_key[:8],
        )

    def _numbers(self, position: _Position, current: Mapping[str, ExpertAnswer]) -> Numbers:
        """Return the numbers of the images in the order of the position; answered images with the latest first."""
        if position.order != ANSWERED:
            return self.survey.numbers(position.order, position.label)
        number_of, label = self.survey.number_of, self.survey.gallery.predictions.label
        answered = [number_of[name] for name in reversed(list(current)) if name in number_of]
        return np.array([n for n in answered if position.label in (None, label[n])], np.int64)

    def image(self, request: Request) -> Response:
        size, number = request.path_params["size"], request.path_params["number"]
        if size not in SIDES or number >= len(self.survey.gallery.names):
            return PlainTextResponse("There is no such image.\n", 404)
        picture = self.pictures.get(number, size)
        headers = {"cache-control": "private, max-age=86400"}
        return Response(picture.content, media_type=picture.media_type, headers=headers)

    def export(self, request: Request) -> Response:
        table = answers_csv(self.survey.answers.current().values())
        headers = {"content-disposition": 'attachment; filename="answers.csv"'}
        return Response(table, media_type="text/csv", headers=headers)

    async def post(self, request: Request) -> Response:
        fields = await read_form(request, self.keys)
        if fields is None:
            return PlainTextResponse("This request did not come from a form of this page; load the page again.\n", 403)
        return await run_in_threadpool(self._answer if request.url.path == "/answer" else self._undo, fields)

    def _answer(self, fields: Mapping[str, str]) -> Response:
        gallery = self.survey.gallery
        position, number = _Position.read(fields, len(gallery.classes)), _whole_number(fields.get("number"))
        if number is None or number >= len(gallery.names):
            return self._page(position, error_message="There is no such image.", status=422)
        parsed = _parse_answer(fields, gallery.classes)
        if isinstance(parsed, str):
            return self._page(position, error_message=parsed, status=422)
        kind, label = parsed
        answer = NewAnswer(
            gallery.names[number],
            gallery.digest(number),
            gallery.classes[gallery.predictions.label[number]],
            kind,
            label,
            self.survey.plan_round if position.order == SAMPLE else None,
            position.tab,
            position.query(),
        )
        saved_id = self.survey.answers.add(answer)
        self.survey.save_estimate()
        following = None if position.order == SAMPLE or position.at is None else position.at + 1
        return RedirectResponse(f"{position.link(at=following)}&did={saved_id}", 303)

    def _undo(self, fields: Mapping[str, str]) -> Response:
        position = _Position.read(fields, len(self.survey.gallery.classes))
        undone = self.survey.answers.undo(position.tab)
        self.survey.save_estimate()
        return RedirectResponse(f"/?{undone[1]}" if undone else position.link(), 303)


def _parse_answer(fields: Mapping[str, str], classes: Sequence[str]) -> tuple[AnswerKind, str | None] | str:
    """Return kind and class of the answer in a form, or an error message."""
    value = fields.get("answer", "")
    if value in _WITHOUT_CLASS:
        return _WITHOUT_CLASS[value], None
    label = _find_class(fields.get("text", ""), classes) if value == "search" else _whole_number(value)
    if isinstance(label, str):
        return label
    return ("class", classes[label]) if label is not None and label < len(classes) else "There is no such class."


def _find_class(text: str, classes: Sequence[str]) -> int | str:
    """Return the number of the class that matches the text, or an error message."""
    typed = clean_class_name(text).casefold()
    if not typed:
        return "Type the name of a class, or a part of it."
    folded = [name.casefold() for name in classes]
    for is_match in (str.__eq__, str.startswith, str.__contains__):
        matches = [number for number, name in enumerate(folded) if is_match(name, typed)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            more = ", ..." if len(matches) > _MAX_MATCHES else ""
            return f"Several classes match “{text}”: {', '.join(classes[n] for n in matches[:_MAX_MATCHES])}{more}."
    close_matches = get_close_matches(typed, folded, n=1)
    hint = f" Did you mean {classes[folded.index(close_matches[0])]}?" if close_matches else ""
    return f"No class matches “{text}”.{hint}"


_HISTORY = 12  # refreshes shown for an image


@dataclass(frozen=True)
class _Card:
    """An image in the strip of thumbnails."""

    number: int
    at: int  # its index in the order
    name: str
    predicted: str  # the shown label
    share: float  # the probability of this label
    changes: int  # of the label between refreshes
    state: str  # of the answer: "", "confirmed", "corrected", "none" or "unclear"
    answer: str  # the expert's answer as text, or ""


@dataclass(frozen=True)
class _Detail:
    """The image to answer, its most probable classes and its label at each refresh."""

    card: _Card
    guesses: Sequence[Mapping[str, Any]]  # number, name and probability of a class
    history: Sequence[tuple[str, str, float]]  # round from 1 or "end", label, and its probability
    trained_as: str | None  # class in training; None: not used in training
    trained_known: bool


def _card(survey: SampleSurvey, number: int, at: int, current: Mapping[str, ExpertAnswer]) -> _Card:
    """Return what the page shows of image `number` of the gallery, at position `at` of the review's order."""
    gallery, predictions = survey.gallery, survey.gallery.predictions
    name, state = gallery.names[number], ""
    answer = current.get(name)
    if answer is not None:
        class_state = "confirmed" if survey.is_right(number, answer) else "corrected"
        state = class_state if answer.kind == "class" else answer.kind
    return _Card(
        number,
        at,
        name,
        gallery.classes[predictions.label[number]],
        _probability(predictions.confidence[number]),
        int(predictions.changes[number]),
        state,
        answer.text if answer else "",
    )


def _detail(survey: SampleSurvey, number: int, at: int, current: Mapping[str, ExpertAnswer]) -> _Detail:
    """Return the card of an image, its most probable classes, and its label at the last _HISTORY refreshes."""
    classes, predictions = survey.gallery.classes, survey.gallery.predictions
    likeliest = zip(predictions.top[number].tolist(), predictions.top_log_probability[number], strict=True)
    rounds = [str(round + 1) for round in predictions.rounds[: -1 if predictions.is_final else None]]
    rounds += ["end"] if predictions.is_final else []
    labels = zip(rounds, predictions.labels[:, number], predictions.log_probability[:, number], strict=True)
    trained_as = NOT_TRAINED if predictions.trained_as is None else int(predictions.trained_as[number])
    return _Detail(
        _card(survey, number, at, current),
        [
            {"label": label, "name": classes[label], "share": _probability(log_prob)}
            for rank, (label, log_prob) in enumerate(likeliest)
            if rank == 0 or log_prob > -math.inf
        ],
        [(round, classes[label], _probability(log_prob)) for round, label, log_prob in labels][-_HISTORY:],
        None if trained_as == NOT_TRAINED else classes[trained_as],
        predictions.trained_as is not None,
    )


def _probability(log_prob: float) -> float:
    return min(1.0, math.exp(log_prob))

"""The page where a site's expert reviews the labels of its images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..data.dataset import clean
from ..errors import RunFolderError
from ..local_page.access import AccessControl, Keys, read_form
from ..local_page.serving import file_routes, page
from .browsing import ANSWERED, ORDERS, SAMPLE, Numbers, Position, whole_number
from .cards import answer_text, card, detail
from .corrections import answers_csv
from .expert_answers import AnswerKind, ExpertAnswer, Given
from .images import SIDES, ShownPictures
from .sample_survey import SampleSurvey

PER_PAGE = 48
WITHOUT_CLASS: Mapping[str, AnswerKind] = {"none": "none", "unclear": "unclear"}
OPTIONS = 8  # classes named when a search fits several


class ReviewPage:
    """Responses to all requests of one review."""

    def __init__(self, survey: SampleSurvey, keys: Keys):
        self.survey, self.keys = survey, keys
        self.pictures = ShownPictures(survey.gallery)

    def app(self) -> ASGIApp:
        routes = [
            Route("/", self.show),
            Route("/image/{size}/{number:int}", self.image),
            Route("/answers.csv", self.export),
            Route("/answer", self.answer, methods=["POST"]),
            Route("/undo", self.undo, methods=["POST"]),
            *file_routes("icon.svg", "pages.css", "review.js"),
        ]
        app = Starlette(routes=routes, exception_handlers={RunFolderError: _cannot_keep})
        return AccessControl(app, self.keys, writes=True)

    def show(self, request: Request) -> Response:
        position = Position.read(request.query_params, len(self.survey.gallery.classes))
        return self._page(position, did=whole_number(request.query_params.get("did")))

    def _page(self, position: Position, did: int | None = None, trouble: str = "", status: int = 200) -> Response:
        current = self.survey.answers.current()
        numbers = self._numbers(position, current)
        at = min(self._to_do(position, current) if position.at is None else position.at, max(len(numbers) - 1, 0))
        start = at - at % PER_PAGE
        shown = enumerate(numbers[start : start + PER_PAGE], start)
        gallery = self.survey.gallery
        return page(
            "review.html.jinja",
            status,
            client=gallery.client,
            classes=gallery.classes,
            sizes=self.survey.class_sizes.tolist(),
            labels_of=gallery.predictions.made,
            refreshes=len(gallery.predictions.rounds),
            position=replace(position, at=at),
            orders=ORDERS,
            total=len(numbers),
            per_page=PER_PAGE,
            detail=detail(self.survey, int(numbers[at]), at, current) if len(numbers) else None,
            cards=[card(self.survey, int(number), card_at, current) for card_at, number in shown],
            outcome=self.survey.outcome(current),
            saved=next((answer for answer in current.values() if answer.id == did), None),
            answer_text=answer_text,
            trouble=trouble,
            can_undo=self.survey.answers.can_undo(position.tab),
            key=self.keys.form_key,
            version=self.keys.form_key[:8],
        )

    def _numbers(self, position: Position, current: Mapping[str, ExpertAnswer]) -> Numbers:
        if position.order != ANSWERED:
            return self.survey.views.numbers(position.order, position.label)
        number_of, label = self.survey.number_of, self.survey.gallery.predictions.label
        known = [number_of[name] for name in reversed(list(current)) if name in number_of]
        return np.array([n for n in known if position.label in (None, label[n])], np.int64)

    def _to_do(self, position: Position, current: Mapping[str, ExpertAnswer]) -> int:
        """The first image of the sample that has no answer yet; in other orders the first one."""
        return sum(1 for _ in self.survey.sample(current)) if position.order == SAMPLE else 0

    def image(self, request: Request) -> Response:
        size, number = request.path_params["size"], request.path_params["number"]
        if size not in SIDES or number >= len(self.survey.gallery.names):
            return PlainTextResponse("There is no such image.\n", 404)
        picture = self.pictures.get(number, size)
        return Response(
            picture.content, media_type=picture.media_type, headers={"cache-control": "private, max-age=86400"}
        )

    def export(self, request: Request) -> Response:
        table = answers_csv(self.survey.answers.current().values())
        headers = {"content-disposition": 'attachment; filename="answers.csv"'}
        return Response(table, media_type="text/csv", headers=headers)

    async def answer(self, request: Request) -> Response:
        return await self._posted(request, self._answer)

    async def undo(self, request: Request) -> Response:
        return await self._posted(request, self._undo)

    async def _posted(self, request: Request, act: Callable[[Mapping[str, str]], Response]) -> Response:
        fields = await read_form(request, self.keys)
        if fields is None:
            return PlainTextResponse("This did not come from a form of this page; load it again.\n", 403)
        return await run_in_threadpool(act, fields)

    def _answer(self, fields: Mapping[str, str]) -> Response:
        gallery = self.survey.gallery
        position, number = Position.read(fields, len(gallery.classes)), whole_number(fields.get("number"))
        if number is None or number >= len(gallery.names):
            return self._page(position, trouble="There is no such image.", status=422)
        meant = meaning(fields, gallery.classes)
        if isinstance(meant, str):
            return self._page(position, trouble=meant, status=422)
        kind, label = meant
        given = Given(
            gallery.names[number],
            gallery.digest(number),
            gallery.classes[gallery.predictions.label[number]],
            kind,
            label,
            self.survey.views.plan_round if position.order == SAMPLE else None,
            position.tab,
            position.query(),
        )
        return self._record(given, position)

    def _record(self, given: Given, position: Position) -> Response:
        number = self.survey.answers.add(given)
        following = None if position.order == SAMPLE or position.at is None else position.at + 1
        return RedirectResponse(f"{position.link(at=following)}&did={number}", 303)

    def _undo(self, fields: Mapping[str, str]) -> Response:
        position = Position.read(fields, len(self.survey.gallery.classes))
        taken = self.survey.answers.undo(position.tab)
        return RedirectResponse(f"/?{taken[1]}" if taken else position.link(), 303)


def meaning(fields: Mapping[str, str], classes: Sequence[str]) -> tuple[AnswerKind, str | None] | str:
    """Parse a form: a class by its number or its name, none of them, cannot tell; or an error message."""
    word = fields.get("answer", "")
    if word in WITHOUT_CLASS:
        return WITHOUT_CLASS[word], None
    label = find_class(fields.get("text", ""), classes) if word == "search" else whole_number(word)
    if isinstance(label, str):
        return label
    return ("class", classes[label]) if label is not None and label < len(classes) else "There is no such class."


def find_class(text: str, classes: Sequence[str]) -> int | str:
    """The number of the class that matches the text, or an error message."""
    typed = clean(text).casefold()
    if not typed:
        return "Type the name of a class, or a part of it."
    folded = [name.casefold() for name in classes]
    for fits in (str.__eq__, str.startswith, str.__contains__):
        found = [number for number, name in enumerate(folded) if fits(name, typed)]
        if len(found) == 1:
            return found[0]
        if found:
            some = ", ".join(classes[number] for number in found[:OPTIONS]) + (", ..." if len(found) > OPTIONS else "")
            return f"Several classes fit “{text}”: {some}."
    near = get_close_matches(typed, folded, n=1)
    return f"No class fits “{text}”." + (f" Did you mean {classes[folded.index(near[0])]}?" if near else "")


def _cannot_keep(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 500)

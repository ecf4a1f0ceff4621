"""The page that shows how a run gets on. It reads the run's folder and writes nothing anywhere."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..report.charts import BarChart, Bars, Line, LineChart, bar_chart, line_chart
from ..report.words import count, loss, marks
from .feed import Feed, Refresh, Round, Snapshot
from .guard import Guard, Keys
from .pages import environment, file_routes, page

KINDS = ("macro", "weighted", "global")
PARTS = ("head", "tiles", "curves", "counts", "clients", "log")
MOST_CLIENTS, MOST_LINES, MOST_CLASSES = 200, 200, 60  # shown


@dataclass(frozen=True)
class ClientRow:
    """One client, as far as the folder tells."""

    name: str
    state: str  # "here", "dropped", "away" or "" if it is not known
    why: str  # what was wrong with its last answer
    last: int | None  # the last round it took part in
    taken: int  # rounds it took part in
    dropped: int  # rounds in which an answer could not be used
    accuracy: float | None


class WatchPage:
    """The answers to all requests of one watch."""

    def __init__(self, feed: Feed, keys: Keys):
        self.feed, self.keys = feed, keys
        self._kept: tuple[Snapshot, str, tuple[dict[str, str], str]] | None = None

    def app(self) -> ASGIApp:
        routes = [
            Route("/", self.show),
            Route("/state", self.state),
            *file_routes("icon.svg", "pages.css", "watch.js"),
        ]
        return Guard(Starlette(routes=routes), self.keys, writes=False)

    def show(self, request: Request) -> Response:
        parts, version = self._now()
        return page("watch.html.jinja", title=self.feed.look().name, parts=parts, version=version, now=time.time())

    def state(self, request: Request) -> Response:
        """The parts of the page as they are now, or nothing if the page has them already."""
        parts, version = self._now()
        if request.query_params.get("seen") == version:
            return Response(status_code=204)
        return JSONResponse({"version": version, "parts": parts, "now": time.time()})

    def _now(self) -> tuple[dict[str, str], str]:
        """The parts and their version; worked out anew only when something changed."""
        snapshot = self.feed.look()
        state = snapshot.state(time.time())
        kept = self._kept
        if kept is not None and kept[0] is snapshot and kept[1] == state:
            return kept[2]
        parts = render(snapshot, state)
        made = parts, sha256("\0".join(parts.values()).encode()).hexdigest()[:16]
        self._kept = snapshot, state, made
        return made


def render(snapshot: Snapshot, state: str) -> dict[str, str]:
    """The parts of the page, each by itself, so that only what changed has to be replaced."""
    made = (
        environment()
        .get_template("watch-parts.html.jinja")
        .make_module(
            {
                "snapshot": snapshot,
                "last": snapshot.rounds[-1] if snapshot.rounds else None,
                "state": state,
                "left": seconds_left(snapshot),
                "refreshed": next((one for one in reversed(snapshot.rounds) if one.refreshed), None),
                "charts": list(charts(snapshot.rounds, snapshot.zero_shot)),
                "refresh": snapshot.refreshes[-1] if snapshot.refreshes else None,
                "bars": counts_chart(snapshot),
                "rows": client_rows(snapshot),
                "troubles": list(log_lines(snapshot.rounds)),
                "most_clients": MOST_CLIENTS,
                "most_lines": MOST_LINES,
            }
        )
    )
    return {name: str(getattr(made, name)()).strip() for name in PARTS}


def seconds_left(snapshot: Snapshot) -> float | None:
    each = snapshot.seconds_per_round
    if each is None or snapshot.planned is None or snapshot.finished:
        return None
    return each * max(0, snapshot.planned - snapshot.done)


def charts(rounds: Sequence[Round], zero_shot: float | None) -> Iterator[LineChart]:
    if not rounds:
        return
    numbers, refreshed = [one.number for one in rounds], [one.number for one in rounds if one.refreshed]
    accuracy = [Line(kind, kind, [_hundred(one.accuracy.get(kind)) for one in rounds]) for kind in KINDS]
    right = [Line("right", "macro", [_hundred(one.pseudo) for one in rounds])]
    changed = [
        Line("images trained on", "macro", [_hundred(one.chosen) for one in rounds]),
        Line("labels as at the last refresh", "weighted", [_hundred(one.unchanged) for one in rounds]),
    ]
    made = (
        line_chart(
            "Accuracy", numbers, accuracy, _percent, ticked=_percents, level=_hundred(zero_shot), refreshed=refreshed
        ),
        line_chart(
            "Training loss", numbers, [Line("loss", "macro", [one.loss for one in rounds])], loss, refreshed=refreshed
        ),
        line_chart("Pseudo labels that are right", numbers, right, _percent, ticked=_percents, refreshed=refreshed),
        line_chart("What refreshes changed", numbers, changed, _percent, ticked=_percents, refreshed=refreshed),
        line_chart(
            "Images trained on",
            numbers,
            [Line("images", "macro", [one.examples for one in rounds])],
            _whole,
            refreshed=refreshed,
        ),
    )
    yield from (chart for chart in made if chart is not None)


def counts_chart(snapshot: Snapshot) -> BarChart | None:
    """Images of each class before and after the allocation, and chosen."""
    refresh = snapshot.refreshes[-1] if snapshot.refreshes else None
    if refresh is None or not 0 < len(refresh.estimated) <= MOST_CLASSES:
        return None
    series = [
        Bars(title, kind, numbers)
        for title, kind, numbers in (
            ("sure, before", "estimated", refresh.estimated),
            ("allowed, after", "allocated", refresh.allocated),
            ("chosen", "selected", refresh.selected),
        )
        if len(numbers) == len(refresh.estimated)
    ]
    return bar_chart("Images of each class, all clients together", class_names(snapshot, refresh), series, _whole)


def class_names(snapshot: Snapshot, refresh: Refresh) -> list[str]:
    """The classes by name, or by number where the folder does not tell yet."""
    many = len(refresh.estimated)
    return list(snapshot.classes) if len(snapshot.classes) == many else [f"class {n + 1}" for n in range(many)]


def client_rows(snapshot: Snapshot) -> list[ClientRow]:
    """Those with troubles first, then in their usual order."""
    rounds = snapshot.rounds
    taken = Counter(name for one in rounds for name in one.trained or ())
    dropped = Counter(name for one in rounds for name in one.dropped)
    last_in = {name: one.number for one in rounds for name in one.trained or ()}
    last = rounds[-1] if rounds else Round(0)
    states = dict.fromkeys(last.trained or (), "here") | dict.fromkeys(last.dropped, "dropped")
    unlisted = "" if last.trained is None else "away"
    measured = last.clients if len(last.clients) == len(snapshot.clients) else (None,) * len(snapshot.clients)
    rows = [
        ClientRow(
            name,
            states.get(name, unlisted),
            last.dropped.get(name, ""),
            last_in.get(name),
            taken[name],
            dropped[name],
            accuracy,
        )
        for name, accuracy in zip(snapshot.clients, measured, strict=True)
    ]
    return sorted(rows, key=lambda row: (row.state != "dropped", row.state != "away"))


def log_lines(rounds: Sequence[Round]) -> Iterator[tuple[int, str, str]]:
    """What did not go as it should, the last first: round, who, what."""
    for one in reversed(rounds):
        yield from ((one.number, who, f"its answer was not used: {why}") for who, why in one.dropped.items())
        if one.kept_old_prompt:
            yield one.number, "server", "there was nothing to average: the old prompts stay"
        yield from ((one.number, "guard", words) for words in one.undone)


def _hundred(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _percents(values: Sequence[float]) -> list[str]:
    return marks(values, "%")


def _whole(value: float) -> str:
    return count(round(value))

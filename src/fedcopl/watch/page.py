"""The page that shows how a run gets on. It reads the run's folder and writes nothing anywhere."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ..local_page.access import Guard, Keys
from ..local_page.serving import environment, file_routes, page
from ..report import curves
from ..report.charts import BarChart, Bars, LineChart, Unit, bar_chart
from ..run.record import Outcome, RoundRecord
from .feed import RefreshTotals, Snapshot

PARTS = ("head", "tiles", "curves", "counts", "clients", "log")
MOST_CLIENTS, MOST_LINES, MOST_CLASSES = 200, 200, 60  # shown


@dataclass(frozen=True)
class WatchedRound:
    """One round as the tiles show it; None where the folder does not say."""

    accuracy: Mapping[str, float | None]  # macro, weighted, global
    loss: float | None
    participants: int
    examples: int | None
    chosen: float | None  # share of all images that are trained on from this refresh on
    unchanged: float | None  # share of the labels that are those of the refresh before
    seconds: float | None  # since the run began


@dataclass(frozen=True)
class WatchedClient:
    """One client, as far as the folder tells."""

    name: str
    state: str  # "here", "dropped", "away" or "" if it is not known
    why: str  # what was wrong with its last answer
    last: int | None  # the last round it took part in
    taken: int  # rounds it took part in
    dropped: int  # rounds in which an answer could not be used
    accuracy: float | None


class Seen(Protocol):
    """What is known at one moment: of one run, or of several. The same object as long as nothing changes."""

    @property
    def name(self) -> str: ...

    def state(self, now: float) -> str: ...


SeenNow = TypeVar("SeenNow", bound=Seen, covariant=True)


class Looking(Protocol[SeenNow]):
    """Somebody who looks whenever asked."""

    def look(self) -> SeenNow: ...


class WatchPage:
    """The answers to all requests of one watch."""

    def __init__(self, feed: Looking[SeenNow], keys: Keys, draw: Callable[[SeenNow, str], dict[str, str]]):
        self.feed, self.keys, self.draw = feed, keys, draw
        self._kept: tuple[Seen, str, tuple[dict[str, str], str]] | None = None

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
        parts = self.draw(snapshot, state)
        made = parts, sha256("\0".join(parts.values()).encode()).hexdigest()[:16]
        self._kept = snapshot, state, made
        return made


def render(snapshot: Snapshot, state: str) -> dict[str, str]:
    """The parts of the page, each by itself, so that only what changed has to be replaced."""
    rounds, refreshes = snapshot.outcome.rounds, snapshot.refreshes
    refreshed = next((record for record in reversed(rounds) if record.refreshed), None)
    made = (
        environment()
        .get_template("watch-parts.html.jinja")
        .make_module(
            {
                "snapshot": snapshot,
                "last": watched_round(rounds[-1]) if rounds else None,
                "state": state,
                "left": seconds_left(snapshot),
                "refreshed": watched_round(refreshed) if refreshed else None,
                "charts": charts(snapshot.outcome),
                "refresh": refreshes[-1] if refreshes else None,
                "bars": counts_chart(snapshot.outcome.classes, refreshes[-1]) if refreshes else None,
                "rows": watched_clients(snapshot),
                "troubles": list(log_lines(rounds)),
                "most_clients": MOST_CLIENTS,
                "most_lines": MOST_LINES,
            }
        )
    )
    return {name: str(getattr(made, name)()).strip() for name in PARTS}


def watched_round(record: RoundRecord) -> WatchedRound:
    return WatchedRound(
        accuracy={kind.name: kind.of(record) for kind in curves.ACCURACIES},
        loss=record.loss,
        participants=record.participants,
        examples=record.examples or None,
        chosen=curves.chosen_share(record),
        unchanged=curves.unchanged_share(record),
        seconds=record.seconds or None,
    )


def seconds_left(snapshot: Snapshot) -> float | None:
    each = snapshot.seconds_per_round
    if each is None or snapshot.planned is None or snapshot.finished:
        return None
    return each * max(0, snapshot.planned - snapshot.done)


def charts(outcome: Outcome) -> list[LineChart]:
    right = curves.by_round(outcome, lambda record: curves.hundred(record.pseudo_label_accuracy))
    images = curves.by_round(outcome, lambda record: record.examples or None)
    made = (
        curves.accuracy_chart(outcome),
        curves.loss_chart(outcome),
        _chart(outcome, "Pseudo labels that are right", curves.PERCENT, {"right": right}),
        _chart(outcome, "What refreshes changed", curves.PERCENT, curves.labelling_by_round(outcome)),
        _chart(outcome, "Images trained on", curves.COUNT, {"images": images}),
    )
    return [chart for chart in made if chart is not None]


def _chart(outcome: Outcome, title: str, unit: Unit, named: Mapping[str, curves.ByRound]) -> LineChart | None:
    return curves.chart(title, unit, named, curves.LOOKS, over=outcome.rounds)


def counts_chart(classes: Sequence[str], refresh: RefreshTotals) -> BarChart | None:
    """Images of each class before and after the allocation, and chosen."""
    if not 0 < len(refresh.estimated) <= MOST_CLASSES:
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
    names = class_names(classes, len(refresh.estimated))
    return bar_chart("Images of each class, all clients together", names, series, curves.COUNT)


def class_names(classes: Sequence[str], many: int) -> list[str]:
    """The classes by name, or by number where the folder does not tell yet."""
    return list(classes) if len(classes) == many else [f"class {n + 1}" for n in range(many)]


def watched_clients(snapshot: Snapshot) -> list[WatchedClient]:
    """Those with troubles first, then in their usual order."""
    rounds = snapshot.outcome.rounds
    taken = Counter(name for record in rounds for name in record.sites or ())
    dropped = Counter(name for record in rounds for name in record.dropped)
    last_in = {name: record.number for record in rounds for name in record.sites or ()}
    last = rounds[-1] if rounds else RoundRecord(round=0)
    states = dict.fromkeys(last.sites or (), "here") | dict.fromkeys(last.dropped, "dropped")
    unlisted = "" if last.sites is None else "away"
    measured = last.clients if len(last.clients) == len(snapshot.clients) else (None,) * len(snapshot.clients)
    rows = [
        WatchedClient(
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


def log_lines(rounds: Sequence[RoundRecord]) -> Iterator[tuple[int, str, str]]:
    """What did not go as it should, the last first: round, who, what."""
    for record in reversed(rounds):
        yield from ((record.number, who, f"its answer was not used: {why}") for who, why in record.dropped.items())
        yield from ((record.number, who, what) for who, what in record.site_notes())
        if record.kept_old_prompt:
            yield record.number, "server", "there was nothing to average: the old prompts stay"
        yield from ((record.number, "guard", said) for said in record.rollbacks())

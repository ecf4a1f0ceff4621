"""results.json and some example images -> report.html."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ..data.dataset import printable
from ..files import write_text
from ..run.folder import REPORT, ROUNDS
from ..run.reading import read_so_far
from ..run.record import Outcome, RoundRecord
from ..run.rollback_text import rollback_text
from ..run.site_text import site_text
from . import curves
from . import numbers as words
from .charts import BarChart, Bars, bar_chart
from .gallery import Example, read_examples
from .narrative import SURE, LabelStory, label_story, lead
from .tables import (
    SHOWN,
    ClassRow,
    Counted,
    HeatTable,
    RecallRow,
    ReportedClient,
    class_rows,
    counted,
    heat_tables,
    mix_overlaps,
    mix_tables,
    recall_rows,
    refresh_rows,
    reported_clients,
    verdict,
)

SIDE_BY_SIDE = 12  # heat maps with more classes stand below each other
LONG_NAME = 6  # letters of a class name that is written upright
GIVERS = 3  # classes or clients named as those that gave or got most
UNNAMED = 20  # classes named as those that no image was given
TROUBLES = 20  # lines about what did not go as it should
SECTIONS = {
    "result": "Result",
    "rounds": "Rounds",
    "labels": "Pseudo labels",
    "balance": "Balance",
    "who": "Client by class",
    "mix": "Mix of classes",
    "clients": "Clients",
    "classes": "Classes",
    "drift": "Drift",
    "cost": "Cost",
    "gallery": "Gallery",
    "repeat": "Repeat",
}
FILTERS = ("change", "count", "duration", "loss", "percent", "points", "ratio", "several", "shortened", "size")
OF_REFRESHES = ("labels", "balance", "who")  # sections that only a run has that labelled something


def write_report(folder: Path, page: Path | None = None) -> Path:
    """Write the report of a run, finished or not, beside its outcome or where else it is wanted."""
    outcome = read_so_far(folder)
    page = page or folder / REPORT
    write_page(page, outcome, read_examples(folder, len(outcome.classes)))
    return page


def write_page(path: Path, outcome: Outcome, examples: Sequence[Example]) -> None:
    """Write the whole report as one file that needs nothing beside it."""
    write_text(path, printable(render(outcome, examples)))


def render(outcome: Outcome, examples: Sequence[Example]) -> str:
    how, numbers = label_story(outcome), counted(outcome)
    clients, recall, drift = reported_clients(outcome, numbers), class_recall(outcome), curves.drift_charts(outcome)
    class_priors = mix_tables(outcome)
    shown = {"classes": bool(recall.rows), "drift": bool(drift), "mix": bool(class_priors)}
    shown |= dict.fromkeys(OF_REFRESHES, numbers is not None)
    return template("report.html.jinja").render(
        outcome=outcome,
        how=how,
        sure=how.estimated == SURE,
        lead=lead(outcome),
        unfinished=unfinished(outcome),
        tiles=tiles(outcome),
        accuracy=curves.accuracy_chart(outcome),
        loss=curves.loss_chart(outcome),
        labels=curves.labels_chart(outcome),
        labelling=curves.labelling_chart(outcome),
        refreshes=refresh_rows(outcome),
        by_class=None if numbers is None else last_refresh(outcome, numbers, how, clients),
        class_priors=class_priors,
        overlaps=mix_overlaps(outcome),
        clients=clients,
        verdict=verdict(clients),
        recall=recall,
        drift=drift,
        cost=curves.cost_charts(outcome),
        seconds=curves.seconds_by_round(outcome),
        steps=curves.time_by_step(outcome),
        groups=groups(examples),
        chosen=by_section(outcome.settings),
        troubles=troubles(outcome),
        sections=[(anchor, title) for anchor, title in section_titles(how).items() if shown.get(anchor, True)],
    )


def section_titles(how: LabelStory) -> dict[str, str]:
    balance = SECTIONS["balance"] if how.cooperative else "Images"
    labels = "Labels" if how.supervised else SECTIONS["labels"]
    return SECTIONS | {"balance": balance, "labels": labels}


def unfinished(outcome: Outcome) -> int | None:
    """How many rounds it was to have, if they are not all done."""
    return None if outcome.is_complete else outcome.planned_rounds


@cache
def template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("fedcopl.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(words, name) for name in FILTERS}
    limits = {"LONG_NAME": LONG_NAME, "SHOWN": SHOWN, "SIDE_BY_SIDE": SIDE_BY_SIDE, "UNNAMED": UNNAMED}
    environment.globals |= limits
    return environment.get_template(name)


@dataclass(frozen=True)
class Tile:
    """One of the three accuracies: the last round, zero-shot and untrained priors beside it, the best round apart."""

    name: str
    meaning: str
    last: float | None
    zero_shot: float | None
    best: float | None
    untrained: float | None

    @property
    def gain(self) -> float | None:
        return words.difference(self.last, self.zero_shot)


def tiles(outcome: Outcome) -> list[Tile]:
    moments = (outcome.final, outcome.zero_shot, outcome.best, outcome.untrained)
    return [
        Tile(kind.name, kind.meaning, *(None if scores is None else kind.of(scores) for scores in moments))
        for kind in curves.ACCURACIES
    ]


Moved = ClassRow | ReportedClient


@dataclass(frozen=True)
class Balance:
    """Each class's equal share, and which classes and clients gave and got most to come near it."""

    share: float
    gave: Sequence[Moved]
    got: Sequence[Moved]
    givers: Sequence[Moved]
    getters: Sequence[Moved]


def balance(classes: Sequence[ClassRow], clients: Sequence[ReportedClient]) -> Balance:
    return Balance(_share(classes), *_ends(classes), *_ends(clients if len(clients) > 1 else []))


def _ends(rows: Sequence[Moved]) -> tuple[list[Moved], list[Moved]]:
    """Those that lost, the greatest loss first, and those that gained, the greatest gain first."""
    by_change = sorted(rows, key=lambda row: row.change)
    lost, gained = [r for r in by_change if r.change < 0], [r for r in reversed(by_change) if r.change > 0]
    return lost[:GIVERS], gained[:GIVERS]


def _share(classes: Sequence[ClassRow]) -> float:
    return sum(row.estimated for row in classes) / len(classes)


def balance_chart(classes: Sequence[ClassRow], how: LabelStory) -> BarChart:
    series = [
        Bars("estimated", "estimated", [row.estimated for row in classes]),
        Bars("allocated", "allocated", [row.allocated for row in classes]),
        Bars("selected", "selected", [row.selected for row in classes]),
    ]
    level = ("equal share", _share(classes)) if how.cooperative else None
    names = [row.name for row in classes]
    return bar_chart("Images per class, all clients together", names, series, curves.COUNT, level=level)


@dataclass(frozen=True)
class LastRefresh:
    """What the last refresh did to each class."""

    rows: Sequence[ClassRow]
    heat_tables: Sequence[HeatTable]
    balance: Balance
    bars: BarChart

    @property
    def unlabelled(self) -> list[str]:
        return [row.name for row in self.rows if not row.selected]


def last_refresh(outcome: Outcome, numbers: Counted, how: LabelStory, clients: Sequence[ReportedClient]) -> LastRefresh:
    rows = class_rows(outcome, numbers)
    return LastRefresh(rows, heat_tables(outcome, numbers, how), balance(rows, clients), balance_chart(rows, how))


@dataclass(frozen=True)
class Recall:
    """The recall of each class, and the classes it changed most for."""

    rows: Sequence[RecallRow]
    gained: Sequence[RecallRow] = ()
    lost: Sequence[RecallRow] = ()
    chart: BarChart | None = None


def class_recall(outcome: Outcome) -> Recall:
    rows = recall_rows(outcome)
    if not rows:
        return Recall(rows)
    known = sorted((row.points, n) for n, row in enumerate(rows) if row.points is not None)
    gained = [rows[n] for points, n in reversed(known) if points > 0]
    lost = [rows[n] for points, n in known if points < 0]
    series = [
        Bars("zero-shot", "estimated", [curves.hundred(row.zero_shot) for row in rows]),
        Bars("last round", "selected", [curves.hundred(row.last) for row in rows]),
    ]
    known_series = [one for one in series if any(number is not None for number in one.numbers)]
    chart = bar_chart("Recall of each class", [row.name for row in rows], known_series, curves.PERCENT)
    return Recall(rows, gained[:GIVERS], lost[:GIVERS], chart)


def groups(examples: Sequence[Example]) -> list[tuple[int, list[Example]]]:
    """The examples by pseudo label."""
    ordered = sorted(examples, key=lambda example: example.label)
    return [(label, list(members)) for label, members in groupby(ordered, key=lambda example: example.label)]


def by_section(settings: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The settings by section, those without one first, each value as in settings.toml."""
    alone = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}
    titled = [("general", alone), *((key, value) for key, value in settings.items() if key not in alone)]
    return [(title, [(key, written(value)) for key, value in pairs.items()]) for title, pairs in titled if pairs]


def written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def troubles(outcome: Outcome) -> list[str]:
    """Replies that were not used, sites whose say was cut or who wait, and rounds that taught nothing."""
    lines = [f"before the first round, {client}: {why}; not used" for client, why in outcome.dropped_before.items()]
    lines += [line for record in outcome.rounds for line in _troubles(record)]
    more = len(lines) - TROUBLES
    return lines if more <= 0 else [*lines[:TROUBLES], f"and {words.count(more)} more of this kind: see {ROUNDS}"]


def _troubles(record: RoundRecord) -> list[str]:
    lines = [f"round {record.number}, {client}: {why}; not used" for client, why in record.dropped.items()]
    lines += [f"round {record.number}, {who}: {what}" for who, what in site_text(record)]
    if record.kept_old_prompt:
        lines.append(f"round {record.number}: there was nothing to average; the prompts stayed as they were")
    return [*lines, *(f"round {record.number}: {said}" for said in rollback_text(record))]

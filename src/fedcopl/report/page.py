"""results.json and some example images -> report.html."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ..files import write_text
from . import curves, words
from .charts import BarChart, Bars, bar_chart
from .gallery import Example
from .shape import completed
from .story import SURE, Labelling, Results, images_held, labelling, lead, setting
from .tables import (
    SHOWN,
    ClassRow,
    ClientRow,
    Counted,
    RecallRow,
    class_rows,
    client_rows,
    counted,
    heat_maps,
    recall_rows,
    refresh_rows,
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
    "clients": "Clients",
    "classes": "Classes",
    "drift": "Drift",
    "cost": "Cost",
    "gallery": "Gallery",
    "repeat": "Repeat",
}


def write_page(path: Path, results: Results, examples: Sequence[Example]) -> None:
    """Write the whole report as one file that needs nothing beside it."""
    write_text(path, render(results, examples))


def render(results: Results, examples: Sequence[Example]) -> str:
    results = from_one(completed(results))
    how, numbers = labelling(results), counted(results)
    clients = client_rows(results, numbers)
    parts = {
        "recall": recall(recall_rows(results)),
        "drift": curves.drift_charts(results),
        "refreshes": refresh_rows(results),
        **(about_classes(results, numbers, how, clients) if numbers else {"unlabelled": [], "heat_maps": []}),
    }
    return template("report.html.jinja").render(
        results=results,
        how=how,
        sure=how.estimated == SURE,
        lead=lead(results),
        unfinished=unfinished(results),
        trained_on=images_held(results),
        tiles=tiles(results),
        accuracy=curves.accuracy_chart(results),
        loss=curves.loss_chart(results),
        labels=curves.labels_chart(results),
        labelling=curves.labelling_chart(results),
        cost=curves.cost_charts(results),
        seconds=curves.seconds_by_round(results),
        steps=curves.time_by_step(results),
        clients=clients,
        verdict=verdict(clients),
        groups=groups(examples),
        chosen=by_section(results["settings"]),
        troubles=troubles(results["rounds"]),
        sections=sections(parts, how),
        **parts,
    )


def about_classes(results: Results, numbers: Counted, how: Labelling, clients: Sequence[ClientRow]) -> dict[str, Any]:
    """The parts that show what the last refresh did to each class."""
    classes = class_rows(results, numbers)
    return {
        "classes": classes,
        "heat_maps": heat_maps(results, numbers, how),
        "balance": balance(classes, clients),
        "bars": balance_chart(classes, how),
        "unlabelled": [row.name for row in classes if not row.selected],
    }


def sections(parts: Mapping[str, Any], how: Labelling) -> list[tuple[str, str]]:
    """Those sections that have something to show."""
    names = (
        SECTIONS | ({} if how.cooperative else {"balance": "Images"}) | ({"labels": "Labels"} if how.supervised else {})
    )
    missing = {
        "labels": not parts["refreshes"],
        "balance": not parts["refreshes"],
        "who": not parts["refreshes"],
        "classes": not parts["recall"].rows,
        "drift": not parts["drift"],
    }
    return [(place, name) for place, name in names.items() if not missing.get(place)]


def from_one(results: Results) -> dict[str, Any]:
    """The same with rounds counted from 1, as people do; the files count from 0, as the algorithm does."""
    renumbered = dict(results)
    for key in ("final", "best"):
        renumbered[key] = {**results[key], "round": results[key]["round"] + 1}
    for key in ("rounds", "refreshes"):
        renumbered[key] = [{**record, "round": record["round"] + 1} for record in results[key]]
    return renumbered


def unfinished(results: Results) -> int | None:
    """How many rounds it was to have, if they are not all done."""
    planned = setting(results, "rounds")
    return planned if isinstance(planned, int) and len(results["rounds"]) < planned else None


@cache
def template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("fedcopl.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        name: getattr(words, name)
        for name in (
            "change",
            "count",
            "duration",
            "loss",
            "percent",
            "points",
            "ratio",
            "several",
            "shortened",
            "size",
        )
    }
    environment.globals |= {
        "LONG_NAME": LONG_NAME,
        "SHOWN": SHOWN,
        "SIDE_BY_SIDE": SIDE_BY_SIDE,
        "UNNAMED": UNNAMED,
    }
    return environment.get_template(name)


@dataclass(frozen=True)
class Tile:
    """One of the three accuracies: the last round, zero-shot beside it, and the best round apart."""

    name: str
    meaning: str
    last: float | None
    zero_shot: float | None
    best: float | None

    @property
    def gain(self) -> float | None:
        return words.difference(self.last, self.zero_shot)


def tiles(results: Results) -> list[Tile]:
    last, zero_shot, best = results["final"], results["zero_shot"], results["best"]
    return [Tile(kind, meaning, last[kind], zero_shot[kind], best[kind]) for kind, meaning in curves.KINDS.items()]


Moved = ClassRow | ClientRow


@dataclass(frozen=True)
class Balance:
    """Each class's equal share, and which classes and clients gave and got most to come near it."""

    share: float
    gave: Sequence[Moved]
    got: Sequence[Moved]
    givers: Sequence[Moved]
    getters: Sequence[Moved]


def balance(classes: Sequence[ClassRow], clients: Sequence[ClientRow]) -> Balance:
    return Balance(_share(classes), *_ends(classes), *_ends(clients if len(clients) > 1 else []))


def _ends(rows: Sequence[Moved]) -> tuple[list[Moved], list[Moved]]:
    """Those that lost, the greatest loss first, and those that gained, the greatest gain first."""
    by_change = sorted(rows, key=lambda row: row.change)
    lost, gained = [r for r in by_change if r.change < 0], [r for r in reversed(by_change) if r.change > 0]
    return lost[:GIVERS], gained[:GIVERS]


def _share(classes: Sequence[ClassRow]) -> float:
    return sum(row.estimated for row in classes) / len(classes)


def balance_chart(classes: Sequence[ClassRow], how: Labelling) -> BarChart:
    series = [
        Bars("estimated", "estimated", [row.estimated for row in classes]),
        Bars("allocated", "allocated", [row.allocated for row in classes]),
        Bars("selected", "selected", [row.selected for row in classes]),
    ]
    level = ("equal share", _share(classes)) if how.cooperative else None
    names = [row.name for row in classes]
    return bar_chart(
        "Images per class, all clients together", names, series, lambda value: words.count(round(value)), level=level
    )


@dataclass(frozen=True)
class Recall:
    """The recall of each class, and the classes it changed most for."""

    rows: Sequence[RecallRow]
    gained: Sequence[RecallRow] = ()
    lost: Sequence[RecallRow] = ()
    chart: BarChart | None = None


def recall(rows: Sequence[RecallRow]) -> Recall:
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
    names, unit = [row.name for row in rows], curves.PERCENT
    chart = bar_chart("Recall of each class", names, known_series, unit.write, ticked=unit.ticked)
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


def troubles(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """Replies that were not used and rounds that taught nothing."""
    lines = [line for record in rounds for line in _troubles(record)]
    more = len(lines) - TROUBLES
    return lines if more <= 0 else [*lines[:TROUBLES], f"and {words.count(more)} more of this kind: see rounds.jsonl"]


def _troubles(record: Mapping[str, Any]) -> list[str]:
    dropped = [f"round {record['round']}, {client}: {why}; not used" for client, why in record["dropped"].items()]
    if record["kept_old_prompt"]:
        dropped.append(f"round {record['round']}: there was nothing to average; the prompts stayed as they were")
    undone = record.get("guard", {}).get("words", [])  # runs of older versions have no guard
    return dropped + [f"round {record['round']}: {words}" for words in undone]

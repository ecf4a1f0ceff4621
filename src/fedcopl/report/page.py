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
from . import words
from .charts import BarChart, Line, LineChart, bar_chart, line_chart
from .gallery import Example
from .tables import (
    LEVELS,
    SHOWN,
    ClassRow,
    Results,
    class_rows,
    client_rows,
    counted,
    heat_maps,
    refresh_rows,
    verdict,
)

KINDS = {
    "macro": "the mean of the clients' accuracies, each on its own test images",
    "weighted": "the same mean, weighted by each client's number of test images",
    "global": "every client's model on all test images, averaged",
}
AVERAGED = {
    "visual": "averages their visual prompts",
    "text": "averages their text prompts",
    "both": "averages their visual and text prompts",
    "none": "averages nothing",
}
SIDE_BY_SIDE = 12  # heat maps with more classes stand below each other
LONG_NAME = 6  # letters of a class name that is written upright
GIVERS = 3  # classes named as those that gave or got most
TROUBLES = 20  # lines about what did not go as it should


def write_page(path: Path, results: Results, examples: Sequence[Example]) -> None:
    """Write the whole report as one file that needs nothing beside it."""
    write_text(path, render(results, examples))


def render(results: Results, examples: Sequence[Example]) -> str:
    results = from_one(results)
    numbers = counted(results)
    classes, clients = class_rows(results, numbers), client_rows(results, numbers)
    return _template().render(
        results=results,
        balanced=is_balanced(results),
        averaging=AVERAGED.get(_setting(results, "sharing", "aggregate"), AVERAGED["visual"]),
        trained_on=sum(client["train"] for client in results["clients"]),
        tiles=tiles(results),
        accuracy=accuracy_chart(results),
        loss=loss_chart(results),
        refreshes=refresh_rows(results),
        heat_maps=heat_maps(results, numbers),
        bars=balance_chart(classes),
        balance=balance(classes),
        classes=classes,
        clients=clients,
        verdict=verdict(clients),
        groups=groups(examples),
        unlabelled=[row.name for row in classes if not row.selected],
        sections=sections(results["settings"]),
        troubles=troubles(results["rounds"]),
    )


def from_one(results: Results) -> dict[str, Any]:
    """The same with rounds counted from 1, as people do; the files count from 0, as the algorithm does."""
    renumbered = dict(results)
    for key in ("final", "best"):
        renumbered[key] = {**results[key], "round": results[key]["round"] + 1}
    for key in ("rounds", "refreshes"):
        renumbered[key] = [{**record, "round": record["round"] + 1} for record in results[key]]
    return renumbered


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("fedcopl.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        name: getattr(words, name)
        for name in ("change", "count", "duration", "loss", "percent", "points", "several", "size")
    }
    environment.globals |= {
        "LEVELS": LEVELS,
        "LONG_NAME": LONG_NAME,
        "SHOWN": SHOWN,
        "SIDE_BY_SIDE": SIDE_BY_SIDE,
    }
    return environment.get_template("report.html.jinja")


def _setting(results: Results, section: str, key: str) -> Any:
    return results["settings"].get(section, {}).get(key)


def is_balanced(results: Results) -> bool:
    """Did the server share the classes out, or did each client go by its own counts?"""
    return _setting(results, "labels", "global_allocation") is not False


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
    return [Tile(kind, meaning, last[kind], zero_shot[kind], best[kind]) for kind, meaning in KINDS.items()]


def accuracy_chart(results: Results) -> LineChart | None:
    rounds, zero_shot = results["rounds"], results["zero_shot"]["macro"]
    return line_chart(
        "Accuracy over the rounds, in per cent",
        [record["round"] for record in rounds],
        [Line(kind, kind, [_hundred(record[kind]) for record in rounds]) for kind in KINDS],
        lambda value: words.percent(value / 100),
        bounds=(0, 100),
        suffix=f"{words.SPACE}%",
        level=_hundred(zero_shot),
        refreshed=_refreshed(rounds),
    )


def loss_chart(results: Results) -> LineChart | None:
    rounds = results["rounds"]
    return line_chart(
        "Training loss over the rounds",
        [record["round"] for record in rounds],
        [Line("loss", "macro", [record["loss"] for record in rounds])],
        words.loss,
        bounds=(0, float("inf")),
        refreshed=_refreshed(rounds),
    )


def _hundred(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _refreshed(rounds: Sequence[Mapping[str, Any]]) -> list[int]:
    return [record["round"] for record in rounds if record["refreshed"]]


@dataclass(frozen=True)
class Balance:
    """Each class's equal share, and who gave and who got most to come near it."""

    share: float
    gave: list[ClassRow]
    got: list[ClassRow]


def balance(classes: Sequence[ClassRow]) -> Balance:
    by_change = sorted(classes, key=lambda row: row.change)
    gave = [row for row in by_change if row.change < 0]
    got = [row for row in reversed(by_change) if row.change > 0]
    return Balance(_share(classes), gave[:GIVERS], got[:GIVERS])


def _share(classes: Sequence[ClassRow]) -> float:
    return sum(row.estimated for row in classes) / len(classes)


def balance_chart(classes: Sequence[ClassRow]) -> BarChart:
    series = [
        ("estimated", "estimated", [row.estimated for row in classes]),
        ("allocated", "allocated", [row.allocated for row in classes]),
        ("selected", "selected", [row.selected for row in classes]),
    ]
    names = [row.name for row in classes]
    return bar_chart("Pseudo labels per class, all clients together", names, series, _share(classes))


def groups(examples: Sequence[Example]) -> list[tuple[int, list[Example]]]:
    """The examples by pseudo label."""
    ordered = sorted(examples, key=lambda example: example.label)
    return [(label, list(members)) for label, members in groupby(ordered, key=lambda example: example.label)]


def sections(settings: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The settings by section, those without one first, each value as in settings.toml."""
    alone = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}
    titled = [("general", alone), *((key, value) for key, value in settings.items() if key not in alone)]
    return [(title, [(key, _written(value)) for key, value in pairs.items()]) for title, pairs in titled if pairs]


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def troubles(rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """Replies that were not used and rounds that taught nothing."""
    lines = [line for record in rounds for line in _troubles(record)]
    more = len(lines) - TROUBLES
    return lines if more <= 0 else [*lines[:TROUBLES], f"and {words.count(more)} more of this kind: see rounds.jsonl"]


def _troubles(record: Mapping[str, Any]) -> list[str]:
    dropped = [f"round {record['round']}, {client}: {why}; not used" for client, why in record["dropped"].items()]
    if record["kept_old_prompt"]:
        dropped.append(f"round {record['round']}: nobody had anything to train on; the prompts stayed as they were")
    return dropped

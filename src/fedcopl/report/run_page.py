"""The report of a run: results.json and some example images as one HTML page, also while the run goes on."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from ..files import write_text
from ..run.folder import REPORT, ROUNDS, read_so_far
from ..run.pseudo_labels import LastLabels, read_last_labels
from ..run.record import Measured, Outcome
from . import curves
from . import numbers as words
from .charts import BarChart, Bars, bar_chart
from .gallery import Example, read_examples
from .label_free import LOW_AGREEMENT, REVIEWED, UNSURE, ReviewedClient, label_free, read_reviews
from .narrative import LabelStory, by_rounds, label_story, lead
from .tables import (
    SHOWN,
    ClassRow,
    Counted,
    RecallRow,
    changed_clients,
    class_priors,
    class_rows,
    counted,
    heat_tables,
    recall_rows,
    reported_clients,
)

_SECTIONS = {
    "result": "Result",
    "priors": "Class priors",
    "classes": "Classes",
    "examples": "Examples",
    "research": "For researchers",
    "repeat": "Repeat",
}
_PROBLEMS = 20  # lines about replies that were not used and rounds that were rolled back
_FILTERS = "change count duration loss percent points ratio several shortened size whole_percent".split()


@dataclass(frozen=True)
class LiveStatus:
    """The status that `fedcopl watch` shows at the top of the page."""

    version: str  # changes with everything on the page
    state: str
    text: str
    done: int = 0  # rounds
    planned: int | None = None


def write_report(folder: Path, page: Path | None = None) -> Path:
    """Write the report of a run, finished or not, into its folder or to `page`."""
    page = page or folder / REPORT
    write_text(page, render_folder(folder, read_so_far(folder)))
    return page


def render_folder(folder: Path, outcome: Outcome, live: LiveStatus | None = None) -> str:
    """Render the outcome with the examples, pseudo labels and reviews in its folder."""
    examples = read_examples(folder, len(outcome.classes))
    return render(outcome, examples, read_last_labels(folder), read_reviews(folder), live)


def render_waiting(title: str, live: LiveStatus) -> str:
    """Render the page of a run without a finished round."""
    return template("base.html.jinja").render(title=title, live=live, sections=[])


def render(
    outcome: Outcome,
    examples: Sequence[Example],
    labels: Mapping[str, LastLabels] | None = None,
    reviews: Sequence[ReviewedClient] = (),
    live: LiveStatus | None = None,
) -> str:
    """Render the report; `labels` are the pseudo labels of the last refresh by client."""
    story, numbers, recall, priors = label_story(outcome), counted(outcome), recall_rows(outcome), class_priors(outcome)
    clients = reported_clients(outcome, numbers)
    shown_if = {"Class priors": priors["priors"], "Classes": recall}
    result = {
        "labelled": outcome.final.macro is not None,
        "moments": _accuracies(outcome),
        "label_free": label_free(outcome, labels or {}, reviews),
        "problems": _problems(outcome),
        "clients": clients,
        "changed": changed_clients(clients),
        "taking_part": {row.name: row for row in clients},
        "participation": any(row.rounds not in (None, len(outcome.rounds)) for row in clients),
    }
    shown = {
        **priors,
        "recall": recall,
        "recall_chart": _recall_chart(recall) if recall else None,
        "doubted": [example for example in examples if example.doubted],
        "groups": [
            (label, members)
            for label in range(len(outcome.classes))
            if (members := [example for example in examples if example.label == label and not example.doubted])
        ],
        "chosen": by_section(outcome.settings),
    }
    return template("report.html.jinja").render(
        outcome=outcome,
        live=live,
        title=f"{outcome.name} · FedCoPL report",
        how=story,
        lead=lead(outcome),
        unfinished=None if outcome.is_complete else outcome.planned_rounds,
        sections=[(anchor, heading) for anchor, heading in _SECTIONS.items() if shown_if.get(heading, True)],
        **result,
        **shown,
        **_for_researchers(outcome, numbers, story),
    )


def _for_researchers(outcome: Outcome, numbers: Counted | None, story: LabelStory) -> dict[str, Any]:
    """Return the variables of the page's collapsed section."""
    classes = [] if numbers is None else class_rows(outcome, numbers)
    return {
        "tiles": list(_tiles(outcome)),
        "classes": classes,
        "balance": _balance_chart(classes, story) if classes else None,
        "heat_tables": [] if numbers is None else heat_tables(outcome, numbers, story),
        **curves.run_charts(outcome),
        "steps": curves.time_by_step(outcome),
    }


@cache
def template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("fedcopl.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(words, name) for name in _FILTERS} | {"quote": shlex.quote}
    environment.globals |= {"SHOWN": SHOWN, "REVIEWED": REVIEWED, "UNSURE": UNSURE, "LOW_AGREEMENT": LOW_AGREEMENT}
    return environment.get_template(name)


def _accuracies(outcome: Outcome) -> list[tuple[str, Measured]]:
    """Return the results of zero-shot, the priors without training, and the last evaluated round, if they exist."""
    results: list[tuple[str, Measured]] = [("zero-shot", outcome.zero_shot)]
    if outcome.untrained is not None:
        results.append(("priors", outcome.untrained))
    if outcome.trains:
        results.append(("trained", outcome.final))
    elif outcome.setting("method") != "zeroshot":
        results.append(("priors", outcome.final))
    return [(name, scores) for name, scores in results if scores.macro is not None]


def _tiles(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """Yield each of the three accuracies at each moment."""
    moments = {"last": outcome.final, "zero_shot": outcome.zero_shot, "best": outcome.best}
    for kind in curves.ACCURACIES:
        tile = {name: kind.of(scores) for name, scores in moments.items()}
        untrained = kind.of(outcome.untrained) if outcome.untrained else None
        gain = words.difference(tile["last"], tile["zero_shot"])
        yield {"name": kind.name, "meaning": kind.meaning, "untrained": untrained, "gain": gain, **tile}


def _balance_chart(classes: Sequence[ClassRow], story: LabelStory) -> BarChart:
    """Images per class at the last refresh, with a line at the equal share where the server balances."""
    kinds = ("estimated", "allocated", "selected")
    series = [Bars(kind, kind, [getattr(row, kind) for row in classes]) for kind in kinds]
    share = sum(row.estimated for row in classes) / len(classes)
    level = ("equal share", share) if story.cooperative else None
    names = [row.name for row in classes]
    return bar_chart("Images per class, all clients together", names, series, curves.COUNT, level=level)


def _recall_chart(rows: Sequence[RecallRow]) -> BarChart:
    series = [
        Bars("zero-shot", "estimated", [curves.hundred(row.zero_shot) for row in rows]),
        Bars("last round", "selected", [curves.hundred(row.last) for row in rows]),
    ]
    measured = [one for one in series if any(number is not None for number in one.numbers)]
    return bar_chart("Recall of each class", [row.name for row in rows], measured, curves.PERCENT)


def by_section(settings: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The settings by section, those without one first, each value as in settings.toml."""
    alone = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}
    titled = [("general", alone), *((key, value) for key, value in settings.items() if key not in alone)]
    return [(title, [(key, written(value)) for key, value in pairs.items()]) for title, pairs in titled if pairs]


def written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _problems(outcome: Outcome) -> list[str]:
    """Return replies that were not used, clipped weights, rounds without an average, and rollbacks."""
    lines: list[tuple[int, str]] = []
    for record in outcome.rounds:
        texts = [f"{client}: {reason}; not used" for client, reason in record.dropped.items()]
        texts += [f"{who}: {text}" for who, text in record.site_notes()]
        if outcome.trains:
            texts += ["nothing to average; the prompts stayed as they were"] * record.kept_old_prompt
            texts += record.rollbacks()
        lines += [(record.number, text) for text in texts]
    before = [f"before the first round: {who}: {reason}; not used" for who, reason in outcome.dropped_before.items()]
    problems = [*before, *by_rounds(lines)]
    more = len(problems) - _PROBLEMS
    return problems if more <= 0 else [*problems[:_PROBLEMS], f"and {words.count(more)} more: see {ROUNDS}"]

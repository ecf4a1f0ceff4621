"""The report of a run, finished or not: one HTML page with the numbers of results.json and example images."""

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from numpy.typing import NDArray

from ..files import write_text
from ..run.folder import REPORT, ROUNDS, read_so_far
from ..run.progress_reporter import STEPS
from ..run.pseudo_labels import LastLabels, read_last_labels
from ..run.record import ClientRecord, Counts, Measured, Outcome, RoundRecord
from . import curves
from . import formatting as fmt
from .charts import BarChart, Series, bar_chart
from .gallery import Example, read_examples
from .label_free import (
    FIRST_REVIEW,
    LOW_AGREEMENT,
    SHOWN,
    UNSURE,
    ReviewedClient,
    label_free,
    largest_clients,
    read_reviews,
)
from .narrative import LabelTexts, by_rounds, clients_rejecting_priors, label_texts, run_summary

_SECTIONS = {
    "result": "Result",
    "priors": "Class priors",
    "classes": "Classes",
    "examples": "Examples",
    "research": "For researchers",
    "repeat": "Repeat",
}
_MAX_WARNINGS = 20
_SHADES = 9  # of a heat map, without the one of zero
_CHANGE_SHADES = 5  # of positive changes, and as many of negative ones
_FILTERS = "change count duration loss percent points ratio several shortened size whole_percent".split()
_Table = tuple[NDArray[np.int64], NDArray[np.bool_]]
"""Numbers (K, C), and which clients have them (K); rows without numbers are zero."""
_Row = Mapping[str, Any]


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
    return _render(outcome, examples, read_last_labels(folder), read_reviews(folder), live)


def _render(
    outcome: Outcome,
    examples: Sequence[Example],
    labels: Mapping[str, LastLabels] | None = None,
    reviews: Sequence[ReviewedClient] = (),
    live: LiveStatus | None = None,
) -> str:
    """Render the report; `labels` are the pseudo labels of the last refresh by client."""
    texts, counts, recall = label_texts(outcome), _label_counts(outcome), _recall_rows(outcome)
    priors, clients = _class_priors(outcome), _reported_clients(outcome, counts)
    classes = _class_rows(outcome, counts) if counts else []
    shown_if = {"Class priors": priors["priors"], "Classes": recall}
    return template("report.html.jinja").render(
        outcome=outcome,
        live=live,
        title=f"{outcome.name} · FedCoPL report",
        label_texts=texts,
        summary=run_summary(outcome),
        unfinished=None if outcome.is_complete else outcome.planned_rounds,
        sections=[(anchor, heading) for anchor, heading in _SECTIONS.items() if shown_if.get(heading, True)],
        labelled=outcome.final.macro is not None,
        accuracies=_accuracies(outcome),
        label_free=label_free(outcome, labels or {}, reviews),
        warnings=_warnings(outcome),
        clients=clients,
        changed=_changed_clients(clients),
        client_rows={row.name: row for row in clients},
        participation=any(row.rounds not in (None, len(outcome.rounds)) for row in clients),
        **priors,
        recall=recall,
        recall_chart=_recall_chart(recall) if recall else None,
        least_confident=[example for example in examples if example.least_confident],
        groups=[
            (label, members)
            for label in range(len(outcome.classes))
            if (members := [example for example in examples if example.label == label and not example.least_confident])
        ],
        settings_by_section=by_section(outcome.settings),
        tiles=list(_tiles(outcome)),
        classes=classes,
        balance=_balance_chart(classes, texts) if classes else None,
        heat_tables=_heat_tables(outcome, counts, texts) if counts else [],
        **curves.run_charts(outcome),
        steps=_time_by_step(outcome),
    )


def template(name: str) -> Template:
    """Return a template of this package."""
    return template_environment("fedcopl.report").get_template(name)


@cache
def template_environment(package: str, folder: str = "") -> Environment:
    """Return the environment of the templates in a package, with the number formats as filters."""
    loader = PackageLoader(package, folder)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {name: getattr(fmt, name) for name in _FILTERS} | {"quote": shlex.quote}
    environment.globals.update(SHOWN=SHOWN, FIRST_REVIEW=FIRST_REVIEW, UNSURE=UNSURE, LOW_AGREEMENT=LOW_AGREEMENT)
    return environment


def _accuracies(outcome: Outcome) -> list[tuple[str, Measured]]:
    """Return the accuracies of zero-shot CLIP, of the priors without training, and of the last round, if measured."""
    results: list[tuple[str, Measured | None]] = [("zero-shot", outcome.zero_shot), ("priors", outcome.untrained)]
    if outcome.setting("method") != "zeroshot":
        results.append(("trained" if outcome.trains else "priors", outcome.final))
    return [(name, measured) for name, measured in results if measured is not None and measured.macro is not None]


def _tiles(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """Yield the macro, weighted and global accuracy of the last and best round, of zero-shot CLIP and of the priors."""
    records = {"last": outcome.final, "zero_shot": outcome.zero_shot, "best": outcome.best}
    for kind in curves.ACCURACIES:
        tile = {name: kind.value_of(scores) for name, scores in records.items()}
        untrained = kind.value_of(outcome.untrained) if outcome.untrained else None
        gain = fmt.difference(tile["last"], tile["zero_shot"])
        yield {"name": kind.name, "meaning": kind.meaning, "untrained": untrained, "gain": gain, **tile}


def _balance_chart(classes: Sequence[_Row], texts: LabelTexts) -> BarChart:
    """Draw the images per class at the last refresh, with a line at the equal share where the server balances."""
    stages = ("estimated", "allocated", "selected")
    series = [Series(stage, stage, [row[stage] for row in classes]) for stage in stages]
    equal_share = sum(row["estimated"] for row in classes) / len(classes)
    level = ("equal share", equal_share) if texts.cooperative else None
    names = [row["name"] for row in classes]
    return bar_chart("Images per class, all clients together", names, series, curves.COUNT, level=level)


def _recall_chart(rows: Sequence[_Row]) -> BarChart:
    series = [
        Series("zero-shot", "estimated", [curves.to_percent(row["zero_shot"]) for row in rows]),
        Series("last round", "selected", [curves.to_percent(row["last"]) for row in rows]),
    ]
    measured = [one for one in series if any(number is not None for number in one.values)]
    return bar_chart("Recall of each class", [row["name"] for row in rows], measured, curves.PERCENT)


def by_section(settings: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the settings by section, first those without a section, with each value as in settings.toml."""
    general = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}
    sections = [("general", general), *((key, value) for key, value in settings.items() if key not in general)]
    return [(title, [(key, toml_value(value)) for key, value in pairs.items()]) for title, pairs in sections if pairs]


def toml_value(value: object) -> str:
    """Format the value of a setting as in settings.toml."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _warnings(outcome: Outcome) -> list[str]:
    """Return the lines about unused replies, clipped weights, rounds without an average, and rollbacks."""
    lines: list[tuple[int, str]] = []
    for record in outcome.rounds:
        texts = [f"{client}: {reason}; not used" for client, reason in record.dropped.items()]
        texts += [f"{client}: {note}" for client, note in record.site_notes()]
        if outcome.trains:
            texts += ["nothing to average; the prompts did not change"] * record.kept_old_prompt
            texts += record.rollbacks()
        lines += [(record.number, text) for text in texts]
    before = [f"before the first round: {name}: {reason}; not used" for name, reason in outcome.dropped_before.items()]
    warnings = [*before, *by_rounds(lines)]
    hidden = len(warnings) - _MAX_WARNINGS
    return warnings if hidden <= 0 else [*warnings[:_MAX_WARNINGS], f"and {fmt.count(hidden)} more: see {ROUNDS}"]


def _count_table(rows: Sequence[Counts | None], classes: int) -> _Table:
    """Build a table from one row per client; a client without a reply has None or an empty row."""
    padded = [row or (0,) * classes for row in rows]
    return np.array(padded, np.int64).reshape(len(rows), classes), np.array([bool(row) for row in rows], np.bool_)


def _label_counts(outcome: Outcome) -> dict[str, _Table]:
    """Return tables of image counts per client and class at the last refresh; `true` only if labels are known."""
    if not outcome.refreshes:
        return {}
    classes, last = len(outcome.classes), outcome.refreshes[-1]
    stages = {"estimated": last.estimated, "allocated": last.allocated, "selected": last.selected}
    true = [client.true_counts for client in outcome.clients]
    tables = {"true": _count_table(true, classes)} if any(row is not None for row in true) else {}
    return tables | {stage: _count_table(rows, classes) for stage, rows in stages.items()}


@dataclass(frozen=True)
class _HeatTable:
    """A table of clients by classes whose cells are shaded by their number."""

    title: str
    note: str
    rows: list[tuple[str, list[tuple[int, str]]]]  # client; number and CSS class of each cell, none without a reply
    others: list[int] | None  # sum or mean of the clients that are not shown
    totals: list[int]  # sum or mean of all clients
    signed: bool = False
    unit: str = "counts"
    missing: str = "no reply"  # text of a row without numbers


def _heat_tables(outcome: Outcome, numbers: Mapping[str, _Table], texts: LabelTexts) -> list[_HeatTable]:
    """Return tables of counts with a common scale of shades, and the change if the server allocated images."""
    true_note = f"Labels of the data set; {'' if texts.supervised else 'not '}used in training."
    notes = {"true": true_note, "estimated": texts.estimated, "allocated": texts.allocated, "selected": texts.selected}
    largest = max(int(counts.max(initial=0)) for counts, _ in numbers.values())
    tables = [_heat_table(outcome, kind.capitalize(), notes[kind], table, largest) for kind, table in numbers.items()]
    if not texts.cooperative:
        return tables
    (estimated, replied), (allocated, received) = numbers["estimated"], numbers["allocated"]
    in_both = replied & received
    change = np.where(in_both[:, None], allocated - estimated, 0)
    largest_change = int(np.abs(change).max(initial=0))
    title, note = "Change by the allocation", "Allocated minus estimated."
    return [*tables, _heat_table(outcome, title, note, (change, in_both), largest_change, signed=True)]


def _heat_table(
    outcome: Outcome,
    title: str,
    note: str,
    table: _Table,
    largest: int,
    aggregate: Callable[[NDArray[np.int64]], list[int]] | None = None,
    **options: Any,
) -> _HeatTable:
    """Return the shaded numbers of the largest clients, and the aggregate (default: sum) of the others and of all."""
    numbers, present = table
    aggregate = aggregate or (lambda clients: [int(total) for total in numbers[clients].sum(axis=0)])

    def shaded(number: int) -> tuple[int, str]:
        if options.get("signed"):
            return number, f"{'less' if number < 0 else 'more'}{_shade(abs(number), largest, _CHANGE_SHADES)}"
        return number, f"h{_shade(number, largest, _SHADES)}"

    shown, all_clients = largest_clients(outcome), np.arange(len(outcome.clients))
    rows = [(outcome.clients[k].name, [shaded(n) for n in numbers[k].tolist()] if present[k] else []) for k in shown]
    rest = np.setdiff1d(all_clients, shown)
    return _HeatTable(title, note, rows, aggregate(rest) if len(rest) else None, aggregate(all_clients), **options)


def _shares(rows: Sequence[Sequence[float] | None], classes: int) -> NDArray[np.float64]:
    """Normalise each client's row to sum 1; a client without numbers gets zeros."""
    numbers = np.array([row or (0.0,) * classes for row in rows], np.float64).reshape(len(rows), classes)
    sums = numbers.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(numbers, sums, out=np.zeros_like(numbers), where=sums > 0))


def _class_priors(outcome: Outcome) -> dict[str, Any]:
    """Return the class priors of the last refresh as values of the template.

    Returns:
        priors: A table of the estimated priors, and one of the true priors where labels exist; empty without priors.
        common: Whether all clients with a prior have the same prior.
        overlap: Mean over the clients of sum_c min(estimated, true); None without labels.
    """
    classes, last = len(outcome.classes), outcome.refreshes[-1].class_prior if outcome.refreshes else ()
    if not any(last):
        return {"priors": [], "common": False, "overlap": None}
    rejecting = clients_rejecting_priors(outcome)
    used = [None if client.name in rejecting else row for client, row in zip(outcome.clients, last, strict=True)]
    estimated, true = _shares(used, classes), _shares([client.true_counts for client in outcome.clients], classes)
    note = "In per cent; estimated by each client without labels, and never sent."
    tables = [_prior_table(outcome, "Estimated class prior", note, estimated)]
    if true.any():
        tables.append(_prior_table(outcome, "True class prior", "In per cent; from labels that were never used.", true))
    nonzero, in_both = estimated[estimated.any(axis=1)], estimated.any(axis=1) & true.any(axis=1)
    overlap = float(min(np.minimum(estimated, true)[in_both].sum(axis=1).mean(), 1.0)) if in_both.any() else None
    return {"priors": tables, "common": bool(len(nonzero) and np.ptp(nonzero, axis=0).max() < 1e-9), "overlap": overlap}


def _prior_table(outcome: Outcome, title: str, note: str, shares: NDArray[np.float64]) -> _HeatTable:
    """Return the table of class priors (K, C) in per cent; a client without a prior has a row of zeros."""
    present = np.asarray(shares.any(axis=1))
    images = np.array([client.train or 0 for client in outcome.clients], np.int64)

    def mean_prior(clients: NDArray[np.int64]) -> list[int]:
        """Average class priors, weighted by the clients' numbers of images if these are known."""
        estimated = clients[present[clients]]
        weights = images[estimated] if images[estimated].any() else np.ones(len(estimated))
        return [int(share) for share in np.rint(100 * weights @ shares[estimated] / max(weights.sum(), 1))]

    percents = np.rint(100 * shares).astype(np.int64), present
    return _heat_table(outcome, title, note, percents, 100, mean_prior, unit="per cent", missing="not estimated")


def _shade(number: int, largest: int, levels: int) -> int:
    """Map a count to a shade from 0 to `levels` by its square root, so that small counts differ from 0."""
    return math.ceil(levels * math.sqrt(number / largest)) if number else 0


def _class_rows(outcome: Outcome, numbers: Mapping[str, _Table]) -> list[_Row]:
    """Return the images of each class over all clients at the last refresh."""
    sums = {kind: counts.sum(axis=0).tolist() for kind, (counts, _) in numbers.items()}
    return [
        {"name": name, "true": None, **{kind: counts[c] for kind, counts in sums.items()}}
        for c, name in enumerate(outcome.classes)
    ]


@dataclass(frozen=True)
class _ReportedClient:
    """A client with its accuracies, its participation, and its counts of the last refresh."""

    client: ClientRecord
    priors: float | None  # accuracy of the priors without training
    rounds: int | None  # number of rounds with its reply; None if not recorded
    last: str  # whether it took part in the last round
    estimated: int = 0
    allocated: int = 0
    selected: int = 0

    @property
    def name(self) -> str:
        return self.client.name

    @property
    def points(self) -> float | None:
        return fmt.difference(self.client.final, self.client.zero_shot)


def _reported_clients(outcome: Outcome, counts: Mapping[str, _Table]) -> list[_ReportedClient]:
    """Return one row per client; of more than SHOWN clients the largest first."""
    clients, rounds = outcome.clients, outcome.rounds
    untrained = outcome.untrained.clients if outcome.untrained else ()
    priors = untrained if len(untrained) == len(clients) else (None,) * len(clients)
    has_sites = any(record.sites is not None for record in rounds)
    trained_rounds = [
        sum(client.name in (record.sites or ()) for record in rounds) if has_sites else None for client in clients
    ]
    last = [_last_participation(client.name, rounds[-1]) for client in clients]
    sums = [table.sum(axis=1).tolist() for kind, (table, _) in counts.items() if kind != "true"]
    rows = [_ReportedClient(*row) for row in zip(clients, priors, trained_rounds, last, *sums, strict=True)]
    return [rows[k] for k in largest_clients(outcome, len(rows))]


def _last_participation(name: str, record: RoundRecord) -> str:
    if name in record.dropped:
        return f"reply not used: {record.dropped[name]}"
    if record.sites is None or name in record.sites:
        return "took part"
    return "waits for the next refresh" if name in record.missed_refresh else "absent"


def _changed_clients(rows: Sequence[_ReportedClient]) -> tuple[int, int, int] | None:
    """Count the clients with a higher, a lower and the same accuracy as zero-shot CLIP; None if it was not measured."""
    measured = [row.points for row in rows if row.points is not None]
    better, worse = sum(points > 0 for points in measured), sum(points < 0 for points in measured)
    return (better, worse, len(measured) - better - worse) if measured else None


def _recall_rows(outcome: Outcome) -> list[_Row]:
    """Return each class's recall of zero-shot CLIP and of the last round; empty without labelled test images."""
    last = outcome.last_recall
    zero_shot = outcome.zero_shot.recall or (None,) * len(outcome.classes)
    return [
        {"name": name, "zero_shot": before, "last": after, "points": fmt.difference(after, before)}
        for name, before, after in (zip(outcome.classes, zero_shot, last, strict=True) if last else ())
    ]


def _time_by_step(outcome: Outcome) -> list[tuple[str, float, float]]:
    """Return name, seconds and share of wall time of each kind of request, and of everything else."""
    sums = {name: sum(record.seconds_of.get(key, 0.0) for record in outcome.rounds) for key, name in STEPS.items()}
    measured = {name: seconds for name, seconds in sums.items() if seconds}
    if not measured or not outcome.seconds:
        return []
    total = max(outcome.seconds, sum(measured.values()))
    measured["other"] = total - sum(measured.values())
    return [(name, seconds, seconds / total) for name, seconds in measured.items()]

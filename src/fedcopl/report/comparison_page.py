"""Several runs -> one page that compares them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import by_full_name
from ..data.dataset import printable
from ..files import write_text
from ..run.record import Outcome
from . import curves
from . import numbers as words
from .charts import ChartLine, LineChart, Unit, line_chart
from .compared_runs import (
    APART,
    MEASURES,
    ComparedRun,
    Measure,
    RunGroup,
    Spread,
    common_zero_shot,
    differing,
    grouped,
    latex_table,
    once_each,
    ranked,
    recall_table,
    same_classes,
    short_folders,
    spread,
)
from .curves import SERIES, ByRound, drift_unit
from .run_page import LiveStatus, by_section, template, written

LONG_TITLE = 100
OVERLAID = len(SERIES)  # groups in one chart; more could not be distinguished
SECTIONS = {
    "experiments": "What differs",
    "result": "Result",
    "curves": "Curves",
    "classes": "Classes",
    "runs": "Runs",
    "settings": "Settings",
}


def write_comparison(path: Path, runs: Sequence[ComparedRun]) -> None:
    """Write the comparison as one self-contained file."""
    write_text(path, printable(render_comparison(runs)))


def render_comparison(runs: Sequence[ComparedRun], live: LiveStatus | None = None) -> str:
    runs, repeats = once_each(runs)
    groups = grouped(runs)
    recall, shown, differ, cells = recall_table(groups), foremost(groups), differing(runs), ranked(groups)
    return template("comparison.html.jinja").render(
        live=live,
        title=f"{' · '.join(titles(groups))} · FedCoPL comparison",
        titles=titles(groups),
        runs=runs,
        repeats=[(str(again.folder), str(first.folder)) for again, first in repeats],
        groups=groups,
        differ=differ,
        measures=MEASURES,
        named=any(group.method not in group.label for group in groups),
        cells=cells,
        latex=latex_table(groups, cells),
        comparable=same_classes(groups),
        charts=charts(shown),
        left_out=len(groups) - len(shown),
        recall=recall,
        values=[[_value(group, name) for name in differ] for group in groups],
        rows=rows(groups),
        versions=versions(runs),
        common=common(runs),
        sections=[(anchor, title) for anchor, title in SECTIONS.items() if anchor != "classes" or recall],
    )


def titles(groups: Sequence[RunGroup]) -> list[str]:
    """The names of the groups, if all of them fit above the page."""
    names = [group.label for group in groups]
    whole = " · ".join(names)
    return names if len(whole) <= LONG_TITLE else [words.several(len(names), "experiment", "experiments")]


def foremost(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """As many as one chart can hold, those with the best accuracy, in the order of the table."""
    numbers = [group.numbers["macro"] for group in groups]
    by_accuracy = sorted(range(len(groups)), key=lambda n: -(_mean(numbers[n]) or 0))
    return [groups[n] for n in sorted(by_accuracy[:OVERLAID])]


def _mean(number: Spread | None) -> float | None:
    return None if number is None else number.mean


def _value(group: RunGroup, name: str) -> str:
    value = group.settings.get(name, words.NOTHING)
    return value if isinstance(value, str) and value else written(value)


@dataclass(frozen=True)
class ComparedCurve:
    """One number over the rounds, for any run."""

    title: str
    unit: Unit | None  # None: by the values
    values: Callable[[Outcome], ByRound]
    zero_shot: float | None = None


def charts(groups: Sequence[RunGroup]) -> list[LineChart]:
    """Every number that is measured round by round, all groups on top of each other."""
    levels = {"macro": common_zero_shot(groups)}
    accuracy = [
        ComparedCurve(f"Accuracy, {kind.name}", curves.PERCENT, curves.accuracy_by_round(kind), levels.get(kind.name))
        for kind in curves.ACCURACIES
    ]
    training = [
        ComparedCurve("Training loss", curves.LOSS, curves.loss_by_round),
        ComparedCurve("Pseudo labels that are right", curves.PERCENT, curves.right_by_refresh),
    ]
    drift = [
        ComparedCurve(f"{measure.title}, {name}", None, curves.drift_by_round(name, measure))
        for name in trained_by_several(groups)
        for measure in curves.DRIFT
    ]
    cost = [
        ComparedCurve("Bytes sent up per round", curves.BYTES, curves.bytes_up_by_round),
        ComparedCurve("Time per round", curves.SECONDS, curves.seconds_by_round),
    ]
    drawn = [overlaid(groups, curve) for curve in (*accuracy, *training, *drift, *cost)]
    return [chart for chart in drawn if chart]


def trained_by_several(groups: Sequence[RunGroup]) -> list[str]:
    """What more than one of the groups trains; the drift of the rest is on the page of its run."""
    trained = [curves.drifting(group.runs[0].outcome) for group in groups]
    names = dict.fromkeys(name for one in trained for name in one)
    return [name for name in names if sum(name in one for one in trained) > 1 or len(groups) == 1]


def overlaid(groups: Sequence[RunGroup], curve: ComparedCurve) -> LineChart | None:
    """One line per group, the mean over its runs, with a band of one standard deviation."""
    by_group = [mean_by_round([curve.values(run.outcome) for run in group.runs]) for group in groups]
    rounds = sorted({r for numbers in by_group for r in numbers})
    lines = [
        ChartLine(
            group.label,
            SERIES[n],
            [numbers[r].mean if r in numbers else None for r in rounds],
            [numbers[r].std if r in numbers else None for r in rounds] if len(group.runs) > 1 else (),
        )
        for n, (group, numbers) in enumerate(zip(groups, by_group, strict=True))
    ]
    unit = curve.unit or drift_unit(number.mean for numbers in by_group for number in numbers.values())
    return line_chart(curve.title, rounds, lines, unit, levels={curves.ZERO_SHOT: curve.zero_shot})


def mean_by_round(runs: Sequence[ByRound]) -> dict[int, Spread]:
    """Over those runs that measured it in that round."""
    rounds = sorted({r for values in runs for r in values})
    numbers = {r: spread([values.get(r) for values in runs]) for r in rounds}
    return {r: number for r, number in numbers.items() if number is not None}


@dataclass(frozen=True)
class ComparisonRow:
    """One run by itself."""

    folder: str
    group: RunGroup
    seed: int
    numbers: list[str]  # one for each measure
    unused: int  # replies that were not used
    rolled_back: int  # rounds in which something was rolled back
    epsilon: float | None


def rows(groups: Sequence[RunGroup]) -> list[ComparisonRow]:
    """Every run, experiment by experiment."""
    members = [(group, run) for group in groups for run in group.runs]
    folders = short_folders([run.folder for _, run in members])
    return [
        ComparisonRow(
            folder,
            group,
            run.outcome.seed,
            [_written(measure, run.outcome) for measure in MEASURES],
            len(run.outcome.dropped_before) + sum(len(record.dropped) for record in run.outcome.rounds),
            sum(any(record.rollbacks()) for record in run.outcome.rounds),
            run.outcome.privacy.epsilon if run.outcome.privacy else None,
        )
        for folder, (group, run) in zip(folders, members, strict=True)
    ]


def _written(measure: Measure, outcome: Outcome) -> str:
    number = measure.of(outcome)
    return words.NOTHING if number is None else measure.write(number)


def versions(runs: Sequence[ComparedRun]) -> list[tuple[str, list[str]]]:
    """Each program with the versions the runs used."""
    each = [run.outcome.versions for run in runs]
    names = dict.fromkeys(name for one in each for name in one)
    return [(name, list(dict.fromkeys(one[name] for one in each if name in one))) for name in names]


def common(runs: Sequence[ComparedRun]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The settings that are the same in all runs, by section."""
    apart = {*differing(runs), *APART}
    kept: dict[str, Any] = {}
    for name, value in by_full_name(runs[0].outcome.settings).items():
        section, dot, leaf = name.partition(".")
        if name in apart:
            continue
        if dot:
            kept.setdefault(section, {})[leaf] = value
        else:
            kept[name] = value
    return by_section(kept)

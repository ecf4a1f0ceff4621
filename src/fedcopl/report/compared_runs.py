"""Several runs: which settings differ, which runs form an experiment, and which number is best."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from ..config import by_full_name
from ..run.record import Outcome
from . import numbers as words
from .curves import ACCURACIES, BYTES, COUNT, PERCENT, AccuracyKind, hundred
from .narrative import label_story
from .tables import last_recall

APART = {"name", "seed"}  # settings that do not make another experiment
SPEAKING = {"method", "labeler", "backbone", "source"}  # settings whose values need no name before them
LONG_LABEL = 48  # letters of a name for a group; with more it is called after its folder


@dataclass(frozen=True)
class ComparedRun:
    """The outcome of a run, or what there is of it so far, and the folder it lies in."""

    folder: Path
    outcome: Outcome


@dataclass(frozen=True)
class Spread:
    """A number over the runs of a group: its mean, and its standard deviation over seeds where there are several."""

    mean: float
    std: float | None = None

    def written(self, write: Callable[[float], str]) -> str:
        """`82.7 ± 0.6 %`: the unit once, at the end, where both have the same."""
        if self.std is None:
            return write(self.mean)
        number, space, unit = write(self.mean).partition(words.SPACE)
        deviation, _, its_unit = write(self.std).removeprefix("+").partition(words.SPACE)
        if self.std and its_unit != unit:
            return f"{write(self.mean)} ± {write(self.std)}"
        return f"{number} ± {deviation}{space}{unit}"


def spread(values: Sequence[float | None]) -> Spread | None:
    """None where nothing was measured. The deviation is that of a sample, over n - 1."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)


@dataclass(frozen=True)
class Measure:
    """A headline number: what it is, how it is written, and which way is better."""

    name: str
    of: Callable[[Outcome], float | None]
    write: Callable[[float], str]
    better: int = 0  # +1: the higher; -1: the lower; 0: neither


def _final(kind: AccuracyKind) -> Callable[[Outcome], float | None]:
    return lambda outcome: hundred(kind.of(outcome.final))


def _right(outcome: Outcome) -> float | None:
    return hundred(outcome.refreshes[-1].pseudo_label_accuracy) if outcome.refreshes else None


def _gain(outcome: Outcome) -> float | None:
    return words.difference(outcome.final.macro, outcome.zero_shot.macro)


MEASURES = (
    *(Measure(kind.name, _final(kind), PERCENT.write, 1) for kind in ACCURACIES),
    Measure("zero-shot macro", lambda outcome: hundred(outcome.zero_shot.macro), PERCENT.write),
    Measure("gain in points", _gain, words.points, 1),
    Measure("pseudo labels right", _right, PERCENT.write, 1),
    Measure("images used", lambda outcome: outcome.images_used, COUNT.write),
    Measure("sent up", lambda outcome: outcome.bytes_up, BYTES.write, -1),
    Measure("sent down", lambda outcome: outcome.bytes_down, BYTES.write, -1),
    Measure("time", lambda outcome: outcome.seconds, words.duration, -1),
)


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ by nothing but their seed."""

    label: str
    runs: Sequence[ComparedRun]
    settings: Mapping[str, Any]  # as in the file, by full name
    planned: int
    done: int

    @property
    def method(self) -> str:
        """What ran, as tables call it; empty in folders that do not say it."""
        return self.runs[0].outcome.method

    @property
    def seeds(self) -> str:
        return ", ".join(str(run.outcome.seed) for run in self.runs)

    @property
    def finished(self) -> bool:
        return self.done >= self.planned

    @property
    def supervised(self) -> bool:
        return label_story(self.runs[0].outcome).supervised

    @property
    def ranked(self) -> bool:
        """Unfinished and supervised runs are not ranked."""
        return self.finished and not self.supervised

    @cached_property
    def numbers(self) -> dict[str, Spread | None]:
        return {measure.name: spread([measure.of(run.outcome) for run in self.runs]) for measure in MEASURES}


def differing(runs: Sequence[ComparedRun]) -> list[str]:
    """The settings that are not the same in all runs, without names and seeds, in the order of the file."""
    settings = [by_full_name(run.outcome.settings) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one if name not in APART)
    return [name for name in names if any(one.get(name) != settings[0].get(name) for one in settings)]


def once_each(runs: Sequence[ComparedRun]) -> tuple[list[ComparedRun], list[tuple[ComparedRun, ComparedRun]]]:
    """The runs without those that repeat another's settings and seed, which are no second trial; and these with it."""
    kept: list[ComparedRun] = []
    repeats: list[tuple[ComparedRun, ComparedRun]] = []
    for run in runs:
        same = (other for other in kept if (_key(other), other.outcome.seed) == (_key(run), run.outcome.seed))
        first = next(same, None)
        if first is None:
            kept.append(run)
        else:
            repeats.append((run, first))
    return kept, repeats


def grouped(runs: Sequence[ComparedRun]) -> list[RunGroup]:
    """The runs by what they did, in the order in which each experiment comes first."""
    keys = [_key(run) for run in runs]
    order = sorted(range(len(runs)), key=lambda n: (keys.index(keys[n]), n))
    together = [[runs[n] for n in members] for _, members in groupby(order, key=lambda n: keys.index(keys[n]))]
    names = labels(together, differing(runs))
    return [_group(label, members) for label, members in zip(names, together, strict=True)]


def _key(run: ComparedRun) -> tuple[dict[str, Any], tuple[str, ...], int]:
    """All that makes an experiment, and how far it got: half a run is not the same as a whole one."""
    settings = {name: value for name, value in by_full_name(run.outcome.settings).items() if name not in APART}
    done = len(run.outcome.rounds)
    return settings, run.outcome.classes, run.outcome.planned_rounds if run.outcome.is_complete else done


def _group(label: str, runs: Sequence[ComparedRun]) -> RunGroup:
    outcome = runs[0].outcome
    planned = outcome.planned_rounds
    done = planned if outcome.is_complete else len(outcome.rounds)
    return RunGroup(label, runs, by_full_name(outcome.settings), planned, done)


def labels(groups: Sequence[Sequence[ComparedRun]], differ: Sequence[str]) -> list[str]:
    """A title for each group: what ran, with the settings that differ or the name where that alone is not unique."""
    methods = [runs[0].outcome.method for runs in groups]
    settings = [_by_settings(runs[0], differ) for runs in groups]
    names = [runs[0].outcome.name for runs in groups]
    candidates = [methods, [*map(_joined, methods, settings)], [*map(_joined, methods, names)], names]
    for candidate in candidates:
        if all(candidate) and len(set(candidate)) == len(candidate) and max(map(len, candidate)) <= LONG_LABEL:
            return candidate
    return short_folders([runs[0].folder for runs in groups])


def _joined(method: str, more: str) -> str:
    return ", ".join(filter(None, (method, more)))


def _by_settings(run: ComparedRun, differ: Sequence[str]) -> str:
    """The differing settings in short, without those that the method's title says already."""
    settings = by_full_name(run.outcome.settings)
    titled = {"method", "labeler"} if run.outcome.method else set()
    named = [(name.rpartition(".")[2], settings.get(name, words.NOTHING)) for name in differ if name not in titled]
    return ", ".join(str(value) if name in SPEAKING else f"{name} {value}" for name, value in named)


def short_folders(folders: Sequence[Path]) -> list[str]:
    """The shortest endings of the paths that are all different."""
    whole = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, whole)) + 1):
        short = ["/".join(parts[-depth:]) for parts in whole]
        if len(set(short)) == len(set(whole)):
            return short
    return [str(folder) for folder in folders]


def common_zero_shot(groups: Sequence[RunGroup]) -> float | None:
    """The zero-shot accuracy that all runs began with, if it is the same."""
    known = {run.outcome.zero_shot.macro for group in groups for run in group.runs}
    return hundred(known.pop()) if len(known) == 1 else None


@dataclass(frozen=True)
class RankedCell:
    """One number of the table of results."""

    text: str
    rank: int = 0  # 1: the best, 2: the second best


def ranked(groups: Sequence[RunGroup]) -> list[list[RankedCell]]:
    """For each group one cell per measure; of runs with the same classes the best and the second best are marked."""
    columns = [list(_column(groups, measure)) for measure in MEASURES]
    return [list(row) for row in zip(*columns, strict=True)]


def _column(groups: Sequence[RunGroup], measure: Measure) -> Iterator[RankedCell]:
    able = [group for group in groups if group.ranked] if same_classes(groups) else []
    ranks = _ranks([group.numbers[measure.name] for group in able], measure)
    for group in groups:
        number = group.numbers[measure.name]
        if number is None:
            yield RankedCell(words.NOTHING)
        else:
            yield RankedCell(
                number.written(measure.write), ranks.get(measure.write(number.mean), 0) if group.ranked else 0
            )


def _ranks(numbers: Sequence[Spread | None], measure: Measure) -> dict[str, int]:
    """Rank of each written mean; equal texts have equal ranks, and of two means only the best is marked."""
    means = {measure.write(number.mean): number.mean for number in numbers if number is not None}
    if not measure.better or len(means) < 2:
        return {}
    best, second, *others = sorted(means, key=lambda text: means[text] * -measure.better)
    return {best: 1, second: 2} if others else {best: 1}


LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {words.MINUS: "-", words.NOTHING: "--", words.SPACE: "~", "±": r"$\pm$"}
)


def latex_table(groups: Sequence[RunGroup], cells: Sequence[Sequence[RankedCell]]) -> str:
    """The results as a LaTeX table (booktabs), the best of each column bold, the second best underlined."""
    marks = {1: r"\textbf{%s}", 2: r"\underline{%s}"}
    used = [n for n, measure in enumerate(MEASURES) if any(group.numbers[measure.name] for group in groups)]
    head = " & ".join(["", *(MEASURES[n].name.translate(LATEX) for n in used)])
    rows = [
        " & ".join(
            [group.label.translate(LATEX), *(marks.get(row[n].rank, "%s") % row[n].text.translate(LATEX) for n in used)]
        )
        for group, row in zip(groups, cells, strict=True)
    ]
    begin = [rf"\begin{{tabular}}{{l{'r' * len(used)}}}", r"\toprule", head + r" \\", r"\midrule"]
    return "\n".join([*begin, *(row + r" \\" for row in rows), r"\bottomrule", r"\end{tabular}"])


@dataclass(frozen=True)
class RecallTable:
    """The recall of each class, zero-shot first, then each group."""

    heads: list[str]
    rows: list[tuple[str, list[RankedCell]]]


def recall_table(groups: Sequence[RunGroup]) -> RecallTable | None:
    """None where nothing was measured or the classes are not the same."""
    if not same_classes(groups):
        return None
    last = {group.label: _mean_row([last_recall(run.outcome) for run in group.runs]) for group in groups}
    columns = {label: row for label, row in (_zero_shot_columns(groups) | last).items() if row}
    if not any(last.values()):
        return None
    classes = groups[0].runs[0].outcome.classes
    rows = [(name, [_recall_cell(column[n]) for column in columns.values()]) for n, name in enumerate(classes)]
    return RecallTable(list(columns), rows)


def _zero_shot_columns(groups: Sequence[RunGroup]) -> dict[str, list[Spread | None]]:
    """One column, or one for each group where they do not begin with the same model."""
    each = {group.label: [run.outcome.zero_shot.recall for run in group.runs] for group in groups}
    known = [row for rows in each.values() for row in rows if row]
    if all(row == known[0] for row in known):
        return {"zero-shot": _mean_row(known[:1])}
    return {f"zero-shot, {label}": _mean_row(rows) for label, rows in each.items()}


def same_classes(groups: Sequence[RunGroup]) -> bool:
    return len({run.outcome.classes for group in groups for run in group.runs}) == 1


def _mean_row(rows: Sequence[tuple[float | None, ...] | None]) -> list[Spread | None]:
    known = [row for row in rows if row]
    return [spread([hundred(value) for value in column]) for column in zip(*known, strict=True)] if known else []


def _recall_cell(number: Spread | None) -> RankedCell:
    """The rank is its shade, from 1 for nothing to 9 for all."""
    if number is None:
        return RankedCell(words.NOTHING)
    return RankedCell(number.written(PERCENT.write), 1 + round(8 * number.mean / 100))

"""A page that compares runs: their differing settings, their results by experiment, and the best numbers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..config import by_full_name
from ..run.pseudo_labels import read_last_labels
from ..run.record import Outcome
from . import formatting as fmt
from .curves import ACCURACIES, BYTES, COUNT, PERCENT, STYLES, AccuracyKind, Spread, group_charts, spread, to_percent
from .label_free import mean_confidence
from .narrative import label_texts
from .run_page import LiveStatus, by_section, template, toml_value

_LONG_TITLE = 100  # characters; a longer title names the methods or the number of experiments
_MAX_LINES = len(STYLES)  # groups in a chart
_SECTIONS = {
    "experiments": "What differs",
    "result": "Result",
    "curves": "Curves",
    "classes": "Classes",
    "runs": "Runs",
    "settings": "Settings",
}
_EXCLUDED = {"name", "seed"}  # runs that differ in these settings only are one experiment
_SELF_EXPLANATORY = {"method", "labeler", "backbone", "source"}  # settings whose values need no name before them
_LONG_LABEL = 48  # characters; a group with a longer label is named after its folder


@dataclass(frozen=True)
class ComparedRun:
    """The outcome of a run, finished or not, and its folder."""

    folder: Path
    outcome: Outcome

    @cached_property
    def confidence(self) -> float | None:
        """Mean probability of the labels in per cent, where accuracy is not measured."""
        is_measured = self.outcome.final.macro is not None
        return None if is_measured else to_percent(mean_confidence(read_last_labels(self.folder)))


@dataclass(frozen=True)
class _Measure:
    """A column of the table of results."""

    name: str
    value_of: Callable[[ComparedRun], float | None]
    better_sign: int = 0  # +1: higher values are better; -1: lower ones; 0: neither
    format_value: Callable[[float], str] = PERCENT.format_value


def _final_accuracy(kind: AccuracyKind) -> Callable[[ComparedRun], float | None]:
    return lambda run: to_percent(kind.value_of(run.outcome.final))


_MEASURES = (
    *(_Measure(kind.name, _final_accuracy(kind), 1) for kind in ACCURACIES),
    _Measure("zero-shot macro", lambda run: to_percent(run.outcome.zero_shot.macro)),
    _Measure("gain", lambda run: fmt.difference(run.outcome.final.macro, run.outcome.zero_shot.macro), 1, fmt.points),
    _Measure("mean confidence", attrgetter("confidence")),
    _Measure("pseudo-label accuracy", lambda run: to_percent((run.outcome.pseudo_label_accuracy or (None,))[-1]), 1),
    _Measure("images used", attrgetter("outcome.images_used"), 0, COUNT.format_value),
    _Measure("sent up", attrgetter("outcome.bytes_up"), -1, BYTES.format_value),
    _Measure("sent down", attrgetter("outcome.bytes_down"), -1, BYTES.format_value),
    _Measure("time", attrgetter("outcome.seconds"), -1, fmt.duration),
)


@dataclass(frozen=True)
class _RunGroup:
    """Runs that differ only in name and seed."""

    label: str
    runs: Sequence[ComparedRun]

    @property
    def method(self) -> str:
        """Title of the method; empty if the record has none."""
        return self.runs[0].outcome.method

    @property
    def seeds(self) -> str:
        return ", ".join(str(run.outcome.seed) for run in self.runs)

    @property
    def finished(self) -> bool:
        return self.runs[0].outcome.is_complete

    @property
    def rounds(self) -> str:
        """Number of finished rounds; runs of a group may stop at different rounds."""
        done = ", ".join(dict.fromkeys(fmt.count(len(run.outcome.rounds)) for run in self.runs))
        return done if self.finished else f"{done} of {fmt.count(self.runs[0].outcome.planned_rounds)}, not finished"

    @property
    def supervised(self) -> bool:
        return label_texts(self.runs[0].outcome).supervised

    @cached_property
    def numbers(self) -> dict[str, Spread | None]:
        return {measure.name: spread([measure.value_of(run) for run in self.runs]) for measure in _MEASURES}


def _differing(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the names of the settings whose values differ, except name and seed, in the order of the settings file."""
    settings = [by_full_name(run.outcome.settings) for run in runs]
    names = dict.fromkeys(name for values in settings for name in values if name not in _EXCLUDED)
    return [name for name in names if any(values.get(name) != settings[0].get(name) for values in settings)]


def _drop_duplicates(runs: Sequence[ComparedRun]) -> tuple[list[ComparedRun], list[tuple[ComparedRun, ComparedRun]]]:
    """Return runs with different settings or seeds, and each duplicate with the run that it repeats."""
    kept: list[ComparedRun] = []
    repeats: list[tuple[ComparedRun, ComparedRun]] = []
    for run in runs:
        equal = [other for other in kept if (_key(other), other.outcome.seed) == (_key(run), run.outcome.seed)]
        if equal:
            repeats.append((run, equal[0]))
        else:
            kept.append(run)
    return kept, repeats


def _grouped(runs: Sequence[ComparedRun]) -> list[_RunGroup]:
    """Group runs by experiment, in order of first occurrence."""
    keys = [_key(run) for run in runs]
    members: dict[int, list[ComparedRun]] = {}
    for run, key in zip(runs, keys, strict=True):
        members.setdefault(keys.index(key), []).append(run)
    groups = list(members.values())
    return [_RunGroup(label, group) for label, group in zip(_labels(groups), groups, strict=True)]


def _key(run: ComparedRun) -> tuple[dict[str, Any], tuple[str, ...], int]:
    """Return the identity of an experiment: its settings, classes, and number of finished or planned rounds."""
    settings = {name: value for name, value in by_full_name(run.outcome.settings).items() if name not in _EXCLUDED}
    done = len(run.outcome.rounds)
    return settings, run.outcome.classes, run.outcome.planned_rounds if run.outcome.is_complete else done


def _labels(groups: Sequence[Sequence[ComparedRun]]) -> list[str]:
    """Return a unique label for each group: the method, if needed with settings or name, or the folder."""
    first = [runs[0] for runs in groups]
    methods, names = ([getattr(run.outcome, key) for run in first] for key in ("method", "name"))
    settings = [
        _settings_label(run, _differing([other for other in first if other.outcome.method == run.outcome.method]))
        for run in first
    ]
    by_settings, by_name = (
        [", ".join(filter(None, pair)) for pair in zip(methods, details, strict=True)] for details in (settings, names)
    )
    for candidate in (methods, by_settings, by_name, names):
        if all(candidate) and len(set(candidate)) == len(candidate) and max(map(len, candidate)) <= _LONG_LABEL:
            return candidate
    return _short_folders([run.folder for run in first])


def _settings_label(run: ComparedRun, differing: Sequence[str]) -> str:
    """Return the differing settings as a short text, without the settings in the method's title."""
    settings = by_full_name(run.outcome.settings)
    titled = {"method", "labeler"} if run.outcome.method else set()
    shown = [(name.rpartition(".")[2], settings.get(name, fmt.NOTHING)) for name in differing if name not in titled]
    return ", ".join(str(value) if name in _SELF_EXPLANATORY else f"{name} {value}" for name, value in shown)


def _short_folders(folders: Sequence[Path]) -> list[str]:
    """Return the shortest endings of the paths that are all different."""
    paths = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, paths)) + 1):
        endings = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(endings)) == len(set(paths)):
            return endings
    return [str(folder) for folder in folders]


@dataclass(frozen=True)
class _RankedCell:
    """One number of the table of results."""

    text: str
    rank: int = 0  # 1: the best, 2: the second best


def _column(groups: Sequence[_RunGroup], measure: _Measure) -> Iterator[_RankedCell]:
    """Yield each group's cell of one measure, with the ranks of the best and, of at least three, the second best.

    Only finished, unsupervised runs with the same classes are ranked; means that look equal have equal ranks.
    """
    comparable = measure.better_sign and _same_classes(groups)
    ranked = [bool(comparable and group.finished and not group.supervised) for group in groups]
    numbers = [group.numbers[measure.name] for group in groups]
    texts = ["" if number is None else measure.format_value(number.mean) for number in numbers]
    means = {text: number.mean for text, number, ok in zip(texts, numbers, ranked, strict=True) if number and ok}
    best_first = sorted(means, key=lambda text: means[text] * -measure.better_sign)
    rank_of = {text: rank for rank, text in enumerate(best_first[: min(2, len(best_first) - 1)], start=1)}
    for number, text, ok in zip(numbers, texts, ranked, strict=True):
        cell = fmt.NOTHING if number is None else number.format(measure.format_value)
        yield _RankedCell(cell, rank_of.get(text, 0) if ok else 0)


_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {fmt.MINUS: "-", fmt.NOTHING: "--", fmt.SPACE: "~", "±": r"$\pm$"}
)


def _latex_table(
    groups: Sequence[_RunGroup], measures: Sequence[_Measure], cells: Sequence[Sequence[_RankedCell]]
) -> str:
    """Return the results as a LaTeX table (booktabs), the best of each column bold, the second best underlined."""
    marks = {1: r"\textbf{%s}", 2: r"\underline{%s}"}
    head = " & ".join(["", *(measure.name.translate(_LATEX) for measure in measures)])
    rows = [
        " & ".join([group.label.translate(_LATEX), *(marks.get(c.rank, "%s") % c.text.translate(_LATEX) for c in row)])
        for group, row in zip(groups, cells, strict=True)
    ]
    begin = [rf"\begin{{tabular}}{{l{'r' * len(measures)}}}", r"\toprule", head + r" \\", r"\midrule"]
    return "\n".join([*begin, *(row + r" \\" for row in rows), r"\bottomrule", r"\end{tabular}"])


def _same_classes(groups: Sequence[_RunGroup]) -> bool:
    return len({run.outcome.classes for group in groups for run in group.runs}) == 1


def _recall_table(groups: Sequence[_RunGroup]) -> tuple[list[str], list[tuple[str, list[_RankedCell]]]] | None:
    """Return titles and rows of a table of the recall of each class: zero-shot, then each group.

    The rank of a cell is its shade, from 1 to 9. None if no recall was measured or the classes differ.
    """

    def means(rows: Sequence[tuple[float | None, ...] | None]) -> list[Spread | None]:
        columns = zip(*(row for row in rows if row), strict=True)
        return [spread([to_percent(value) for value in column]) for column in columns]

    def cell(number: Spread | None) -> _RankedCell:
        if number is None:
            return _RankedCell(fmt.NOTHING)
        return _RankedCell(number.format(PERCENT.format_value), 1 + round(8 * number.mean / 100))

    last = {group.label: means([run.outcome.last_recall for run in group.runs]) for group in groups}
    if not _same_classes(groups) or not any(last.values()):
        return None
    zero_shot_recall = {group.label: [run.outcome.zero_shot.recall for run in group.runs] for group in groups}
    measured = [row for rows in zero_shot_recall.values() for row in rows if row]
    if all(row == measured[0] for row in measured):
        zero_shot = {"zero-shot": means(measured[:1])}
    else:
        zero_shot = {f"zero-shot, {label}": means(rows) for label, rows in zero_shot_recall.items()}
    columns = {label: row for label, row in (zero_shot | last).items() if row}
    classes = groups[0].runs[0].outcome.classes
    return list(columns), [(name, [cell(column[n]) for column in columns.values()]) for n, name in enumerate(classes)]


def render_comparison(runs: Sequence[ComparedRun], live: LiveStatus | None = None) -> str:
    """Render the page that compares these runs."""
    runs, repeats = _drop_duplicates(runs)
    groups = _grouped(runs)
    recall, differing = _recall_table(groups), _differing(runs)
    measures = [measure for measure in _MEASURES if any(group.numbers[measure.name] for group in groups)]
    cells = list(zip(*(_column(groups, measure) for measure in measures), strict=True))
    best = sorted(groups, key=lambda group: -(group.numbers["macro"] or Spread(0)).mean)[:_MAX_LINES]
    shown = [group for group in groups if group in best]
    titles = [group.label for group in groups]
    if len(" · ".join(titles)) > _LONG_TITLE:
        titles = list(dict.fromkeys(filter(None, (group.method for group in groups))))
    if not titles or len(" · ".join(titles)) > _LONG_TITLE:
        titles = [fmt.several(len(groups), "experiment", "experiments")]
    return template("comparison.html.jinja").render(
        live=live,
        title=f"{' · '.join(titles)} · FedCoPL comparison",
        titles=titles,
        runs=runs,
        repeats=[(str(duplicate.folder), str(first.folder)) for duplicate, first in repeats],
        groups=groups,
        differ=differing,
        measures=measures,
        with_method=any(group.method not in group.label for group in groups),
        cells=cells,
        latex=_latex_table(groups, measures, cells),
        comparable=_same_classes(groups),
        charts=group_charts({group.label: [run.outcome for run in group.runs] for group in shown}),
        left_out=len(groups) - len(shown),
        recall=recall,
        values=[
            [_plain_setting(by_full_name(group.runs[0].outcome.settings).get(name, fmt.NOTHING)) for name in differing]
            for group in groups
        ],
        rows=list(_run_rows(groups, measures)),
        versions=_versions(runs),
        common=_common_settings(runs),
        sections=[(anchor, title) for anchor, title in _SECTIONS.items() if anchor != "classes" or recall],
    )


def _plain_setting(value: object) -> str:
    """Format the value of a setting, a text without its quotation marks."""
    return value if isinstance(value, str) and value else toml_value(value)


def _run_rows(groups: Sequence[_RunGroup], measures: Sequence[_Measure]) -> Iterator[dict[str, Any]]:
    """Yield the row of each run in the table of runs, ordered by experiment."""
    members = [(group, run) for group in groups for run in group.runs]
    for folder, (group, run) in zip(_short_folders([run.folder for _, run in members]), members, strict=True):
        outcome = run.outcome
        numbers = [(measure.value_of(run), measure.format_value) for measure in measures]
        yield {
            "folder": folder,
            "group": group,
            "seed": outcome.seed,
            "rounds": _RunGroup("", [run]).rounds,
            "numbers": [fmt.NOTHING if number is None else format_value(number) for number, format_value in numbers],
            "unused": len(outcome.dropped_before) + sum(len(record.dropped) for record in outcome.rounds),
            "rolled_back": sum(any(record.rollbacks()) for record in outcome.rounds),
            "epsilon": outcome.privacy.epsilon if outcome.privacy else None,
        }


def _versions(runs: Sequence[ComparedRun]) -> list[tuple[str, list[str]]]:
    """Return each package with its versions in the runs."""
    versions: dict[str, dict[str, None]] = {}  # by package, in order
    for run in runs:
        for package, version in run.outcome.versions.items():
            versions.setdefault(package, {})[version] = None
    return [(package, list(used)) for package, used in versions.items()]


def _common_settings(runs: Sequence[ComparedRun]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the settings with equal values in all runs, by section."""
    excluded = {*_differing(runs), *_EXCLUDED}
    common: dict[str, Any] = {}
    for name, value in by_full_name(runs[0].outcome.settings).items():
        section, _, leaf = name.partition(".")
        if name not in excluded:
            (common.setdefault(section, {}) if leaf else common)[leaf or name] = value
    return by_section(common)

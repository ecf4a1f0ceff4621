"""Several runs in one view: what each of them came to, who was there, and what it gave away."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..deployment.processes import process_of
from ..errors import FederationError, RunFolderError
from ..local_page.access import Keys
from ..local_page.serving import environment
from ..report import curves
from ..report.charts import BarChart, Bars, Unit, bar_chart
from ..run.folder import PROGRESS, RESULTS, ROUNDS, SETTINGS
from ..run.reading import find_runs
from ..run.record import RoundRecord
from .feed import Feed, Snapshot
from .page import MOST_CLIENTS, MOST_LINES, WatchPage, log_lines, render

PARTS = ("head", "runs", "curves", "who", "log")
MOST_RUNS = 24  # whose single sites and bars are shown
REFUSED = "refused:"  # in the reason of an answer that was none
EPSILON = Unit(write=lambda number: f"{number:.3g}")


@dataclass(frozen=True)
class RunsSeen:
    """All runs of a folder at one moment, the oldest first."""

    name: str
    runs: tuple[Snapshot, ...]

    def state(self, now: float) -> str:
        return " ".join(run.state(now) for run in self.runs)


class History:
    """Looks at all runs below a folder; new ones are found as they begin."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._feeds: dict[Path, Feed] = {}
        self._last = RunsSeen(folder.resolve().name, ())

    def look(self) -> RunsSeen:
        with suppress(RunFolderError):  # gone for the moment: those known are asked
            self._feeds |= {path: Feed(path) for path in find_runs(self.folder) if path not in self._feeds}
        seen = (feed.look() for feed in self._feeds.values())
        runs = tuple(sorted((run for run in seen if run.there), key=lambda run: run.changed))
        if [*map(id, runs)] != [*map(id, self._last.runs)]:
            self._last = RunsSeen(self._last.name, runs)
        return self._last


def folder_of_runs(folder: Path) -> Path | None:
    """Where the runs are if this is the folder of a server, of a site, or of several runs; None: it is one run's."""
    with suppress(FederationError):
        about = process_of(folder).about
        return Path(about["out"]).parent if "out" in about else folder / "runs"
    if any((folder / name).is_file() for name in (SETTINGS, ROUNDS, PROGRESS, RESULTS)):
        return None
    with suppress(RunFolderError):
        find_runs(folder)
        return folder
    return None


def page_of(folder: Path, keys: Keys) -> WatchPage:
    """That of a run, or of all runs of a server, a site or a folder."""
    several = folder_of_runs(folder)
    return (
        WatchPage(Feed(folder), keys, render) if several is None else WatchPage(History(several), keys, render_history)
    )


def title_of(folder: Path) -> str:
    several = folder_of_runs(folder)
    return Feed(folder).look().name if several is None else f"the runs in {several}"


@dataclass(frozen=True)
class RunRow:
    """One run, as the table shows it."""

    name: str
    method: str  # what ran, as tables call it; empty before the first round
    earlier: str  # the run that it goes on from
    state: str
    done: int
    planned: int | None
    sites: int  # that took part at least once
    known: int
    unused: int  # answers, by client and round, that could not be used
    refused: int  # and those that a site did not want to give
    guarded: int  # trainings and averages that were taken back, and sites that did not train
    epsilon: float | None
    zero_shot: float | None
    accuracy: float | None


def run_row(run: Snapshot, state: str) -> RunRow:
    rounds, outcome = run.outcome.rounds, run.outcome
    reasons = [why for one in (outcome.dropped_before, *(r.dropped for r in rounds)) for why in one.values()]
    refused = sum(REFUSED in why for why in reasons)
    return RunRow(
        name=run.name,
        method=outcome.method,
        earlier=str(outcome.setting("earlier") or "").rpartition(" ")[0],
        state=state,
        done=run.done,
        planned=run.planned,
        sites=len({name for record in rounds for name in record.sites or ()}),
        known=len(run.clients),
        unused=len(reasons) - refused,
        refused=refused,
        guarded=sum(map(guard_events, rounds)),
        epsilon=outcome.privacy.epsilon if outcome.privacy else None,
        zero_shot=outcome.zero_shot.macro,
        accuracy=outcome.final.macro if rounds else None,
    )


def guard_events(record: RoundRecord) -> int:
    """How often a guard took something back in a round, or kept a site from training."""
    guard = record.holdout
    if guard is None:
        return 0
    return (
        int(guard.averages_rolled_back + guard.trainings_rolled_back + guard.low_confidence) + guard.server_rolled_back
    )


def who_was_there(runs: Sequence[Snapshot]) -> list[tuple[str, list[int | None]]]:
    """Each client, and in how many rounds of each run it took part; None where it was not known then."""
    names = dict.fromkeys(name for run in runs for name in run.clients)

    def taken(run: Snapshot, name: str) -> int | None:
        if name not in run.clients:
            return None
        return sum(name in (record.sites or ()) for record in run.outcome.rounds)

    return [(name, [taken(run, name) for run in runs]) for name in names]


def bar_charts(rows: Sequence[RunRow]) -> Iterator[BarChart]:
    """Over the runs: how good, and what was given away, where that is known."""
    names = [row.name for row in rows]
    good = [
        Bars("zero-shot", "estimated", [curves.hundred(row.zero_shot) for row in rows]),
        Bars("last round", "selected", [curves.hundred(row.accuracy) for row in rows]),
    ]
    if any(row.accuracy is not None for row in rows):
        yield bar_chart("Accuracy, macro, by run", names, good, curves.PERCENT)
    if any(row.epsilon is not None for row in rows):
        given = Bars("epsilon", "allocated", [row.epsilon for row in rows])
        yield bar_chart("Epsilon by run", names, [given], EPSILON)


def troubles(runs: Sequence[Snapshot]) -> Iterator[tuple[str, int, str, str]]:
    """What did not go as it should, the last run and round first: run, round, who, what."""
    for run in reversed(runs):
        yield from ((run.name, *line) for line in log_lines(run.outcome.rounds))


def render_history(seen: RunsSeen, state: str) -> dict[str, str]:
    """The parts of the page, each by itself."""
    rows = [run_row(run, of) for run, of in zip(seen.runs, state.split(), strict=True)]
    lately, epsilons = seen.runs[-MOST_RUNS:], [row.epsilon for row in rows if row.epsilon is not None]
    made = (
        environment()
        .get_template("history-parts.html.jinja")
        .make_module(
            {
                "seen": seen,
                "rows": rows,
                "epsilon": sum(epsilons) if len(epsilons) > 1 else None,
                "bars": list(bar_charts(rows[-MOST_RUNS:])) if rows else [],
                "lately": lately,
                "there": who_was_there(lately),
                "troubles": list(troubles(seen.runs)),
                "most_clients": MOST_CLIENTS,
                "most_lines": MOST_LINES,
            }
        )
    )
    return {name: str(getattr(made, name)()).strip() for name in PARTS}

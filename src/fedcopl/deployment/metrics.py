"""Numbers for those who watch many machines: `/metrics` in the text form of Prometheus, and what `/health` says.

All of it is read from the folder at the moment of asking, as `fedcopl status` does, beside what a site counts while it
runs. Nothing about an image, a class or a label is in it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from ..errors import FedCoPLError, FederationError
from ..run.record import RoundRecord
from .certificates import read_site_keys
from .processes import FolderProcess, process_of
from .provisioning.endings import endings_of, this_day
from .status import connected_sites, privacy_so_far, rounds_so_far

REFUSED = "refused: "  # how a refusal of a site begins


@dataclass(frozen=True)
class Metric:
    """One number, or one for each set of labels."""

    name: str
    help: str
    values: Mapping[tuple[tuple[str, str], ...], float]
    kind: str = "gauge"

    @classmethod
    def plain(cls, name: str, help: str, value: float, kind: str = "gauge") -> "Metric":
        return cls(name, help, {(): value}, kind)

    @classmethod
    def by(cls, label: str, name: str, help: str, values: Mapping[str, float], kind: str = "gauge") -> "Metric":
        return cls(name, help, {((label, key),): value for key, value in values.items()}, kind)


def prometheus_text(metrics: Iterable[Metric]) -> str:
    """
    >>> print(prometheus_text([Metric.by("site", "up", "Who is here.", {"north": 1})]), end="")
    # HELP fedcopl_up Who is here.
    # TYPE fedcopl_up gauge
    fedcopl_up{site="north"} 1
    """
    lines = []
    for metric in metrics:
        name = f"fedcopl_{metric.name}"
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        lines += [f"{name}{_labels(labels)} {value:.10g}" for labels, value in metric.values.items()]
    return "\n".join(lines) + "\n"


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    inside = ",".join(f'{key}="{value.translate(escapes)}"' for key, value in pairs)
    return f"{{{inside}}}" if inside else ""


@dataclass
class AnswerCounts:
    """What a site has answered since it was started, by kind of question."""

    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    connected: bool = False

    def add(self, kind: str, seconds: float, *, refused: bool) -> None:
        (self.refused if refused else self.answered)[kind] += 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds


def server_metrics(folder: Path) -> list[Metric]:
    """Of the run that the server of this folder plays now, or played last."""
    process = process_of(folder)
    rounds = rounds_so_far(process.results)
    connected = _connected(process)
    here = {name: float(name in connected) for name in sorted(read_site_keys(folder / "sites"))}
    last = rounds[-1] if rounds else RoundRecord(round=-1)
    drops = Counter(site for record in rounds for site in record.dropped)
    refusals = Counter(site for record in rounds for site, why in record.dropped.items() if REFUSED in why)
    privacy = privacy_so_far(process.results, rounds)
    found = [
        Metric.plain("rounds", "Rounds of this run that are done.", last.number, "counter"),
        Metric.by("site", "site_connected", "1 if the site is connected.", here),
        Metric.plain("participants", "Sites that trained in the last round.", last.participants),
        Metric.plain("run_seconds", "Seconds this run has taken so far.", last.seconds, "counter"),
        Metric.by("direction", "message_bytes", "What the messages said, in bytes.", _bytes(rounds), "counter"),
        Metric.by("site", "dropped_answers", "Rounds with an answer that was not used.", drops, "counter"),
        Metric.by("site", "refusals", "Of these, refused by the site.", refusals, "counter"),
        Metric.by("event", "guard_events", "What the guard took back.", _guard(rounds), "counter"),
    ]
    if privacy and privacy.epsilon is not None:
        found.append(Metric.plain("epsilon", "Spent by the site that gave away most.", privacy.epsilon))
    return [*found, *ends(folder, this_day())]


def site_metrics(folder: Path, counts: AnswerCounts) -> list[Metric]:
    return [
        Metric.plain("connected", "1 if the server lets this site in and answers.", float(counts.connected)),
        Metric.by("question", "answers", "Questions answered since the start.", counts.answered, "counter"),
        Metric.by("question", "refusals", "Questions not answered since the start.", counts.refused, "counter"),
        Metric.by("question", "answer_seconds", "Seconds of work on them.", counts.seconds, "counter"),
        *ends(folder, this_day()),
    ]


def ends(folder: Path, today: date) -> list[Metric]:
    days = {ending.what: float(ending.days_left(today)) for ending in endings_of(folder)}
    return [Metric.by("what", "days_left", "Days until a key or certificate ends.", days)]


def health(folder: Path, troubles: Iterable[str] = ()) -> dict[str, object]:
    """Whether all is well: nothing has ended, and what the process itself says."""
    wrong = list(troubles)
    try:
        wrong += [
            f"{one.what}: {one.in_words(this_day())}" for one in endings_of(folder) if one.days_left(this_day()) < 0
        ]
        role = process_of(folder).role
    except FedCoPLError as error:
        role, wrong = "unknown", [*wrong, str(error)]
    return {"status": "trouble" if wrong else "ok", "role": role, "troubles": wrong}


def _connected(process: FolderProcess) -> set[str]:
    """Nobody, where the SuperLink is not up yet or no more."""
    try:
        return set(connected_sites(process)) if process.running else set()
    except FederationError:
        return set()


def _bytes(rounds: Iterable[RoundRecord]) -> dict[str, float]:
    rounds = list(rounds)
    return {"up": sum(one.bytes_up for one in rounds), "down": sum(one.bytes_down for one in rounds)}


def _guard(rounds: Iterable[RoundRecord]) -> dict[str, float]:
    seen = [record.holdout for record in rounds if record.holdout]
    return {
        "training_taken_back": sum(int(one.training_harmed) for one in seen),
        "too_doubtful": sum(int(one.too_doubtful) for one in seen),
        "average_undone": sum(bool(one.average_undone) for one in seen),
    }

"""A stored run: complete as JSON, and as rows for SQL queries."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedcopl.run.record import Accuracies, Outcome, round_to_plain

from ..flat_settings import flat

HEADLINES = ("zero_shot", "final", "best")
ACCURACIES = ("macro", "weighted", "global")


@dataclass(frozen=True)
class StoredRun:
    """A finished or failed run."""

    key: str
    status: str  # "done" or "failed"
    settings: Mapping[str, Any]  # in sections, as in settings.toml
    outcome: Outcome | None  # None: the run failed
    error: str | None  # the message, and the traceback from the second line on
    seconds: float
    host: str
    code: str  # version of the code
    versions: Mapping[str, str]
    started: str  # UTC, ISO 8601
    finished: str
    folder: str  # relative to the folder of the store

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def title(self) -> str:
        """Title of the method, as in tables; for a failed run its method and labeler."""
        if self.outcome is None or not self.outcome.method:
            return ", ".join(str(self.settings.get(name)) for name in ("method", "labeler"))
        return self.outcome.method

    @property
    def reason(self) -> str:
        """The reason of a failure, in one line."""
        return (self.error or "").partition("\n")[0]


def readable(text: str) -> str:
    """Escape bytes that are not valid UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_huge(value: object) -> bool:
    """Return whether a value is an integer beyond 64 bits, as a seed may be."""
    return isinstance(value, int) and value.bit_length() > 63


def headline(outcome: Outcome) -> dict[str, float | None]:
    """Return the numbers of a table of runs: accuracies, last pseudo labels, images, traffic, time."""
    numbers = {
        f"{when}.{kind}": share for when in HEADLINES for kind, share in accuracies(getattr(outcome, when)).items()
    }
    pseudo = [share for share in outcome.pseudo_label_accuracy if share is not None]
    numbers["pseudo_label_accuracy"] = pseudo[-1] if pseudo else None
    return numbers | {name: getattr(outcome, name) for name in ("images_used", "bytes_up", "bytes_down", "seconds")}


def accuracies(measured: Accuracies) -> dict[str, float | None]:
    return dict(zip(ACCURACIES, (measured.macro, measured.weighted, measured.everywhere), strict=True))


def round_rows(outcome: Outcome) -> Iterator[tuple[int, str, float]]:
    """Yield (round, metric, value) of every number of every round; lists and text are in the JSON only."""
    for record in outcome.rounds:
        yield from ((record.round, *pair) for pair in _numbers(round_to_plain(record)) if pair[0] != "round")


def client_rows(outcome: Outcome) -> Iterator[tuple[str, str, float]]:
    """Yield (client, metric, value): images, accuracy before and after."""
    for client in outcome.clients:
        yield from ((client.name, *pair) for pair in _numbers(asdict(client)))


def class_rows(outcome: Outcome) -> Iterator[tuple[str, str, float]]:
    """Yield (class, metric, value): true and last selected training images, and the recall after the last round."""
    columns: dict[str, Iterable[float | None]] = {
        "train": _sums(client.true_counts for client in outcome.clients),
        "selected": _sums(outcome.refreshes[-1].selected) if outcome.refreshes else (),
        "recall": outcome.rounds[-1].recall or (),
    }
    for metric, values in columns.items():
        for name, value in zip(outcome.classes, values, strict=False):
            if value is not None:
                yield name, metric, value


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in flat(record).items() if isinstance(value, int | float))


def _sums(rows: Iterable[tuple[int, ...] | None]) -> list[int]:
    """Return the sum of each column over the clients that have counts."""
    return [sum(column) for column in zip(*(row for row in rows if row), strict=True)]

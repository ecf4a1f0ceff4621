"""One run as the store keeps it: whole as JSON, and cut into rows that plain SQL can ask."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Number = int | float
HEADLINES = ("zero_shot", "final", "best")
KINDS = ("macro", "weighted", "global")


@dataclass(frozen=True)
class StoredRun:
    """A run that ended, well or badly."""

    key: str
    status: str  # "done" or "failed"
    settings: Mapping[str, Any]  # in sections, as in settings.toml
    results: Mapping[str, Any] | None  # results.json; None of a failed run
    error: str | None  # what went wrong, in the first line; where in the program, below
    seconds: float
    host: str
    code: str  # version of the program that decided the results
    versions: Mapping[str, str]
    started: str  # UTC, ISO 8601
    finished: str
    folder: str  # as seen from the folder of the store, so that both can be moved together

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        return (self.error or "").partition("\n")[0]


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Sections to `section.key`, as deep as they go."""
    pairs: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            pairs |= {f"{name}.{inner}": leaf for inner, leaf in flat(value).items()}
        else:
            pairs[name] = value
    return pairs


def readable(text: str) -> str:
    """As it is, but for bytes that are no letters: those are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_huge(value: Any) -> bool:
    """Whether it is a whole number beyond the 64 bits that tables have; a seed may be."""
    return isinstance(value, int) and value.bit_length() > 63


def headline(results: Mapping[str, Any]) -> dict[str, Number | None]:
    """The numbers that a table of runs shows: the accuracies, the last pseudo labels, images, traffic, time."""
    numbers = {f"{when}.{kind}": results[when].get(kind) for when in HEADLINES for kind in KINDS}
    pseudo = [share for share in results["pseudo_label_accuracy"] if share is not None]
    numbers["pseudo_label_accuracy"] = pseudo[-1] if pseudo else None
    return numbers | {name: results.get(name) for name in ("images_used", "bytes_up", "bytes_down", "seconds")}


def round_rows(results: Mapping[str, Any]) -> Iterator[tuple[int, str, Number]]:
    """(round, metric, value) of every number of every round; lists and words stay in the JSON."""
    for record in results["rounds"]:
        yield from ((record["round"], *pair) for pair in _numbers(record) if pair[0] != "round")


def client_rows(results: Mapping[str, Any]) -> Iterator[tuple[str, str, Number]]:
    """(client, metric, value): images, accuracy before and after."""
    for client in results["clients"]:
        yield from ((client["name"], *pair) for pair in _numbers(client))


def class_rows(results: Mapping[str, Any]) -> Iterator[tuple[str, str, Number]]:
    """(class, metric, value): training images in truth and as chosen last, and the recall after the last round."""
    columns = {
        "train": _sums(client.get("true_counts") for client in results["clients"]),
        "selected": _sums(results["refreshes"][-1]["selected"]) if results["refreshes"] else [],
        "recall": results["rounds"][-1].get("recall") or [],
    }
    for metric, values in columns.items():
        for name, value in zip(results["classes"], values, strict=False):
            if value is not None:
                yield name, metric, value


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, Number]]:
    return ((name, value) for name, value in flat(record).items() if isinstance(value, int | float))


def _sums(rows: Any) -> list[int]:
    """The sum of each column; a client that has no counts counts nothing."""
    return [sum(column) for column in zip(*(row for row in rows if row), strict=True)]

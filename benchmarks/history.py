"""The history of measurements, `benchmarks/history.jsonl`: one line for each run of the benchmarks."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from .measure import Line, Measured, this_machine

FILE = Path(__file__).with_name("history.jsonl")


@dataclass(frozen=True)
class PastRun:
    """One run of the benchmarks."""

    commit: str  # followed by + if files were changed
    date: str
    cpu: str
    processors: int
    threads: int
    torch: str
    lines: Mapping[str, Line]  # by key


def this_run(lines: Sequence[Line]) -> PastRun:
    """Return the present run with the lines that have a ratio."""
    measured = [line for line in lines if isinstance(line.ratio, Measured)]
    return PastRun(
        _commit(),
        datetime.now(UTC).strftime("%Y-%m-%d"),
        this_machine().model,
        this_machine().processors,
        torch.get_num_threads(),
        torch.__version__,
        {line.key: line for line in measured},
    )


def record(run: PastRun, file: Path = FILE) -> None:
    with file.open("a", encoding="utf-8") as history:
        history.write(json.dumps(asdict(run)) + "\n")


def read_history(file: Path = FILE) -> list[PastRun]:
    """Return all runs, oldest first."""
    return [_run(json.loads(line)) for line in file.read_text("utf-8").splitlines() if line]


def _run(stored: Mapping[str, object]) -> PastRun:
    return PastRun(**{**stored, "lines": {key: _line(line) for key, line in stored["lines"].items()}})


def _line(stored: Mapping[str, object]) -> Line:
    return Line(**{**stored, "ratio": Measured(**stored["ratio"])})


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=FILE.parent, capture_output=True, text=True, check=True).stdout

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", "../src").strip()
    return git("rev-parse", "--short=8", "HEAD").strip() + ("+" if changed else "")

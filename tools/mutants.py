"""Mutation testing: apply each fault of tools/mutants.toml to the source; the fast tests must detect it.

    python tools/mutants.py               all mutants
    python tools/mutants.py --part 1/4    the first quarter of them
    python tools/mutants.py --only NAME   one mutant, with the output of its tests

A mutant replaces a text of a source file and names the tests that must fail. It is applied in a copy of the repository,
one copy per core. A mutant is killed if a test fails or does not end; it survives if all tests pass, so a test is
missing. A mutant whose tests cannot be collected is an error of the list.
"""

import argparse
import multiprocessing
import os
import queue
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tools" / "mutants.toml"
COPIED = ("src", "experiments", "tests", "tools", "docs", "README.md", "conftest.py", "pyproject.toml")
FAST = "not slow and not browser and not real and not gpu"
TIME_LIMIT = 600  # seconds for a file of tests; a mutant may loop forever

Result = Literal["killed", "survived", "no test ran"]


class BadMutant(Exception):
    """An entry of the list does not apply to the source, or its tests cannot run."""


@dataclass(frozen=True)
class Mutant:
    """A fault, and the tests that must detect it."""

    name: str
    file: str  # relative to the root
    old: str  # occurs exactly once in the file
    new: str
    tests: tuple[str, ...]  # files or single tests, all of the fast tier

    def applied_to(self, text: str) -> str:
        """Return a source text with the fault; raise BadMutant if the old text is not unique."""
        count = text.count(self.old)
        if count != 1 or self.old == self.new:
            problem = f"occurs {count} times in {self.file}, not once" if count != 1 else "equals the new text"
            raise BadMutant(f"{self.name}: the old text {problem}; fix its entry in tools/mutants.toml")
        return text.replace(self.old, self.new)


def read_mutants(file: Path = LIST) -> list[Mutant]:
    entries = tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**entry | {"tests": tuple(entry["tests"])}) for entry in entries]


def part_of(mutants: Sequence[Mutant], part: str) -> list[Mutant]:
    """Return every fourth mutant, beginning with the second, for "2/4"."""
    number, parts = map(int, part.split("/"))
    if not 1 <= number <= parts:
        raise BadMutant(f"--part {part}: should be 1/{parts} to {parts}/{parts}")
    return list(mutants[number - 1 :: parts])


@dataclass(frozen=True)
class SourceCopy:
    """A copy of the repository to which mutants are applied one after another."""

    root: Path

    @classmethod
    def create(cls, folder: Path, source: Path = ROOT) -> "SourceCopy":
        for name in filter(lambda name: (source / name).exists(), COPIED):
            copy = shutil.copytree if (source / name).is_dir() else shutil.copy
            copy(source / name, folder / name)
        return cls(folder)

    def run_mutant(self, mutant: Mutant) -> tuple[Result, str]:
        """Apply a mutant, run its tests and undo it; return the result and the output of the tests."""
        file = self.root / mutant.file
        original = file.read_text(encoding="utf-8")
        try:
            _write(file, mutant.applied_to(original))
            return self.run_tests(mutant.tests)
        finally:
            _write(file, original)

    def run_tests(self, tests: Sequence[str]) -> tuple[Result, str]:
        """Run the fast tests among these up to the first failure, in a process that has imported torch."""
        output, limit = self.root / "output.txt", TIME_LIMIT * len(tests)
        process = FORK_SERVER.Process(target=_pytest, args=(str(self.root), tuple(tests), str(output)))
        process.start()
        process.join(limit)
        if process.exitcode is None:
            process.kill()
            process.join()
            return "killed", f"the tests did not end within {limit} s"
        results: dict[int, Result] = {0: "survived", 1: "killed"}
        return results.get(process.exitcode, "no test ran"), output.read_text(encoding="utf-8", errors="replace")


FORK_SERVER = multiprocessing.get_context("forkserver")
# Third-party modules that are slow to import.
FORK_SERVER.set_forkserver_preload(
    ["pytest", "xdist.scheduler", "hypothesis", "torch", "scipy.optimize", "sklearn.datasets", "pydantic", "PIL.Image"]
)


def _pytest(root: str, tests: tuple[str, ...], output: str) -> None:
    """Run tests of the copy with the package of the copy, in a new process."""
    with open(output, "w", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sources = [f"{root}/src", f"{root}/experiments/src"]
    sys.path[:0], os.environ["PYTHONPATH"] = sources, os.pathsep.join(sources)
    os.chdir(root)
    import pytest

    raise SystemExit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", FAST, *tests]))


def _write(file: Path, text: str) -> None:
    """Write a file and delete its bytecode, which Python would use again for the same size and second."""
    file.write_text(text, encoding="utf-8")
    Path(cache_from_source(str(file))).unlink(missing_ok=True)


def run_all(mutants: Sequence[Mutant], cores: int) -> dict[str, tuple[Result, str]]:
    """Run all mutants in parallel; first their tests must pass without any fault."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free: queue.SimpleQueue[SourceCopy] = queue.SimpleQueue()
        for number in range(cores):
            (Path(folder) / str(number)).mkdir()
            free.put(SourceCopy.create(Path(folder) / str(number)))

        def run(mutant: Mutant) -> tuple[Result, str]:
            copy, start = free.get(), time.monotonic()
            try:
                result, output = copy.run_mutant(mutant)
            finally:
                free.put(copy)
            print(f"{result:12} {time.monotonic() - start:5.1f} s  {mutant.name}", flush=True)
            return result, output

        def run_unchanged(tests: Sequence[str]) -> tuple[Result, str]:
            copy = free.get()
            try:
                return copy.run_tests(tests)
            finally:
                free.put(copy)

        with ThreadPoolExecutor(cores) as pool:
            tests = sorted({test for mutant in mutants for test in mutant.tests})
            # One process per core, which imports the program once.
            chunks = [tests[number::cores] for number in range(min(cores, len(tests)))]
            for result, output in pool.map(run_unchanged, chunks):
                if result != "survived":
                    raise BadMutant(f"the tests must pass without a mutant:\n{output}")
            return dict(zip([mutant.name for mutant in mutants], pool.map(run, mutants), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="1/1", metavar="N/M")
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        mutants = part_of([mutant for mutant in read_mutants() if arguments.only in ("", mutant.name)], arguments.part)
        if not mutants:
            raise BadMutant(f"--only {arguments.only}: there is no such mutant")
        for mutant in mutants:
            mutant.applied_to((ROOT / mutant.file).read_text(encoding="utf-8"))
        results = run_all(mutants, min(arguments.cores, len(mutants)))
    except BadMutant as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.only:
        print(results[arguments.only][1])
    others = {name: result for name, (result, _) in results.items() if result != "killed"}
    print(f"{len(results) - len(others)} of {len(results)} mutants killed")
    for name, result in others.items():
        print(f"  {name}: {'no fast test detects it' if result == 'survived' else 'its tests could not run'}")
    return 1 if others else 0


if __name__ == "__main__":
    raise SystemExit(main())

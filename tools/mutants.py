"""Break the program on purpose, one small place at a time: the fast tests must notice each of them.

    python tools/mutants.py               all of tools/mutants.toml
    python tools/mutants.py --part 1/4    the first quarter; the four parts together are all
    python tools/mutants.py --only NAME   one of them, with what its tests said

A mutant is a text of the program and what to put in its stead, with the tests that are to fail then. Each is tried in a
copy of its own, one for each core. It is killed when a test fails or never ends. It lives when all pass: then a test is
missing. Tests that cannot even be collected prove nothing, so that is a mistake of the list.
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
LONGEST = 600  # seconds for a file of tests, on a busy machine: who breaks a loop makes it endless

Fate = Literal["killed", "lives", "no test ran"]


class BadMutant(Exception):
    """The list does not fit the program any more."""


@dataclass(frozen=True)
class Mutant:
    """One fault to put in, and who should notice it."""

    name: str
    file: str  # below the root
    old: str  # occurs in it exactly once
    new: str
    tests: tuple[str, ...]  # files or single tests, all of the fast tier

    def applied_to(self, text: str) -> str:
        """The text with the fault in it; BadMutant where it is not clear where that is."""
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            where = f"occurs {found} times in {self.file}, not once" if found != 1 else "is also its new one"
            raise BadMutant(f"{self.name}: its old text {where}; fix its entry in tools/mutants.toml")
        return text.replace(self.old, self.new)


def read_mutants(file: Path = LIST) -> list[Mutant]:
    entries = tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**entry | {"tests": tuple(entry["tests"])}) for entry in entries]


def part_of(mutants: Sequence[Mutant], part: str) -> list[Mutant]:
    """ "2/4": the second of four parts of about the same size and kind."""
    number, parts = map(int, part.split("/"))
    if not 1 <= number <= parts:
        raise BadMutant(f"--part {part}: say 1/4, 2/4, 3/4 or 4/4")
    return list(mutants[number - 1 :: parts])


@dataclass(frozen=True)
class Workshop:
    """A copy of the program in which faults are tried one after another."""

    root: Path

    @classmethod
    def below(cls, folder: Path, source: Path = ROOT) -> "Workshop":
        for name in filter(lambda name: (source / name).exists(), COPIED):
            copy = shutil.copytree if (source / name).is_dir() else shutil.copy
            copy(source / name, folder / name)
        return cls(folder)

    def fate_of(self, mutant: Mutant) -> tuple[Fate, str]:
        """What became of it, and what the tests said."""
        file = self.root / mutant.file
        whole = file.read_text(encoding="utf-8")
        try:
            _write(file, mutant.applied_to(whole))
            return self.run(mutant.tests)
        finally:
            _write(file, whole)

    def run(self, tests: Sequence[str]) -> tuple[Fate, str]:
        """The fast ones of these tests, up to the first that fails; in a process that has loaded torch before."""
        said, patience = self.root / "said.txt", LONGEST * len(tests)
        process = READY.Process(target=_pytest, args=(str(self.root), tuple(tests), str(said)))
        process.start()
        process.join(patience)
        if process.exitcode is None:
            process.kill()
            process.join()
            return "killed", f"the tests did not end within {patience} s"
        fates: dict[int, Fate] = {0: "lives", 1: "killed"}
        return fates.get(process.exitcode, "no test ran"), said.read_text(encoding="utf-8", errors="replace")


READY = multiprocessing.get_context("forkserver")
# Slow to load, and not ours.
READY.set_forkserver_preload(
    ["pytest", "xdist.scheduler", "hypothesis", "torch", "scipy.optimize", "sklearn.datasets", "pydantic", "PIL.Image"]
)


def _pytest(root: str, tests: tuple[str, ...], said: str) -> None:
    """In a process of its own: the tests of the copy, with the program of the copy."""
    with open(said, "w", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    ours = [f"{root}/src", f"{root}/experiments/src"]
    sys.path[:0], os.environ["PYTHONPATH"] = ours, os.pathsep.join(ours)
    os.chdir(root)
    import pytest

    raise SystemExit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", FAST, *tests]))


def _write(file: Path, text: str) -> None:
    """Python may take a file of the same second and size for the same: so what it has compiled goes too."""
    file.write_text(text, encoding="utf-8")
    Path(cache_from_source(str(file))).unlink(missing_ok=True)


def try_all(mutants: Sequence[Mutant], cores: int) -> dict[str, tuple[Fate, str]]:
    """Each mutant's fate. First all their tests without any fault: who fails anyway notices nothing."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free: queue.SimpleQueue[Workshop] = queue.SimpleQueue()
        for number in range(cores):
            (Path(folder) / str(number)).mkdir()
            free.put(Workshop.below(Path(folder) / str(number)))

        def tried(mutant: Mutant) -> tuple[Fate, str]:
            workshop, began = free.get(), time.monotonic()
            try:
                fate, said = workshop.fate_of(mutant)
            finally:
                free.put(workshop)
            print(f"{fate:12} {time.monotonic() - began:5.1f} s  {mutant.name}", flush=True)
            return fate, said

        def unbroken(tests: Sequence[str]) -> tuple[Fate, str]:
            workshop = free.get()
            try:
                return workshop.run(tests)
            finally:
                free.put(workshop)

        with ThreadPoolExecutor(cores) as pool:
            tests = sorted({test for mutant in mutants for test in mutant.tests})
            # All of a core in one process, which loads the program once.
            for fate, said in pool.map(unbroken, (tests[number::cores] for number in range(min(cores, len(tests))))):
                if fate != "lives":
                    raise BadMutant(f"all tests must pass before anything is broken:\n{said}")
            fates = pool.map(tried, mutants)
            return {mutant.name: fate for mutant, fate in zip(mutants, fates, strict=True)}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--part", default="1/1", metavar="N/M")
    arguments.add_argument("--only", default="", metavar="NAME")
    arguments.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    chosen = arguments.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        mutants = part_of([one for one in read_mutants() if chosen.only in ("", one.name)], chosen.part)
        if not mutants:
            raise BadMutant(f"--only {chosen.only}: there is no such mutant")
        for mutant in mutants:
            mutant.applied_to((ROOT / mutant.file).read_text(encoding="utf-8"))
        fates = try_all(mutants, min(chosen.cores, len(mutants)))
    except BadMutant as mistake:
        print(mistake, file=sys.stderr)
        return 2
    if chosen.only:
        print(fates[chosen.only][1])
    left = {name: fate for name, (fate, _) in fates.items() if fate != "killed"}
    print(f"{len(fates) - len(left)} of {len(fates)} mutants killed")
    for name, fate in left.items():
        print(f"  {name}: {'no fast test notices it' if fate == 'lives' else 'its tests could not run'}")
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""A fixed set of small runs, and whether two versions of the code give the same bits in them.

    python tools/same_bits.py play FOLDER           plays them with the code that is installed
    python tools/same_bits.py compare OLD NEW       says what differs, and leaves with 1 if anything does

Prompts and labels are compared as bytes, results.json number by number; times, versions and the written-out settings
are left out. A change that is meant to change no result (a move, a rename, a speed-up) is held to this.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SMALL = "data.clients=3 rounds=2 train.epochs=1 labels.refresh_every=1 model.threads=1".split()
CHOSEN = {
    "fedcopl": "",
    "fedcopl-seed-7": "seed=7 data.partition=quantity",
    "fedcopl-iid": "data.partition=iid labels.refresh_every=2",
    "fedcopl-both": "sharing.aggregate=both",
    "fedcopl-none": "sharing.aggregate=none",
    "fedcopl-half": "sharing.participation=0.5 labels.budget=ceil labels.unseen=none",
    "fedcopl-any": "labels.candidates=any labels.global_allocation=false",
    "promptfl-fpl": "method=promptfl labeler=fpl",
    "promptfl-dual": "method=promptfl options.modality=dual labeler=fpl labels.fpl_rule=leaderboard",
    "promptprox-cpl": "method=promptprox labeler=cpl",
    "pfedprompt": "method=pfedprompt labeler=cpl labels.cpl_targets=soft",
    "local": "method=local train.schedule=run",
    "central-truth": "method=central options.labels=truth",
    "fedvpt": "method=fedvpt train.clip_norm=0.1",
    "secure": "privacy.secure_sums=true",
    "noise": "privacy.noise=0.5 method=promptfl",
    "secure-noise": "privacy.secure_sums=true privacy.noise=1 method=promptfl",
}
UNLIKE = {"seconds", "seconds_of", "seconds_per_step", "versions", "settings", "schema"}  # differ without any harm


def runs() -> dict[str, str]:
    """Those chosen above, and one of every other method of the table."""
    from fedcopl.methods import METHODS  # brings torch

    return {name: f"method={name}" for name in METHODS} | CHOSEN


def play(folder: Path, start: str) -> None:
    for name, settings in runs().items():
        words = [*SMALL, *start.split(), *settings.split(), "--out", str(folder / name)]
        subprocess.run([sys.executable, "-m", "fedcopl", "run", *words], check=True, stdout=subprocess.DEVNULL)
        print(name, flush=True)


def played(folder: Path) -> list[str]:
    return sorted(results.parent.name for results in folder.glob("*/results.json"))


def differences(old: Path, new: Path) -> Iterator[str]:
    """In the runs that the old one has; a run of a method that is gone is a difference too."""
    for name in played(old):
        if name not in played(new):
            yield f"{name}: was not played"
            continue
        for file in sorted((old / name).rglob("*.safetensors")):
            other = new / file.relative_to(old)
            if file.name != "checkpoint.safetensors" and _bytes(file) != _bytes(other):
                yield f"{file.relative_to(old)}: other bytes"
        before, after = (json.loads((folder / name / "results.json").read_text()) for folder in (old, new))
        yield from _unlike(before, after, name)


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def _unlike(old: Any, new: Any, where: str) -> Iterator[str]:
    """What the old one says otherwise; what only the new one says is no difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - UNLIKE:
            yield from _unlike(old[key], new.get(key), f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _unlike(a, b, f"{where}[{number}]")
    elif old != new:
        yield f"{where}: {old!r:.60} became {new!r:.60}"


def main() -> None:
    match sys.argv[1:]:
        case ["play", folder, *start]:
            play(Path(folder), " ".join(start))
        case ["compare", old, new]:
            found = list(differences(Path(old), Path(new)))
            print("\n".join(found) or f"the same bits in {len({*played(Path(old))} & {*played(Path(new))})} runs")
            sys.exit(bool(found))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()

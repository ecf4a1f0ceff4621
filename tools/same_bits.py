"""Run a fixed set of small experiments and compare their results between two versions of the code, bit by bit.

    python tools/same_bits.py play FOLDER [--only NAME,...] [--as-published]   run them with the installed code
    python tools/same_bits.py compare OLD NEW                                  list the differences; exit code 1 if any

The set has one run per method, several settings of FedCoPL, a run that is killed and resumed, and a deployment of two
sites as real processes; `--only` chooses some by name, e.g. `fedcopl,resumed,two-sites`. Prompts and labels are
compared as bytes, results.json number by number; times, versions and the written-out settings are left out. A
refactoring must not change any of these bits.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

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
    "secure": "privacy.secure_aggregation=true",
    "noise": "privacy.noise_multiplier=0.5 method=promptfl",
    "secure-noise": "privacy.secure_aggregation=true privacy.noise_multiplier=1 method=promptfl",
}
RESUMED = "rounds=3"  # killed once the first checkpoint is there, then resumed
WITH_PRIORS = "priors.logit_bias=true priors.label_shift=true priors.prototypes=true".split()
UNLIKE = {
    "seconds",
    "seconds_of",
    "seconds_per_step",
    "versions",
    "settings",
    "schema",
    "called",
    "run_id",
}  # differ without any harm


RENAMED = {  # keys, folders and arrays of the old run that have another name in the new one
    "guard": "holdout",
    "loss_had": "loss_before",
    "loss_came": "loss_after",
    "average_harmed": "averages_rolled_back",
    "training_harmed": "trainings_rolled_back",
    "too_doubtful": "low_confidence",
    "average_undone": "server_rolled_back",
    "believed_mix": "class_prior",
    "mixes": "class_priors",
    "site_mix": "site_class_prior",
}


def runs() -> dict[str, str]:
    """Return the settings of each run: the chosen ones above, and one run of every other method."""
    from fedcopl.methods import METHODS  # brings torch

    return {name: f"method={name}" for name in METHODS} | CHOSEN


def play(folder: Path, names: list[str], start: list[str]) -> None:
    """Run the named experiments (all if none is named); `start` is added to every command."""
    settings = runs()
    for name in names or [*settings, "resumed", "two-sites"]:
        if name == "resumed":
            play_resumed(folder / name, [*start, RESUMED])
        elif name == "two-sites":
            play_two_sites(folder / name, [] if "--as-published" in start else WITH_PRIORS)
        else:
            _run(folder / name, [*start, *settings[name].split()])
        print(name, flush=True)


def _command(out: Path, settings: list[str]) -> list[str]:
    return [sys.executable, "-m", "fedcopl", "run", *SMALL, *settings, "--out", str(out)]


def _run(out: Path, settings: list[str]) -> None:
    subprocess.run(_command(out, settings), check=True, stdout=subprocess.DEVNULL)


def play_resumed(out: Path, settings: list[str]) -> None:
    """Kill a run after its first checkpoint and resume it; fails if it ended before it could be killed."""
    running = subprocess.Popen(_command(out, settings), stdout=subprocess.DEVNULL, start_new_session=True)
    while not (out / "checkpoint.safetensors").exists() and running.poll() is None:
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGKILL)
    if running.wait() == 0:
        sys.exit("resumed: the run ended before it could be killed")
    _run(out, [*settings, "--resume"])


def play_two_sites(out: Path, settings: list[str]) -> None:
    """Run a server and two sites as real processes; the server's folder and each site's prompts are kept."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from deployment.deployment import Deployment

    shutil.rmtree(out, ignore_errors=True)
    root = out.with_name("two-sites.tmp").absolute()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    deployed = Deployment(root, count=2)
    try:
        deployed.admit(*deployed.names)
        deployed.server("rounds=2", *settings, min_sites=2)
        for name in deployed.names:
            deployed.join(name)
        if deployed.wait_for_end():
            sys.exit(deployed.all_logs())
    finally:
        deployed.end()
    shutil.copytree(root / "run", out)
    for name in deployed.names:
        [file] = deployed.home(name).glob(f"runs/*/prompts/clients/{name}.safetensors")
        shutil.copy(file, out / f"{name}.safetensors")
    shutil.rmtree(root)


def played(folder: Path) -> list[str]:
    return sorted(results.parent.name for results in folder.glob("*/results.json"))


def differences(old: Path, new: Path) -> Iterator[str]:
    """Yield the differences in the runs of the old folder; a run that the new folder lacks is a difference too."""
    for name in played(old):
        if name not in played(new):
            yield f"{name}: was not played"
            continue
        for file in sorted((old / name).rglob("*.safetensors")):
            other = new.joinpath(*(RENAMED.get(part, part) for part in file.relative_to(old).parts))
            if file.name != "checkpoint.safetensors" and _arrays(file) != _arrays(other):
                yield f"{file.relative_to(old)}: other bytes"
        before, after = (json.loads((folder / name / "results.json").read_text()) for folder in (old, new))
        yield from _unlike(before, after, name)


def _arrays(file: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]] | None:
    if not file.exists():
        return None
    with safe_open(file, framework="numpy") as opened:
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return {RENAMED.get(name, name): (str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items()}


def _unlike(old: Any, new: Any, where: str) -> Iterator[str]:
    """Yield the values of the old record that differ; keys that only the new record has are no difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - UNLIKE:
            there = RENAMED.get(key, key)
            yield from _unlike(old[key], new.get(there, new.get(key)), f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _unlike(a, b, f"{where}[{number}]")
    elif old != new:
        yield f"{where}: {old!r:.60} became {new!r:.60}"


def main() -> None:
    match sys.argv[1:]:
        case ["play", folder, "--only", names, *start]:
            play(Path(folder), names.split(","), start)
        case ["play", folder, *start]:
            play(Path(folder), [], start)
        case ["compare", old, new]:
            found = list(differences(Path(old), Path(new)))
            print("\n".join(found) or f"the same bits in {len({*played(Path(old))} & {*played(Path(new))})} runs")
            sys.exit(bool(found))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()

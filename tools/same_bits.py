"""Run a fixed set of small experiments and compare their results between two versions of the code, bit by bit.

    python tools/same_bits.py run FOLDER [--only NAME,...] [--as-published]    run them with the installed code
    python tools/same_bits.py compare OLD NEW                                  list the differences; exit code 1 if any

The set has one run per method, several settings of FedCoPL, a run that is killed and resumed, and a deployment of two
sites as separate processes; `--only` selects runs by name, such as `fedcopl,resumed,two-sites`. Prompts are compared
as bytes, results.json value by value, without times, versions and settings. A refactoring must not change them.
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
EXPERIMENTS = {
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
IGNORED = {"seconds", "seconds_of", "seconds_per_step", "versions", "settings", "schema", "called", "run_id"}
RENAMED = {  # keys, folders and arrays of older versions: their present names
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
    "pools": "centralised",
}


def runs() -> dict[str, str]:
    """Return the settings of each run: `EXPERIMENTS`, and one run of every other method."""
    from fedcopl.methods import METHODS  # imports torch

    return {name: f"method={name}" for name in METHODS} | EXPERIMENTS


def run_experiments(folder: Path, names: list[str], settings_of_all: list[str]) -> None:
    """Run the named experiments, or all of them without names; `settings_of_all` are added to every command."""
    settings = runs()
    for name in names or [*settings, "resumed", "two-sites"]:
        if name == "resumed":
            run_resumed(folder / name, [*settings_of_all, RESUMED])
        elif name == "two-sites":
            run_two_sites(folder / name, [] if "--as-published" in settings_of_all else WITH_PRIORS)
        else:
            _run(folder / name, [*settings_of_all, *settings[name].split()])
        print(name, flush=True)


def _command(out: Path, settings: list[str]) -> list[str]:
    return [sys.executable, "-m", "fedcopl", "run", *SMALL, *settings, "--out", str(out)]


def _run(out: Path, settings: list[str]) -> None:
    subprocess.run(_command(out, settings), check=True, stdout=subprocess.DEVNULL)


def run_resumed(out: Path, settings: list[str]) -> None:
    """Kill a run after its first checkpoint and resume it; fails if it ended before it could be killed."""
    process = subprocess.Popen(_command(out, settings), stdout=subprocess.DEVNULL, start_new_session=True)
    while not (out / "checkpoint.safetensors").exists() and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    if process.wait() == 0:
        sys.exit("resumed: the run ended before it could be killed")
    _run(out, [*settings, "--resume"])


def run_two_sites(out: Path, settings: list[str]) -> None:
    """Run a server and two sites as separate processes; copy the server's run folder and the sites' prompts."""
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


def finished_runs(folder: Path) -> list[str]:
    return sorted(results.parent.name for results in folder.glob("*/results.json"))


def differences(old: Path, new: Path) -> Iterator[str]:
    """Yield the differences of the runs in the old folder; a run that is missing in the new folder is one."""
    for name in finished_runs(old):
        if name not in finished_runs(new):
            yield f"{name}: is missing"
            continue
        for file in sorted((old / name).rglob("*.safetensors")):
            other = new.joinpath(*(RENAMED.get(part, part) for part in file.relative_to(old).parts))
            if file.name != "checkpoint.safetensors" and _arrays(file) != _arrays(other):
                yield f"{file.relative_to(old)}: other bytes"
        before, after = (json.loads((folder / name / "results.json").read_text()) for folder in (old, new))
        yield from _different_values(before, after, name)


def _arrays(file: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]] | None:
    if not file.exists():
        return None
    with safe_open(file, framework="numpy") as opened:
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return {RENAMED.get(name, name): (str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items()}


def _different_values(old: Any, new: Any, path: str) -> Iterator[str]:
    """Yield the values of the old record that differ; keys that only the new record has are ignored."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - IGNORED:
            value = new.get(RENAMED.get(key, key), new.get(key))
            yield from _different_values(old[key], value, f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _different_values(a, b, f"{path}[{number}]")
    elif old != new:
        yield f"{path}: {old!r:.60} became {new!r:.60}"


def main() -> None:
    match sys.argv[1:]:
        case ["run", folder, "--only", names, *settings]:
            run_experiments(Path(folder), names.split(","), settings)
        case ["run", folder, *settings]:
            run_experiments(Path(folder), [], settings)
        case ["compare", old, new]:
            different = list(differences(Path(old), Path(new)))
            print("\n".join(different) or f"{len(finished_runs(Path(old)))} runs are bit-identical")
            sys.exit(bool(different))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()

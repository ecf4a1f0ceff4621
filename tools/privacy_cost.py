"""Measure the cost of privacy in accuracy on the built-in demo: the tables of docs/privacy.md.

.venv/bin/python tools/privacy_cost.py               # seeds 1 to 3: 33 runs of a minute or two
.venv/bin/python tools/privacy_cost.py --only 50     # the rows whose name contains this text
"""

import argparse
import json
import statistics
import sys
import tempfile
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedcopl.config import RunConfig, override
from fedcopl.privacy.accountant import noise_for, planned_releases
from fedcopl.run.record import Outcome, to_plain
from fedcopl.simulation.simulate import simulate

SECURE = "privacy.secure_aggregation=true"
ALONE = ["sharing.aggregate=none", "labels.global_allocation=false"]
LAST_ROUND = ["evaluation.everywhere=false", "evaluation.every=10"]  # no measurements that the table does not show
ROWS: list[tuple[str, float | None, list[str]]] = [  # name, epsilon, settings on top of the demo's
    ("5 sites, all off", None, []),
    ("5 sites, secure aggregation", None, [SECURE]),
    ("5 sites, secure aggregation and noise", 100, [SECURE]),
    ("5 sites, secure aggregation and noise", 30, [SECURE]),
    ("5 sites, secure aggregation and noise", 8, [SECURE]),
    ("5 sites, noise at each site", 30, []),
    ("5 sites, secure aggregation and noise, no counts sent", 30, [SECURE, "labels.global_allocation=false"]),
    ("5 sites, each alone: nothing sent", None, ALONE),
    ("50 sites, all off", None, ["data.clients=50"]),
    ("50 sites, secure aggregation and noise", 30, ["data.clients=50", SECURE]),
    ("50 sites, each alone: nothing sent", None, ["data.clients=50", *ALONE]),
]
COLUMNS = [
    "settings",
    "epsilon",
    "`privacy.noise_multiplier`",
    "zero-shot",
    "seeds 1, 2, 3",
    "mean",
    "pseudo-label accuracy",
    "sent, MB",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="run only the rows whose name contains this text")
    arguments = parser.parse_args()
    demo = override(tomllib.loads((files("fedcopl") / "demo.toml").read_text()), LAST_ROUND)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for name, epsilon, pairs in ROWS:
        if arguments.only in name:
            config = RunConfig.from_mapping(override(demo, pairs), "demo")
            noise = noise_for(epsilon, config.privacy.delta, planned_releases(config)) if epsilon else 0.0
            with_noise = [*pairs, f"privacy.noise_multiplier={noise:.4f}"] if noise else pairs
            outcomes = [outcome(override(demo, [*with_noise, f"seed={n + 1}"])) for n in range(arguments.seeds)]
            print(row(name, noise, outcomes), flush=True)


def outcome(settings: dict[str, Any]) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        run = simulate(RunConfig.from_mapping(settings, "demo"), Path(folder) / "run")
    plain = to_plain(run)
    print(json.dumps([settings["seed"], plain["final"], plain["privacy"], plain["seconds"]]), file=sys.stderr)
    return run


def row(name: str, noise: float, outcomes: list[Outcome]) -> str:
    accuracies = [100 * (run.final.macro or 0) for run in outcomes]
    label_accuracy = statistics.mean(100 * (run.pseudo_label_accuracy[-1] or 0) for run in outcomes)
    epsilon = outcomes[0].privacy and outcomes[0].privacy.epsilon
    cells = [
        name,
        f"{epsilon:.0f}" if epsilon else "",
        f"{noise:.2f}" if noise else "",
        f"{statistics.mean(100 * (run.zero_shot.macro or 0) for run in outcomes):.1f}",
        ", ".join(f"{accuracy:.1f}" for accuracy in accuracies),
        f"{statistics.mean(accuracies):.1f}",
        f"{label_accuracy:.1f}",
        f"{outcomes[0].bytes_up / 1e6:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()

"""The embedded demo over several seeds, as the table of the README.

.venv/bin/python tools/seeds.py            # seeds 1 to 5, about a minute each
"""

import argparse
import statistics
import sys
import tomllib
from importlib.resources import files
from typing import Any

from fedcopl import RunConfig, simulate
from fedcopl.config import override


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("pairs", nargs="*", metavar="key=value", help="settings on top of the demo's")
    arguments = parser.parse_args()
    demo = tomllib.loads((files("fedcopl") / "demo.toml").read_text())
    print("| seed | zero-shot | FedCoPL, last round | difference | pseudo labels right |")
    print("|---|---|---|---|---|")
    rows = [outcome(override(demo, [*arguments.pairs, f"seed={seed}"])) for seed in range(1, arguments.seeds + 1)]
    columns = list(zip(*rows, strict=True))
    print(
        "| mean ± std | " + " | ".join(f"{statistics.mean(c):.1f} ± {statistics.stdev(c):.1f}" for c in columns) + " |"
    )


def outcome(settings: dict[str, Any]) -> tuple[float, float, float, float]:
    """Zero-shot, final and their difference in macro accuracy, and the last pseudo-label accuracy, in percent."""
    run = simulate(config=RunConfig.from_mapping(settings, "demo"), progress=False).outcome
    zero_shot, final = 100 * (run.zero_shot.macro or 0), 100 * (run.final.macro or 0)
    row = (zero_shot, final, final - zero_shot, 100 * (run.pseudo_label_accuracy[-1] or 0))
    cells = f"{row[0]:.1f} | {row[1]:.1f} | {row[2]:+.1f} | {row[3]:.1f}"
    print(f"| {settings['seed']} | {cells} |", flush=True)
    print(f"  {run.seconds:.0f} s", file=sys.stderr)
    return row


if __name__ == "__main__":
    main()

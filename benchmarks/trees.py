"""One training step of ViT-B/32 in this checkout against another one, measured by turns.

    python -m benchmarks.trees OTHER_CHECKOUT [--turns N]

Both train the same clients with random weights, through the whole pipeline (`simulate`, one worker, two threads); the
time is that of training alone. Above 1 this checkout is faster. On a busy machine there is no number.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from .against_transformers import save_random_clip
from .measure import by_turns
from .workers import ONE_STEP_EACH

TOLERANCE = 0.03  # a step may take this much longer


def training_seconds(tree: Path, backbone: str) -> float:
    """Wall time of training with the source of one checkout."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "FEDCOPL_WORKERS": "1"}
    command = [sys.executable, "-c", ONE_STEP_EACH, backbone, "1", "2"]
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=tree)
    return float(out.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="root of the other checkout, e.g. a git worktree")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    here = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as name:
        save_random_clip(Path(name))
        one, other = (partial(training_seconds, tree.absolute(), name) for tree in (here, arguments.other))
        measured = by_turns(one, other, arguments.turns)
    print(f"training step of ViT-B/32, other checkout / this one: {measured.ratio}; {measured.in_seconds}")
    if measured.why_not is None and measured.medians[0] > (1 + TOLERANCE) * measured.medians[1]:
        sys.exit(f"this checkout is more than {TOLERANCE:.0%} slower")


if __name__ == "__main__":
    main()

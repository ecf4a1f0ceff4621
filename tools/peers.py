"""Compare unsupervised methods that are not in the paper on the demo; write their table in docs/methods.md.

.venv/bin/python tools/peers.py            # seeds 1 to 3, as published, about a minute
"""

import statistics
import tempfile
from pathlib import Path

from fedcopl.simulation.simulate import simulate
from fedcopl_experiments.cells import seeded
from fedcopl_experiments.paper_names import BLOCKS
from fedcopl_experiments.scales import SKEWS, ExperimentSetup, find_scale
from label_rules import between_markers

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
SEEDS = (1, 2, 3)
NO_SKEW = "iid"
ROWS = {
    "`method=fst`, CoPL's labels": ("fst", {}),
    "the same, without oversampling": ("fst", {"options.balance": False}),
    "`method=transclip`": ("transclip", {}),
    "`method=stata`": ("stata", {}),
    "`method=bca`": ("bca", {}),
}
Accuracies = list[tuple[float, float]]  # of each seed: zero-shot, last round


def run_accuracies(setup: ExperimentSetup, method: str, skew: str, changes: dict) -> Accuracies:
    overrides = changes | ({"data.partition": "iid"} if skew == NO_SKEW else {})
    config = setup.config("digits", method, skew="dirichlet-0.1" if skew == NO_SKEW else skew, changes=overrides)
    accuracies = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            outcome = simulate(seeded(config, seed), Path(folder) / "run")
        accuracies.append((100 * (outcome.zero_shot.macro or 0), 100 * (outcome.final.macro or 0)))
    return accuracies


def shown(numbers: list[float]) -> str:
    return f"{statistics.mean(numbers):.1f} ± {statistics.stdev(numbers):.1f}"


def table() -> str:
    setup, skews = ExperimentSetup(find_scale("demo")), [NO_SKEW, *SKEWS]
    cells = {
        (name, skew): run_accuracies(setup, method, skew, changes)
        for name, (method, changes) in ROWS.items()
        for skew in skews
    }
    heads = [BLOCKS.get(skew, "no skew") for skew in skews]
    first = next(iter(ROWS))
    lines = [f"| accuracy in %, {len(SEEDS)} seeds | {' | '.join(heads)} |", "|---|" + "---:|" * len(skews)]
    lines.append("| zero-shot | " + " | ".join(shown([z for z, _ in cells[first, skew]]) for skew in skews) + " |")
    for name in ROWS:
        lines.append(f"| {name} | " + " | ".join(shown([f for _, f in cells[name, skew]]) for skew in skews) + " |")
    return "\n".join(lines)


def main() -> None:
    rows = table()
    PAGE.write_text(between_markers(PAGE.read_text(encoding="utf-8"), "peers", rows), encoding="utf-8")


if __name__ == "__main__":
    main()

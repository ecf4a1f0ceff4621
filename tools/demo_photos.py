"""Run zero-shot, priors and FedCoPL with OpenAI's CLIP on a subset of CIFAR-10, in a few minutes.

make demo-photos

Missing data and weights are downloaded as by `fedcopl data get cifar10` and `model.backbone=ViT-B/32`: 170 and 600 MB.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from break_training import subset
from fedcopl.clip.known_models import locate
from fedcopl.config import Data, RunConfig, override
from fedcopl.data.catalog import download_dataset, load_dataset
from fedcopl.data.dataset import Dataset
from fedcopl.errors import FedCoPLError
from fedcopl.progress import reporting
from fedcopl.report.run_page import REPORT, write_report
from fedcopl.run.record import Outcome
from fedcopl.simulation.simulate import simulate

TRAIN_EACH, TEST_EACH = 20, 20  # images of each class
SETTINGS = (
    "data.clients=5",
    "data.beta=0.1",
    "rounds=3",
    "train.epochs=2",
    "train.batch=8",
    "evaluation.every=99",
    "evaluation.everywhere=false",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=Path("runs/cifar10"), help="folder of CIFAR-10; it is downloaded if missing"
    )
    parser.add_argument("--backbone", default="ViT-B/32", help="another model: a name or a folder")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    missing = download_errors([lambda: cifar10(arguments.data), lambda: locate(arguments.backbone)])
    if missing:
        print(f"demo-photos needs a network, or files copied by hand: {missing}", file=sys.stderr)
        return 1
    dataset = subset(cifar10(arguments.data), 1, TRAIN_EACH, TEST_EACH)
    priors, trained = (
        finished_run(method, arguments.backbone, dataset, arguments.runs / f"photos-{method}")
        for method in ("priors", "fedcopl")
    )
    print(table(priors, trained))
    print(f"report: {arguments.runs / 'photos-fedcopl' / REPORT}")
    return 0


def cifar10(folder: Path) -> Dataset:
    """Load CIFAR-10 from a folder, in any of its official formats; download it first if it is missing."""
    if not any(folder.glob("cifar-10-batches-*")):
        download_dataset("cifar10", folder)
    return load_dataset(Data(source="cifar10", path=str(folder)))


def download_errors(loaders: Iterable[Callable[[], object]]) -> str:
    """Call each loader; return the messages of those that failed in one line, or an empty text."""
    errors = []
    for load in loaders:
        try:
            load()
        except FedCoPLError as error:
            errors.append(str(error))
    return " | ".join(errors)


def finished_run(method: str, backbone: str, dataset: Dataset, folder: Path) -> Outcome:
    """Run a method with its report; a finished run in the folder is read instead."""
    pairs = [*SETTINGS, f"model.backbone={backbone}", f"method={method}"]
    config = RunConfig.from_mapping(override({}, pairs), "demo-photos")
    with reporting(config.rounds) as watcher:
        outcome = simulate(config, folder, resume=folder.exists(), progress=watcher, dataset=dataset)
    write_report(folder)
    return outcome


def table(priors: Outcome, trained: Outcome) -> str:
    """Return the macro accuracies of zero-shot, priors and FedCoPL, in %."""
    shown = {"zero-shot": trained.zero_shot, "priors, nothing trained": priors.final, "FedCoPL": trained.final}
    return "\n".join(f"{name:<24} {100 * measured.macro:5.1f} %" for name, measured in shown.items())


if __name__ == "__main__":
    sys.exit(main())

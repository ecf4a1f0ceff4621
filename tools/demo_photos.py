"""Photographs and OpenAI's CLIP, in a few minutes: zero-shot, priors and FedCoPL on a subset of CIFAR-10.

make demo-photos

What is not here yet is fetched as `fedcopl data get cifar10` and `model.backbone=ViT-B/32` fetch it: 170 MB and 600 MB.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from fedcopl.clip.known_models import locate
from fedcopl.config import Data, RunConfig, override
from fedcopl.data.catalog import download_dataset, load_dataset
from fedcopl.data.dataset import Dataset
from fedcopl.errors import FedCoPLError
from fedcopl.progress import watch
from fedcopl.report.run_page import REPORT, write_report
from fedcopl.run.record import Outcome
from fedcopl.simulation.simulate import simulate
from photographs import subset

TRAIN_EACH, TEST_EACH = 20, 20  # images of each class: a few minutes on a few cores
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
    parser.add_argument("--data", type=Path, default=Path("runs/cifar10"), help="folder that holds CIFAR-10, or will")
    parser.add_argument("--backbone", default="ViT-B/32", help="another model: a name or a folder")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    missing = what_is_missing([lambda: cifar10(arguments.data), lambda: locate(arguments.backbone)])
    if missing:
        print(f"demo-photos needs a network, or these by hand: {missing}", file=sys.stderr)
        return 1
    dataset = subset(cifar10(arguments.data), 1, TRAIN_EACH, TEST_EACH)
    priors, trained = (
        play(method, arguments.backbone, dataset, arguments.runs / f"photos-{method}")
        for method in ("priors", "fedcopl")
    )
    print(table(priors, trained))
    print(f"report: {arguments.runs / 'photos-fedcopl' / REPORT}")
    return 0


def cifar10(folder: Path) -> Dataset:
    """Of the folder, in whichever of its forms, or fetched into it."""
    if not any(folder.glob("cifar-10-batches-*")):
        download_dataset("cifar10", folder)
    return load_dataset(Data(source="cifar10", path=str(folder)))


def what_is_missing(needs: Iterable[Callable[[], object]]) -> str:
    """Everything that is neither here nor can be fetched, in one line; empty when all is here."""
    found = []
    for fetch in needs:
        try:
            fetch()
        except FedCoPLError as error:
            found.append(str(error))
    return " | ".join(found)


def play(method: str, backbone: str, dataset: Dataset, folder: Path) -> Outcome:
    """A run that is finished is not played again."""
    pairs = [*SETTINGS, f"model.backbone={backbone}", f"method={method}"]
    config = RunConfig.from_mapping(override({}, pairs), "demo-photos")
    with watch(config.rounds) as watcher:
        outcome = simulate(config, folder, resume=folder.exists(), progress=watcher, dataset=dataset)
    write_report(folder)
    return outcome


def table(priors: Outcome, trained: Outcome) -> str:
    """Macro accuracy of the three, in %."""
    shown = {"zero-shot": trained.zero_shot, "priors, nothing trained": priors.final, "FedCoPL": trained.final}
    return "\n".join(f"{name:<24} {100 * measured.macro:5.1f} %" for name, measured in shown.items())


if __name__ == "__main__":
    sys.exit(main())

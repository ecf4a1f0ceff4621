"""A whole federation in one process: share out a data set, run the protocol, keep the account."""

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..client import NO_EXAM, SHARED_PROMPTS, Client, ClientState, Exam
from ..config import Data, RunConfig
from ..core import partition
from ..core.partition import Partition, counts_by_client
from ..data.catalog import load_dataset
from ..data.dataset import Dataset, ImageSet
from ..errors import DataError
from ..messages import Shared
from ..model.clip import load_clip
from ..model.device import choose_arithmetic, keep_freed_memory, use_threads
from ..model.encoder import Encoder
from ..model.learner import ClipExam, ClipLearner
from ..model.prompts import initial_prompts, prompt_shapes
from ..protocol import RoundReport, ServerState, run, zero_shot_scores
from ..report.gallery import gallery
from ..report.page import write_page
from ..rng import stream
from ..runs import Checkpoint, RunFolder
from .audit import Audit
from .local import LocalFederation
from .watcher import SilentWatcher, Watcher

Results = dict[str, Any]


@dataclass(frozen=True)
class Simulation:
    """Everything that stays the same during a run."""

    config: RunConfig
    dataset: Dataset
    parts: Partition
    clients: Mapping[str, Client]
    audit: Audit
    shared: Shared  # the first prompts of those that are averaged


def simulate(config: RunConfig, folder: Path, *, resume: bool = False, watcher: Watcher | None = None) -> Results:
    """Run all rounds that are left and write everything into the folder. The same seed gives the same bits."""
    watcher = watcher or SilentWatcher()
    with RunFolder(folder) as place:
        checkpoint = place.open(config, resume=resume)
        began = time.monotonic()
        simulation = assemble(config, watcher)
        place.begin(config)
        checkpoint = _play(simulation, place, checkpoint, watcher, began)
        return _finish(simulation, place, checkpoint)


def assemble(config: RunConfig, watcher: Watcher) -> Simulation:
    """Load the images and the model, embed each image once, and give every client its part."""
    watcher.preparing("reading the images")
    dataset = load_dataset(config.data.source)
    parts = share_out(dataset, config.data, config.seed)
    watcher.preparing("loading the model")
    use_threads(config.model.threads)
    keep_freed_memory()
    clip = load_clip(config.model.backbone)
    arithmetic = choose_arithmetic(config.model.device, config.model.precision)
    encoder = Encoder(
        clip, dataset.classes, config.model.template or dataset.template, arithmetic
    )
    start = initial_prompts(prompt_shapes(clip, config.model), config.model.init_std, config.seed)
    watcher.preparing("embedding the images")
    train, test = encoder.embed(dataset.train.images), encoder.embed(dataset.test.images)
    names = client_names(config.data.clients)
    exams = _exams(encoder, test, dataset.test, parts, names)
    clients = {
        name: Client(ClipLearner(encoder, train[part], start, config, number), config, _exam(exams, name))
        for number, (name, part) in enumerate(zip(names, parts.train, strict=True))
    }
    audit = Audit(_truth(dataset.train, parts, names), exams, start, config.evaluation.everywhere)
    shared = {name: start[name] for name in SHARED_PROMPTS[config.sharing.aggregate]}
    return Simulation(config, dataset, parts, clients, audit, shared)


def client_names(count: int) -> list[str]:
    """client-0 ... client-9, padded so that they sort as they count."""
    digits = len(str(count - 1))
    return [f"client-{number:0{digits}}" for number in range(count)]


def share_out(dataset: Dataset, data: Data, seed: int) -> Partition:
    """Who holds what. The truth is used to make the skew of the simulation, and by nobody else."""
    train, test = dataset.train.labels, dataset.test.labels
    if train is None or test is None:
        raise DataError(
            f"{dataset.name}: has no labels, so it cannot be shared out by class; name each client's images"
        )
    try:
        return _partition(train, test, len(dataset.classes), data, stream(seed, "partition"))
    except ValueError as error:
        raise DataError(f"{dataset.name}: cannot be shared out among {data.clients} clients: {error}") from error


def _partition(
    train: NDArray[np.int64], test: NDArray[np.int64], classes: int, data: Data, rng: np.random.Generator
) -> Partition:
    match data.partition:
        case "iid":
            return partition.iid(train, test, classes, data.clients, rng)
        case "dirichlet":
            return partition.dirichlet(
                train, test, classes, data.clients, rng, beta=data.beta, min_train=data.min_train
            )
        case "quantity":
            return partition.quantity(
                train, test, classes, data.clients, rng, classes_per_client=data.classes_per_client or None
            )


def _exams(encoder: Encoder, tokens: Any, test: ImageSet, parts: Partition, names: list[str]) -> dict[str, ClipExam]:
    if test.labels is None:
        return {}
    return {
        name: ClipExam(encoder, tokens[part], test.labels[part]) for name, part in zip(names, parts.test, strict=True)
    }


def _exam(exams: Mapping[str, ClipExam], name: str) -> Exam:
    return exams.get(name, NO_EXAM)


def _truth(train: ImageSet, parts: Partition, names: list[str]) -> dict[str, NDArray[np.int64]] | None:
    if train.labels is None:
        return None
    return {name: train.labels[part] for name, part in zip(names, parts.train, strict=True)}


def _play(
    simulation: Simulation, place: RunFolder, checkpoint: Checkpoint | None, watcher: Watcher, began: float
) -> Checkpoint:
    """Run the rounds that are left, with a checkpoint after each."""
    config, audit = simulation.config, simulation.audit
    states = checkpoint.clients if checkpoint else None
    federation = LocalFederation(simulation.clients, states, watcher)
    if checkpoint is None:
        checkpoint = _first_checkpoint(simulation, federation)
    records = dict(checkpoint.records)
    before = records["seconds"]
    watcher.started(config, checkpoint.server.round)

    def after_round(server: ServerState, report: RoundReport) -> None:
        record = audit.round(server, report, federation.states)
        if report.refreshed:
            refresh = audit.refresh(report.round, federation.states, server.classes)
            records["refreshes"] = [*records["refreshes"], refresh]
            record["pseudo_label_accuracy"] = refresh["pseudo_label_accuracy"]
        records["seconds"] = before + time.monotonic() - began
        record["seconds"] = records["seconds"]
        records["rounds"] = [*records["rounds"], record]
        place.save_checkpoint(Checkpoint(server, federation.states, records))
        place.write_lines("rounds.jsonl", records["rounds"])
        watcher.round_done(record)

    server = run(config, federation, checkpoint.server, after_round)
    return Checkpoint(server, federation.states, records)


def _first_checkpoint(simulation: Simulation, federation: LocalFederation) -> Checkpoint:
    server = ServerState(0, simulation.shared, len(simulation.dataset.classes))
    zero_shot = simulation.audit.zero_shot(zero_shot_scores(federation))
    records = {"zero_shot": zero_shot, "rounds": [], "refreshes": [], "seconds": 0.0}
    return Checkpoint(server, federation.states, records)


def _finish(simulation: Simulation, place: RunFolder, checkpoint: Checkpoint) -> Results:
    """Write the outcome: prompts, results.json, report.html."""
    outcome = results(simulation, checkpoint.records)
    place.write_lines("rounds.jsonl", checkpoint.records["rounds"])
    place.write_prompts(checkpoint.server, checkpoint.clients)
    place.write_json("results.json", outcome)
    train = simulation.dataset.train
    shown = gallery(train.images, train.labels, simulation.dataset.classes, _holdings(simulation, checkpoint.clients))
    write_page(place.path / "report.html", outcome, shown)
    return outcome


def _holdings(
    simulation: Simulation, states: Mapping[str, ClientState]
) -> list[tuple[str, NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """Of each client: its name, and the place in the data set, pseudo label and log-probability of what it chose."""
    return [
        (name, part[state.selection.index], state.selection.label, state.confidence)
        for (name, state), part in zip(states.items(), simulation.parts.train, strict=True)
        if state.selection is not None and state.confidence is not None
    ]


def results(simulation: Simulation, records: Mapping[str, Any]) -> Results:
    """The outcome of a run as plain data. Accuracies are shares between 0 and 1."""
    rounds = records["rounds"]
    measured = [record for record in rounds if record["macro"] is not None]
    best = max(measured, key=lambda record: record["macro"]) if measured else rounds[-1]
    return {
        "name": simulation.config.name,
        "seed": simulation.config.seed,
        "zero_shot": _three(records["zero_shot"]),
        "final": _three(rounds[-1]) | {"round": rounds[-1]["round"]},
        "best": _three(best) | {"round": best["round"]},
        "pseudo_label_accuracy": [refresh["pseudo_label_accuracy"] for refresh in records["refreshes"]],
        "images_used": records["refreshes"][-1]["images"],
        "bytes_up": sum(record["bytes_up"] for record in rounds),
        "bytes_down": sum(record["bytes_down"] for record in rounds),
        "seconds": records["seconds"],
        "classes": list(simulation.dataset.classes),
        "rounds": rounds,
        "refreshes": records["refreshes"],
        "clients": _client_results(simulation, records),
        "settings": simulation.config.model_dump(),
        "versions": versions(),
    }


def _three(record: Mapping[str, Any]) -> dict[str, float | None]:
    return {kind: record[kind] for kind in ("macro", "weighted", "global")}


def _client_results(simulation: Simulation, records: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = list(simulation.clients)
    zero_shot = records["zero_shot"]["clients"] or [None] * len(names)
    final = records["rounds"][-1]["clients"] or [None] * len(names)
    labels = simulation.dataset.train.labels
    classes = len(simulation.dataset.classes)
    true = None if labels is None else counts_by_client(labels, simulation.parts.train, classes).tolist()
    return [
        {
            "name": name,
            "train": len(simulation.parts.train[place]),
            "test": len(simulation.parts.test[place]),
            "zero_shot": zero_shot[place],
            "final": final[place],
            "true_counts": None if true is None else true[place],
        }
        for place, name in enumerate(names)
    ]


def versions() -> dict[str, str]:
    packages = ("fedcopl", "torch", "numpy", "tokenizers", "safetensors", "pillow")
    return {"python": platform.python_version()} | {package: version(package) for package in packages}

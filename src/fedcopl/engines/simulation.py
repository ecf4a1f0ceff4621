"""A whole federation in one process: run the protocol, keep the account, write the outcome."""

import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..client import Client, ClientState
from ..config import RunConfig
from ..core.partition import counts_by_client
from ..data.dataset import Dataset
from ..messages import Ask, Estimate, Reply
from ..privacy_account import require_accounting, statement
from ..protocol import RoundReport, ServerState, run, zero_shot_scores
from ..report.gallery import as_plain, gallery
from ..report.page import write_page
from ..runs import Checkpoint, RunFolder, write_images, write_labels
from .assembly import Simulation, assemble
from .central import CENTRAL
from .guarding import final_words, movement_record, movement_words
from .local import LocalFederation
from .watcher import SilentWatcher, Watcher

Results = dict[str, Any]


def simulate(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    watcher: Watcher | None = None,
    dataset: Dataset | None = None,
    engine: "Engine | None" = None,
) -> Results:
    """Run all rounds that are left and write everything into the folder. The same seed gives the same bits.

    `dataset` stands in for the one that the settings name, where images were handed over in Python; `engine` carries
    the questions otherwise than one after another in this process.
    """
    watcher = watcher or SilentWatcher()
    require_accounting(config)
    with RunFolder(folder) as place:
        checkpoint = place.open(config, resume=resume)
        if resume and checkpoint is None:
            watcher.noticed(f"{folder} holds no finished round: starting at the first")
        began = time.monotonic()
        simulation = assemble(config, watcher, dataset)
        place.begin(config)
        _tell_of_images(simulation, place, watcher)
        held = dict(zip(simulation.clients, simulation.parts.train, strict=True))
        write_images(folder, simulation.dataset.classes, simulation.dataset.train, held)
        checkpoint = _play(simulation, place, checkpoint, watcher, began, engine or NotedFederation)
        return _finish(simulation, place, checkpoint)


def _tell_of_images(simulation: Simulation, place: RunFolder, watcher: Watcher) -> None:
    """Say what was left out and what is odd about the images; the whole list goes into the folder."""
    for note in simulation.notes:
        watcher.noticed(note)
    skipped = simulation.dataset.skipped
    if skipped:
        many = f"{len(skipped)} images are" if len(skipped) > 1 else "1 image is"
        watcher.noticed(f"{many} left out, for example {skipped[0][0]}: {skipped[0][1]}")
        place.write_lines("skipped.jsonl", [{"name": name, "why": why} for name, why in skipped])


def _play(
    simulation: Simulation,
    place: RunFolder,
    checkpoint: Checkpoint | None,
    watcher: Watcher,
    began: float,
    engine: "Engine",
) -> Checkpoint:
    """Run the rounds that are left, with a checkpoint after each."""
    config, audit = simulation.config, simulation.audit
    states = checkpoint.clients if checkpoint else None
    federation = engine(place.path, simulation.clients, states, watcher)
    if checkpoint is None:
        checkpoint = _first_checkpoint(simulation, federation, watcher)
    records = dict(checkpoint.records)
    spent = records["seconds"]
    watcher.started(config, len(simulation.clients), checkpoint.server.round)

    before = (checkpoint.server.shared, dict(federation.states))

    def after_round(server: ServerState, report: RoundReport) -> None:
        nonlocal before
        record = audit.round(before, server, report, federation.states)
        before = server.shared, dict(federation.states)
        if report.refreshed:
            refresh = audit.refresh(report.round, federation.states)
            records["refreshes"] = [*records["refreshes"], refresh]
            record["pseudo_label_accuracy"] = refresh["pseudo_label_accuracy"]
        record |= time_spent(federation.take_seconds(), config, report)
        records["seconds"] = spent + time.monotonic() - began
        record["seconds"] = records["seconds"]
        records["rounds"] = [*records["rounds"], record]
        place.save_checkpoint(Checkpoint(server, federation.states, records))
        place.write_lines("rounds.jsonl", records["rounds"])
        place.write_lines("progress.json", [results(simulation, records)])  # on one line: that is written fastest
        watcher.round_done(record)

    server = run(config, federation, checkpoint.server, after_round)
    for words in final_words(federation.states):
        watcher.noticed(words)
    return Checkpoint(server, federation.states, records)


class NotedFederation(LocalFederation):
    """Writes down what every client believes about its images at each refresh; the clients' views stay apart."""

    def __init__(
        self,
        folder: Path,
        clients: Mapping[str, Client],
        states: Mapping[str, ClientState] | None,
        watcher: Watcher,
    ):
        super().__init__(clients, states, watcher)
        self._folder = folder

    def ask(self, questions: Mapping[str, Ask]) -> dict[str, Reply]:
        replies = super().ask(questions)
        for round in {ask.round for ask in questions.values() if isinstance(ask, Estimate)}:
            beliefs = {client: self.states[client].log_probs for client in replies}
            write_labels(self._folder, round, {name: belief for name, belief in beliefs.items() if belief is not None})
        return replies


Engine = Callable[[Path, Mapping[str, Client], Mapping[str, ClientState] | None, Watcher], NotedFederation]


def time_spent(seconds: Mapping[str, float], config: RunConfig, report: RoundReport) -> dict[str, Any]:
    """The seconds of each step of the round, and of one training step on one batch."""
    steps = config.train.epochs * report.batches
    per_step = seconds["Train"] / steps if steps else None
    return {"seconds_of": {kind.lower(): taken for kind, taken in seconds.items()}, "seconds_per_step": per_step}


def _first_checkpoint(simulation: Simulation, federation: LocalFederation, watcher: Watcher) -> Checkpoint:
    zero_shot = simulation.audit.zero_shot(zero_shot_scores(federation))
    moved = simulation.first_movement()
    for words in movement_words(moved):
        watcher.noticed(words)
    records: dict[str, Any] = {
        "zero_shot": zero_shot,
        "first_prompts": movement_record(moved),
        "rounds": [],
        "refreshes": [],
        "seconds": 0.0,
    }
    return Checkpoint(simulation.server, federation.states, records)


def _finish(simulation: Simulation, place: RunFolder, checkpoint: Checkpoint) -> Results:
    """Write the outcome: prompts, results.json, report.html."""
    outcome = results(simulation, checkpoint.records)
    place.write_lines("rounds.jsonl", checkpoint.records["rounds"])
    place.write_json("results.json", outcome)
    place.write_prompts(checkpoint.server, checkpoint.clients)
    train = simulation.dataset.train
    shown = gallery(train.images, train.labels, simulation.dataset.classes, _holdings(simulation, checkpoint.clients))
    place.write_json("examples.json", as_plain(shown))
    write_page(place.path / "report.html", outcome, shown)
    (place.path / "progress.json").unlink(missing_ok=True)  # results.json says it all
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
        "first_prompts": records.get("first_prompts"),
        "zero_shot": _three(records["zero_shot"]) | {"recall": records["zero_shot"]["recall"]},
        "final": _three(rounds[-1]) | {"round": rounds[-1]["round"]},
        "best": _three(best) | {"round": best["round"]},
        "pseudo_label_accuracy": [refresh["pseudo_label_accuracy"] for refresh in records["refreshes"]],
        "images_used": records["refreshes"][-1]["images"],
        "privacy": statement(simulation.config, rounds),
        "bytes_up": sum(record["bytes_up"] for record in rounds),
        "bytes_down": sum(record["bytes_down"] for record in rounds),
        "seconds": records["seconds"],
        "shared": list(simulation.server.shared),
        "classes": list(simulation.dataset.classes),
        "template": simulation.config.model.template or simulation.dataset.template,
        "images_left_out": len(simulation.dataset.skipped),
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
    central = simulation.config.method == CENTRAL
    zero_shot, final = (_of_clients(record, names, central) for record in (records["zero_shot"], records["rounds"][-1]))
    tested = [sum(map(len, simulation.parts.test))] if central else [*map(len, simulation.parts.test)]
    labels = simulation.dataset.train.labels
    classes = len(simulation.dataset.classes)
    true = None if labels is None else counts_by_client(labels, simulation.parts.train, classes).tolist()
    return [
        {
            "name": name,
            "train": len(simulation.parts.train[place]),
            "test": tested[place],
            "zero_shot": zero_shot[place],
            "final": final[place],
            "true_counts": None if true is None else true[place],
        }
        for place, name in enumerate(names)
    ]


def _of_clients(record: Mapping[str, Any], names: list[str], central: bool) -> list[float | None]:
    """Each client's accuracy; one place that holds everything has that of all images."""
    return [record["weighted"]] if central else record["clients"] or [None] * len(names)


def versions() -> dict[str, str]:
    packages = ("fedcopl", "torch", "numpy", "tokenizers", "safetensors", "pillow")
    return {"python": platform.python_version()} | {package: version(package) for package in packages}

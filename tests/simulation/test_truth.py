"""Ground truth never enters the unsupervised path: a run with other truths is the same run, to the last bit.

A leak, whatever its name and its way, would make something of the run depend on the truth. So whole runs are played
three times: with the true labels, with wrong ones, with none. All that clients keep, say and are asked must be the
same; only what the exams count may differ.
"""

import gc
from dataclasses import fields, replace
from functools import cache
from types import FunctionType, MethodType, ModuleType

import numpy as np
import pytest
import torch

from fedcopl.config import RunConfig, override
from fedcopl.data.catalog import load_digits
from fedcopl.data.dataset import Dataset, ImageSet
from fedcopl.federation.server import run
from fedcopl.federation.state_arrays import state_tensors
from fedcopl.messages import Evaluated, digest
from fedcopl.methods import METHODS, settled
from fedcopl.methods.learner import ClipExam
from fedcopl.published import AS_PUBLISHED
from fedcopl.run.watcher import SilentWatcher
from fedcopl.simulation.assemble import PooledExam, Simulation, ToldTheTruth, assemble
from fedcopl.simulation.audit import Audit
from fedcopl.simulation.local_clients import LocalClients
from fedcopl.simulation.simulate import simulate

QUICK = ["rounds=2", "refresh_every=1", "epochs=1", "threads=1", "partition=natural"]
PUBLISHED = [f"{name}={str(value).lower()}" for name, value in AS_PUBLISHED.items()]
TRAIN, TEST = 24, 6
TRUTHS = ("true", "wrong", "none")


@cache
def dataset_with(truth: str) -> Dataset:
    """Two sites with digits of their own, which nobody shared out by class; `truth` says how they are labelled."""
    digits = load_digits()
    return replace(
        digits,
        train=labelled(digits.train, TRAIN, truth),
        test=labelled(digits.test, TEST, truth),
        clients=("north", "south"),
    )


def labelled(images: ImageSet, count: int, truth: str) -> ImageSet:
    labels = images.labels[: 2 * count]
    said = {"true": labels, "wrong": (labels[::-1] * 7 + 3) % 10, "none": None}[truth]
    return ImageSet(images.images[: 2 * count], said, clients=np.arange(2 * count) % 2)


def config_of(*pairs):
    return settled(RunConfig.from_mapping(override({}, [*QUICK, *pairs]), "test"))


class Overheard(LocalClients):
    """Writes down every question and every answer but the exams'."""

    def __init__(self, clients):
        super().__init__(clients)
        self.said = []

    def ask(self, questions):
        replies = super().ask(questions)
        self.said += [(client, digest(ask)) for client, ask in questions.items()]
        self.said += [(client, digest(reply)) for client, reply in replies.items() if not isinstance(reply, Evaluated)]
        return replies


def played(truth, *pairs):
    """All that a run is made of, and how many test images were found right."""
    config = config_of(*pairs)
    simulation = assemble(config, SilentWatcher(), dataset_with(truth))
    federation, scores = Overheard(simulation.clients), []
    last = run(config, federation, simulation.server, lambda _, report: scores.append(report.scores))
    states = {name: bits(state_tensors(state)) for name, state in federation.states.items()}
    learned = {} if last.learned is None else bits(last.learned.to_arrays())
    return (bits(last.shared), learned, last.members, states, federation.said), scores


def bits(arrays):
    return {name: (str(value.dtype), value.shape, value.tobytes()) for name, value in arrays.items()}


ALL = [
    (method, labeler)
    for method in METHODS
    for labeler in ("copl", "fpl", "cpl")
    if method != "fedopt" and (labeler == "copl" or method not in ("zeroshot", "priors", "transclip"))
]


@pytest.mark.parametrize(("method", "labeler"), ALL)
def test_a_run_with_wrong_labels_is_the_same_run(method, labeler):
    # What sites learn together is the same for all methods and takes most of the time: with FedCoPL all of it.
    less = [] if method == "fedcopl" else ["priors.balance=false", "priors.prototypes=false"]
    pairs = [f"method={method}", f"labeler={labeler}", *less]
    (ours, right), (same, wrong) = (played(truth, *pairs) for truth in ("true", "wrong"))
    assert ours == same
    assert right != wrong  # or else the truth was not changed at all


@pytest.mark.parametrize("settings", [[], PUBLISHED, ["privacy.noise=0.5"]], ids=["usual", "published", "noise"])
def test_a_run_without_any_label_is_the_same_run(settings):
    with_labels, without = (played(truth, *settings) for truth in ("true", "none"))
    assert with_labels[0] == without[0]
    assert without[1][-1] == {"north": (0, 0), "south": (0, 0)}


def test_the_folder_of_a_run_differs_only_in_what_was_measured(tmp_path):
    for truth in TRUTHS:
        simulate(config_of(), tmp_path / truth, dataset=dataset_with(truth))
    kept = [
        {
            str(file.relative_to(tmp_path / truth)): file.read_bytes()
            for part in ("prompts", "labels")
            for file in (tmp_path / truth / part).rglob("*")
            if file.is_file()
        }
        for truth in TRUTHS
    ]
    assert len(kept[0]) >= 5
    assert kept[0] == kept[1] == kept[2]


# And by types: from what labels, chooses and trains, no object that knows the truth can be reached.

KNOW_THE_TRUTH = (Dataset, ImageSet, ClipExam, PooledExam, Audit, Simulation, ToldTheTruth)
NOT_FOLLOWED = (type, ModuleType, FunctionType, MethodType, str, bytes, int, float)


def reachable(*roots):
    """Everything that can be got at from these objects without naming a module or a class."""
    seen, queue = {}, list(roots)
    while queue:
        one = queue.pop()
        if id(one) not in seen and not isinstance(one, NOT_FOLLOWED):
            seen[id(one)] = one
            queue += gc.get_referents(one)
    return list(seen.values())


def says(array, truth):
    """Whether an array is these labels, in whatever type."""
    values = array.numpy() if isinstance(array, torch.Tensor) else array
    return values.shape == truth.shape and np.array_equal(values, truth)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_that_knows_the_truth_is_within_reach_of_a_learner(method):
    simulation = assemble(config_of(f"method={method}"), SilentWatcher(), dataset_with("true"))
    labels = dataset_with("true").train.labels
    for client, part in zip(simulation.clients.values(), simulation.parts.train, strict=True):
        found = reachable(*(getattr(client, one.name) for one in fields(client) if one.name != "exam"))
        assert any(one is client.learner.images for one in found)  # the walk does get somewhere
        assert [type(one).__name__ for one in found if isinstance(one, KNOW_THE_TRUTH)] == []
        arrays = [one for one in found if isinstance(one, np.ndarray | torch.Tensor)]
        assert not [one for one in arrays if says(one, labels) or says(one, labels[part])]


def test_a_learner_that_is_told_the_truth_is_found_out():
    # What the walk above is worth: of the supervised bound, which no federation contains, it finds both.
    simulation = assemble(config_of("method=central", "options.labels=truth"), SilentWatcher(), dataset_with("true"))
    found = reachable(simulation.clients["central"].learner)
    assert any(isinstance(one, ToldTheTruth) for one in found)
    labels = dataset_with("true").train.labels
    assert any(says(one, labels) for one in found if isinstance(one, np.ndarray))
